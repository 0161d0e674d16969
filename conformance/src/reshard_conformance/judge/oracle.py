"""The bytes that every rank must hold after a call, computed from a known global tensor with torch's own splitting."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch.distributed.tensor.placement_types import _StridedShard

from reshard_conformance.case.files import VIEW_DTYPES, Case, CaseError, Placement, Side, read_placement

__all__ = [
    "CPU",
    "Buffer",
    "Truth",
    "allocate_buffer",
    "describe_difference",
    "draw_bytes",
    "expect_legal",
    "layout_defect",
    "to_device",
    "torch_chunk",
]

CPU = torch.device("cpu")

#: A destination starts with the expected bytes XOR this, so that every byte not written shows.
POISON = 0xA5
#: The highest bit of a float's exponent, in its last byte.
EXPONENT_BIT = 0x40
MIX_MULTIPLIER = 0x9E3779B97F4A7C15
MIX_ROUNDS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def as_int64(word: int) -> int:
    """Return the int64 with the bits of a 64-bit word."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def mix_bits(index: torch.Tensor, seed: int, bits: int) -> torch.Tensor:
    """Scramble int64 indices below 2**bits into words of that many bits; the mapping is one to one."""
    mask = as_int64((1 << bits) - 1)
    half = bits // 2
    words = (index + as_int64(seed * MIX_MULTIPLIER + MIX_ROUNDS[0])) * as_int64(MIX_MULTIPLIER)
    for mixer in MIX_ROUNDS:
        words = words.bitwise_and_(mask)
        high = (words >> half).bitwise_and_((1 << (bits - half)) - 1)
        words = words.bitwise_xor_(high).mul_(as_int64(mixer))
    words = words.bitwise_and_(mask)
    return words.bitwise_xor_((words >> half).bitwise_and_((1 << (bits - half)) - 1))


def draw_bytes(shape: tuple[int, ...], dtype: torch.dtype, call: int) -> torch.Tensor:
    """Return the global bytes of a call: uint8 of shape (*shape, itemsize), drawn from each element's index and `call`.

    Elements are distinct where the dtype has as many values as there are elements; bool is 0 or 1.
    """
    count, size = math.prod(shape), dtype.itemsize
    index = torch.arange(count)
    if dtype == torch.bool:
        return mix_bits(index, call, 64).bitwise_and_(1).to(torch.uint8).reshape(*shape, 1)
    if size > 8:
        halves = torch.stack([mix_bits(index, call, 64), mix_bits(index, ~call, 64)], dim=-1)
        return halves.view(torch.uint8).reshape(*shape, size)
    bits = 8 * size if count <= 1 << (8 * size) else 64
    return mix_bits(index, call, bits).view(torch.uint8).reshape(*shape, 8)[..., :size]


def torch_chunk(tensor: torch.Tensor, parts: int, dim: int, index: int) -> torch.Tensor:
    """Return part `index` of torch.chunk; an empty tensor where torch leaves an empty part out."""
    pieces = tensor.chunk(parts, dim)
    return pieces[index] if index < len(pieces) else tensor.narrow(dim, 0, 0)


def shard_by_placement(tensor: torch.Tensor, placement: Placement, parts: int, index: int, ndim: int) -> torch.Tensor:
    """Return the shard of `tensor` (`ndim` tensor dims, then one of bytes) at an index of a mesh dim of `parts` ranks."""
    if placement.kind in {"R", "P"} or not -ndim <= placement.dim < ndim:
        return tensor
    dim = placement.dim % ndim
    if placement.kind == "SS":
        strided = _StridedShard(dim, split_factor=placement.factor)
        return strided._split_tensor(tensor, parts, with_padding=False, contiguous=False)[0][index]  # noqa: SLF001 - torch's own splitting of strided shards
    if placement.kind == "SG" and sum(placement.sizes) == tensor.size(dim):
        segments = torch.split(tensor, list(placement.sizes), dim)
        return torch.cat([torch_chunk(segment, parts, dim, index) for segment in segments], dim)
    return torch_chunk(tensor, parts, dim, index)


