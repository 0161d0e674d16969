"""What every rank must hold after a call, computed by the suite itself with torch's own splitting of a known global tensor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch.distributed.tensor.placement_types import _StridedShard

from reshard_conformance.cases import VIEWED, Case, CaseError, Placement, Side, read_placement

__all__ = [
    "CPU",
    "Buffer",
    "Truth",
    "allocate",
    "chunk",
    "describe_difference",
    "draw",
    "expect_legal",
    "legal_fault",
    "on",
]

CPU = torch.device("cpu")

#: XOR turns the expected bytes into the ones that a destination starts with, so that every byte not written shows.
POISON = 0xA5
#: The highest bit of a float's exponent, in its last byte.
EXPONENT = 0x40
ODD = 0x9E3779B97F4A7C15
MIXERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def mix(index: torch.Tensor, seed: int, bits: int) -> torch.Tensor:
    """Scramble int64 indices below 2**bits into words of that many bits; different indices give different words."""
    mask = signed((1 << bits) - 1)
    half = bits // 2
    words = (index + signed(seed * ODD + MIXERS[0])) * signed(ODD)
    for mixer in MIXERS:
        words = words.bitwise_and_(mask)
        high = (words >> half).bitwise_and_((1 << (bits - half)) - 1)
        words = words.bitwise_xor_(high).mul_(signed(mixer))
    words = words.bitwise_and_(mask)
    return words.bitwise_xor_((words >> half).bitwise_and_((1 << (bits - half)) - 1))


def draw(shape: tuple[int, ...], dtype: torch.dtype, call: int) -> torch.Tensor:
    """Global bytes of the call: uint8 of shape (*shape, itemsize), drawn from each element's index and `call`.

    Elements are distinct where the dtype has as many values as there are elements; bool is 0 or 1.
    """
    count, size = math.prod(shape), dtype.itemsize
    index = torch.arange(count)
    if dtype == torch.bool:
        return mix(index, call, 64).bitwise_and_(1).to(torch.uint8).reshape(*shape, 1)
    if size > 8:
        halves = torch.stack([mix(index, call, 64), mix(index, ~call, 64)], dim=-1)
        return halves.view(torch.uint8).reshape(*shape, size)
    bits = 8 * size if count <= 1 << (8 * size) else 64
    return mix(index, call, bits).view(torch.uint8).reshape(*shape, 8)[..., :size]


def chunk(tensor: torch.Tensor, parts: int, dim: int, index: int) -> torch.Tensor:
    """Part `index` of torch.chunk, which hands out nothing where an empty part is due."""
    pieces = tensor.chunk(parts, dim)
    return pieces[index] if index < len(pieces) else tensor.narrow(dim, 0, 0)


def cut(tensor: torch.Tensor, placement: Placement, parts: int, index: int, ndim: int) -> torch.Tensor:
    """What the placement leaves of `tensor` (a trailing dim of bytes after `ndim` tensor dims) for one coordinate."""
    if placement.kind in {"R", "P"} or not -ndim <= placement.dim < ndim:
        return tensor
    dim = placement.dim % ndim
    if placement.kind == "SS":
        strided = _StridedShard(dim, split_factor=placement.factor)
        return strided._split_tensor(tensor, parts, with_padding=False, contiguous=False)[0][index]  # noqa: SLF001 - torch's own word on it
    if placement.kind == "SG" and sum(placement.sizes) == tensor.size(dim):
        segments = torch.split(tensor, list(placement.sizes), dim)
        return torch.cat([chunk(segment, parts, dim, index) for segment in segments], dim)
    return chunk(tensor, parts, dim, index)


def coordinates(side: Side, rank: int) -> tuple[int, ...] | None:
    """Where the rank stands in the mesh (first, were it there twice), or None outside it."""
    if rank not in side.ranks:
        return None
    place, found = side.ranks.index(rank), []
    for size in reversed(side.mesh_shape):
        found.append(place % size)
        place //= size
    return tuple(reversed(found))


def legal_fault(case: Case, side: Side) -> str | None:
    """Why no implementation has to accept this side of the case, or None when it is a legal layout."""
    ranks, ndim = side.ranks, len(case.shape)
    if len(side.placements) != len(side.mesh_shape):
        return f"{len(side.placements)} placements for a mesh of {len(side.mesh_shape)} dims"
    if len(set(ranks)) != len(ranks) or not all(0 <= rank < case.world_size for rank in ranks):
        return f"ranks {ranks} are not distinct ranks below {case.world_size}"
    read = [read_placement(text) for text in side.placements]
    for text, placement in zip(side.placements, read, strict=True):
        if placement.kind == "P" or (placement.kind != "R" and not -ndim <= placement.dim < ndim):
            return f"placement {text} does not fit a tensor of {ndim} dims"
    dims = [None if placement.kind == "R" else placement.dim % ndim for placement in read]
    for place, (dim, placement) in enumerate(zip(dims, read, strict=True)):
        if placement.kind == "SG" and dim in dims[:place]:
            return f"segments of tensor dim {dim} after another shard of it"
        if dim is not None and placement.kind == "SG" and sum(placement.sizes) != case.shape[dim]:
            return f"segments of {sum(placement.sizes)} elements for a dim of {case.shape[dim]}"
    return None


def expect_legal(case: Case) -> None:
    """CaseError for a case that expects equality of a layout that has none."""
    for name, side in (("src", case.src), ("dst", case.dst)):
        fault = legal_fault(case, side)
        if fault:
            raise CaseError("expect", f"an error, for {name} has {fault}", case.expect)


class Truth:
    """The expected local tensors of one call, as raw bytes; shared by the ranks of a process."""

    def __init__(self, case: Case, call: int) -> None:
        self.case, self.call = case, call
        self.dtype: torch.dtype = getattr(torch, case.dtype)

    @cached_property
    def whole(self) -> torch.Tensor:
        """The global tensor: uint8 of shape (*shape, itemsize).

        Where a side is a lazy view there are no NaNs in it: torch does not keep their payload when it resolves one.
        """
        whole = draw(self.case.shape, self.dtype, self.call)
        if {self.case.src.memory, self.case.dst.memory}.isdisjoint(VIEWED):
            return whole
        component = self.dtype.itemsize // (2 if self.dtype.is_complex else 1)
        whole[..., component - 1 :: component] &= 0xFF ^ EXPONENT
        return whole

    def shard(self, side: Side, rank: int) -> torch.Tensor | None:
        """This rank's local tensor: uint8 of shape (*local shape, itemsize); None outside the side's mesh.

        Where the layout is not legal, whatever can be followed of it is: the caller passes something, to be refused.
        """
        place = coordinates(side, rank)
        if place is None:
            return None
        shard = self.whole
        for text, parts, index in zip(side.placements, side.mesh_shape, place, strict=False):
            shard = cut(shard, read_placement(text), parts, index, len(self.case.shape))
        return shard


@dataclass(frozen=True)
class Buffer:
    """A local tensor inside memory that the suite watches.

    memory: flat uint8, all of it. tensor: what the implementation is handed, a view of it.
    content: the same elements as raw bytes, uint8 of shape (*shape, itemsize). before: what `memory` was, on the CPU.
    mask: bits by which the values of the tensor's elements differ from their content. settle: what ends a wait for it.
    """

    memory: torch.Tensor
    tensor: torch.Tensor
    content: torch.Tensor
    before: torch.Tensor
    mask: torch.Tensor | None = None
    settle: Callable[[], object] | None = None

    def differences(self, expected: torch.Tensor | None) -> list[str]:
        """How the memory differs from `before` with `content` replaced by `expected` (None: nothing was written)."""
        if self.settle is not None:
            self.settle()
        memory, wanted = self.memory.cpu(), self.before
        if expected is not None:
            wanted = self.before.clone()
            self.view(wanted).copy_(expected if self.mask is None else expected ^ self.mask)
        if torch.equal(memory, wanted):
            return []
        found = describe_difference(self.view(memory), self.view(wanted))
        changed = (memory != wanted).sum().item() - (self.view(memory) != self.view(wanted)).sum().item()
        return found + ([f"{changed} guard bytes around the view were written"] if changed else [])

    def moved(self, memory: torch.Tensor) -> Buffer:
        """The same tensor and content in other memory, which holds the same bytes."""
        tensor = memory.view(self.tensor.dtype).as_strided(
            self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()
        )
        return replace(self, memory=memory, tensor=tensor, content=self.view(memory))

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """The content's place in other memory of the same size."""
        return memory.as_strided(self.content.shape, self.content.stride(), self.content.storage_offset())