def mesh_coordinate(side: Side, rank: int) -> tuple[int, ...] | None:
    """Return the rank's index along each mesh dim (the first one of a repeated rank), or None outside the mesh."""
    if rank not in side.ranks:
        return None
    position, reversed_indices = side.ranks.index(rank), []
    for size in reversed(side.mesh_shape):
        reversed_indices.append(position % size)
        position //= size
    return tuple(reversed(reversed_indices))


def layout_defect(case: Case, side: Side) -> str | None:
    """Return the reason why no implementation has to accept this side of the case, or None for a legal layout."""
    ranks, ndim = side.ranks, len(case.shape)
    if len(side.placements) != len(side.mesh_shape):
        return f"{len(side.placements)} placements for a mesh of {len(side.mesh_shape)} dims"
    if len(set(ranks)) != len(ranks) or not all(0 <= rank < case.world_size for rank in ranks):
        return f"ranks {ranks} are not distinct ranks below {case.world_size}"
    parsed = [read_placement(text) for text in side.placements]
    for text, placement in zip(side.placements, parsed, strict=True):
        if placement.kind == "P" or (placement.kind != "R" and not -ndim <= placement.dim < ndim):
            return f"placement {text} does not fit a tensor of {ndim} dims"
    dims = [None if placement.kind == "R" else placement.dim % ndim for placement in parsed]
    for mesh_dim, (dim, placement) in enumerate(zip(dims, parsed, strict=True)):
        if placement.kind == "SG" and dim in dims[:mesh_dim]:
            return f"segments of tensor dim {dim} after another shard of it"
        if dim is not None and placement.kind == "SG" and sum(placement.sizes) != case.shape[dim]:
            return f"segments of {sum(placement.sizes)} elements for a dim of {case.shape[dim]}"
    return None


def expect_legal(case: Case) -> None:
    """Raise CaseError for a case that expects equal bytes of an illegal layout."""
    for name, side in (("src", case.src), ("dst", case.dst)):
        defect = layout_defect(case, side)
        if defect:
            raise CaseError("expect", f"an error, for {name} has {defect}", case.expect)


class Truth:
    """The expected local tensors of one call, as raw bytes; shared by the ranks of a process."""

    def __init__(self, case: Case, call: int) -> None:
        self.case, self.call = case, call
        self.dtype: torch.dtype = getattr(torch, case.dtype)

    @cached_property
    def global_bytes(self) -> torch.Tensor:
        """The global tensor: uint8 of shape (*shape, itemsize).

        Where a side is a lazy view the tensor has no NaNs: torch does not keep their payload when it resolves a view.
        """
        content = draw_bytes(self.case.shape, self.dtype, self.call)
        if {self.case.src.memory, self.case.dst.memory}.isdisjoint(VIEW_DTYPES):
            return content
        component = self.dtype.itemsize // (2 if self.dtype.is_complex else 1)
        content[..., component - 1 :: component] &= 0xFF ^ EXPONENT_BIT
        return content

    def shard(self, side: Side, rank: int) -> torch.Tensor | None:
        """Return the rank's local tensor: uint8 of shape (*local shape, itemsize); None outside the side's mesh.

        The illegal parts of a layout are skipped, so that the caller has a tensor to pass to a call that is to be refused.
        """
        coordinate = mesh_coordinate(side, rank)
        if coordinate is None:
            return None
        shard = self.global_bytes
        for text, parts, index in zip(side.placements, side.mesh_shape, coordinate, strict=False):
            shard = shard_by_placement(shard, read_placement(text), parts, index, len(self.case.shape))
        return shard