def describe_difference(actual: torch.Tensor, expected: torch.Tensor) -> list[str]:
    """One sentence on the first element that differs, and how many do; both are bytes of one shape."""
    wrong = (actual != expected).any(-1)
    if not wrong.any():
        return []
    first = tuple(wrong.nonzero()[0].tolist())
    had, wanted = bytes(actual[first].tolist()).hex(), bytes(expected[first].tolist()).hex()
    return [f"{int(wrong.sum())} of {wrong.numel()} elements differ, first at {first}: bytes {had}, expected {wanted}"]


def allocate(
    content: torch.Tensor, dtype: torch.dtype, memory: str, room: int = 0, device: torch.device = CPU
) -> Buffer:
    """Memory of the format `memory` on the device, at least `room` bytes, around a tensor with this content.

    content: uint8 of shape (*shape, itemsize).
    """
    *shape, size = content.shape
    count, strides, offset = geometry(tuple(shape), memory)
    whole = torch.full((max(count * size, room),), POISON if dtype != torch.bool else 1, dtype=torch.uint8)
    place = whole.as_strided(content.shape, [stride * size for stride in strides] + [1], offset * size)
    place.copy_(content)
    tensor = whole.view(dtype).as_strided(shape, strides, offset)
    return on(Buffer(whole, tensor, place, whole.clone()), device)


def on(buffer: Buffer, device: torch.device) -> Buffer:
    """The buffer on the device: itself, where that is the CPU."""
    return buffer if device.type == "cpu" else buffer.moved(buffer.memory.to(device))


def poisoned(expected: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes for a destination to start with: none of them is the expected one."""
    return expected ^ (1 if dtype == torch.bool else POISON)


def geometry(shape: tuple[int, ...], memory: str) -> tuple[int, list[int], int]:
    """Elements of the whole memory, and strides and offset (in elements) of the tensor in it."""
    if memory == "transposed":
        return math.prod(shape), row_major(shape[::-1])[::-1], 0
    if memory == "sliced":
        wide = tuple(size + 2 for size in shape)
        strides = row_major(wide)
        return math.prod(wide) if shape else 3, strides, sum(strides) if shape else 1
    if memory == "interleaved":
        return 2 * math.prod(shape), [2 * stride for stride in row_major(shape)], 0
    return math.prod(shape), row_major(shape), 0


def row_major(shape: tuple[int, ...]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