@dataclass(frozen=True)
class Buffer:
    """A local tensor inside memory that the suite compares after the call.

    memory: flat uint8, the whole allocation. tensor: the view of `memory` that the implementation gets.
    content: the tensor's elements as raw bytes, uint8 of shape (*shape, itemsize). before: a copy of `memory` on the CPU.
    mask: bits in which the elements' values differ from their content. settle: waits until the content has arrived.
    """

    memory: torch.Tensor
    tensor: torch.Tensor
    content: torch.Tensor
    before: torch.Tensor
    mask: torch.Tensor | None = None
    settle: Callable[[], object] | None = None

    def differences(self, expected: torch.Tensor | None) -> list[str]:
        """Compare the memory with `before`, its content replaced by `expected` (None: nothing may have been written)."""
        if self.settle is not None:
            self.settle()
        actual_memory, expected_memory = self.memory.cpu(), self.before
        if expected is not None:
            expected_memory = self.before.clone()
            self.content_of(expected_memory).copy_(expected if self.mask is None else expected ^ self.mask)
        if torch.equal(actual_memory, expected_memory):
            return []
        actual_content, expected_content = self.content_of(actual_memory), self.content_of(expected_memory)
        wrong_bytes = (actual_memory != expected_memory).sum().item()
        wrong_guards = wrong_bytes - (actual_content != expected_content).sum().item()
        guard_faults = [f"{wrong_guards} guard bytes around the view were written"] if wrong_guards else []
        return describe_difference(actual_content, expected_content) + guard_faults

    def in_memory(self, memory: torch.Tensor) -> Buffer:
        """Return the buffer with its tensor and content in other memory, which holds the same bytes."""
        tensor = memory.view(self.tensor.dtype).as_strided(
            self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()
        )
        return replace(self, memory=memory, tensor=tensor, content=self.content_of(memory))

    def content_of(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the part of other memory of the same size that is this buffer's content."""
        return memory.as_strided(self.content.shape, self.content.stride(), self.content.storage_offset())


def describe_difference(actual: torch.Tensor, expected: torch.Tensor) -> list[str]:
    """Return a sentence on the first element that differs and the number of such elements, or nothing."""
    wrong = (actual != expected).any(-1)
    if not wrong.any():
        return []
    index = tuple(wrong.nonzero()[0].tolist())
    actual_hex, expected_hex = (bytes(content[index].tolist()).hex() for content in (actual, expected))
    count = f"{int(wrong.sum())} of {wrong.numel()} elements differ"
    return [f"{count}, first at {index}: bytes {actual_hex}, expected {expected_hex}"]


def allocate_buffer(
    content: torch.Tensor, dtype: torch.dtype, memory: str, min_bytes: int = 0, device: torch.device = CPU
) -> Buffer:
    """Allocate at least `min_bytes` bytes in the format `memory` around a tensor with this content.

    content: uint8 of shape (*shape, itemsize).
    """
    *shape, size = content.shape
    count, strides, offset = memory_layout(tuple(shape), memory)
    allocation = torch.full((max(count * size, min_bytes),), POISON if dtype != torch.bool else 1, dtype=torch.uint8)
    content_view = allocation.as_strided(content.shape, [stride * size for stride in strides] + [1], offset * size)
    content_view.copy_(content)
    tensor = allocation.view(dtype).as_strided(shape, strides, offset)
    return to_device(Buffer(allocation, tensor, content_view, allocation.clone()), device)


def to_device(buffer: Buffer, device: torch.device) -> Buffer:
    """Return the buffer on the device; on the CPU that is the buffer itself."""
    return buffer if device.type == "cpu" else buffer.in_memory(buffer.memory.to(device))


def poisoned_bytes(expected: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return bytes for a destination to start with: every one differs from the expected byte."""
    return expected ^ (1 if dtype == torch.bool else POISON)


def memory_layout(shape: tuple[int, ...], memory: str) -> tuple[int, list[int], int]:
    """Return the elements of the whole memory, and strides and offset (in elements) of the tensor in it."""
    if memory == "transposed":
        return math.prod(shape), row_major_strides(shape[::-1])[::-1], 0
    if memory == "sliced":
        wide = tuple(size + 2 for size in shape)
        strides = row_major_strides(wide)
        return math.prod(wide) if shape else 3, strides, sum(strides) if shape else 1
    if memory == "interleaved":
        return 2 * math.prod(shape), [2 * stride for stride in row_major_strides(shape)], 0
    return math.prod(shape), row_major_strides(shape), 0


def row_major_strides(shape: tuple[int, ...]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]
