"""What a rank hands to an implementation: light references to tensors and meshes, with the fault of a case worked in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from reshard_conformance.cases import Case, CaseError, Fault, Side, read_placement
from reshard_conformance.oracle import CPU, POISON, Buffer, Truth, allocate, poisoned
from reshard_conformance.vast import Vast, is_vast, lay
from reshard_conformance.views import entwine, prepare

__all__ = ["Handed", "MeshRef", "Segmented", "TensorRef", "check_fault", "hand", "placements", "seen"]


class TensorRef:
    """A reference to a distributed tensor, as callers without DTensors hand over.

    shape: the global shape. device: where the local tensor is. _local_tensor: None on a rank without a part.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, local: torch.Tensor | None, device: torch.device = CPU
    ) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.device = device if local is None else local.device
        self._local_tensor = self.handed = local

    def changed(self) -> bool:
        return self._local_tensor is not self.handed


class MeshRef:
    """A mesh of ranks of the group: `mesh` and `_mesh` are the same int64 tensor."""

    def __init__(self, side: Side) -> None:
        self.mesh = self._mesh = torch.tensor(side.mesh, dtype=torch.int64)

    @property
    def ndim(self) -> int:
        return self.mesh.ndim


@dataclass(frozen=True, init=False)
class Segmented(Placement):
    """A segmented shard, to be known by what it has: segments of these `sizes` make up the tensor dim `dim`."""

    dim: int
    sizes: tuple[int, ...]

    def __init__(self, dim: int, sizes: tuple[int, ...]) -> None:
        super().__init__()  # torch's side of it
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "sizes", sizes)


def placements(side: Side) -> tuple[Placement, ...]:
    """The side's placements as torch.distributed.tensor has them."""
    return tuple(placement(text) for text in side.placements)


def placement(text: str) -> Placement:
    asked = read_placement(text)
    if asked.kind == "S":
        return Shard(asked.dim)
    if asked.kind == "SS":
        return _StridedShard(asked.dim, split_factor=asked.factor)
    if asked.kind == "SG":
        return Segmented(asked.dim, asked.sizes)
    return Partial(asked.op) if asked.kind == "P" else Replicate()


@dataclass(frozen=True)
class Handed:
    """One side of a call on one rank; `expected` are the bytes that a destination must hold afterwards.

    vast: what watches the tensor instead of a buffer, where it is too large for one; `expected` is then the tensor itself.
    """

    reference: TensorRef | None = None
    buffer: Buffer | None = None
    expected: torch.Tensor | None = None
    vast: Vast | None = None

    def faults(self, side: str, *, filled: bool) -> list[str]:
        """What is wrong with the memory after the call: a destination that is `filled` holds what was expected."""
        watched = self.buffer if self.vast is None else self.vast
        if watched is None:
            return []
        found = watched.differences(self.expected if filled else None)
        return [f"{side}: {sentence}" if filled else f"{side} was written: {sentence}" for sentence in found]

    def changed(self) -> bool:
        """Whether the implementation exchanged the tensor in the caller's reference."""
        return self.reference is not None and self.reference.changed()


def seen(case: Case, rank: int) -> Case:
    """The case as the rank calls it: with a fault in its placements, it believes in another layout."""
    fault = fault_of(case, rank)
    if fault is None or fault.what != "placements":
        return case
    side = replace(getattr(case, fault.side), placements=fault.value)
    return replace(case, src=side) if fault.side == "src" else replace(case, dst=side)


def hand(case: Case, truth: Truth, rank: int, device: torch.device = CPU) -> tuple[Handed, Handed]:
    """Source and destination of the rank; a rank in neither mesh hands over one reference without a tensor as both."""
    if is_vast(case):
        return hand_vast(case, truth, rank, device)
    src, dst = (hand_side(case, truth, rank, name, device) for name in ("src", "dst"))
    fault = fault_of(case, rank)
    if fault is not None and fault.what == "alias":
        return shared(case, truth, rank, (src, dst), device)
    absent = fault is not None and fault.what == "absent"
    if src.reference is None and dst.reference is None and not absent:
        idle = Handed(idle_reference(case, truth, fault, device))
        return idle, idle
    if case.src.memory == case.dst.memory == "interleaved" and src.buffer is not None and dst.buffer is not None:
        return entwined(src, dst, device)
    return src, dst


def hand_vast(case: Case, truth: Truth, rank: int, device: torch.device) -> tuple[Handed, Handed]:
    src = lay(case, case.src, rank, truth.call, device, filled=True)
    dst = lay(case, case.dst, rank, truth.call, device, filled=False)
    if src is None and dst is None:
        idle = Handed(idle_reference(case, truth, None, device))
        return idle, idle
    return (
        Handed() if src is None else Handed(TensorRef(case.shape, truth.dtype, src.tensor), vast=src),
        Handed() if dst is None else Handed(TensorRef(case.shape, truth.dtype, dst.tensor), None, dst.tensor, dst),
    )


def entwined(src: Handed, dst: Handed, device: torch.device) -> tuple[Handed, Handed]:
    """The same two sides in one memory, which the destination watches."""
    source, target = buffer_of(src), buffer_of(dst)
    tensor, buffer = entwine(source.content, target.content, target.tensor.dtype, device)
    src_reference = (
        None if src.reference is None else TensorRef(tuple(src.reference.shape), source.tensor.dtype, tensor)
    )
    dst_reference = (
        None if dst.reference is None else TensorRef(tuple(dst.reference.shape), buffer.tensor.dtype, buffer.tensor)
    )
    return Handed(src_reference), Handed(dst_reference, buffer, dst.expected)


def hand_side(case: Case, truth: Truth, rank: int, name: str, device: torch.device) -> Handed:
    side: Side = getattr(case, name)
    expected, dtype, shape = truth.shard(side, rank), truth.dtype, case.shape
    content = expected if expected is None or name == "src" else poisoned(expected, dtype)
    fault = fault_of(case, rank, name)
    what = None if fault is None else fault.what
    if fault is not None and what == "local_shape":
        content = filler(sizes(fault), dtype)
    elif what == "stray":
        content = filler(case.shape, dtype)
    elif fault is not None and what == "global_shape":
        shape = sizes(fault)
    elif fault is not None and what == "dtype" and expected is not None:
        dtype = getattr(torch, str(fault.value))
        content = filler(tuple(expected.shape[:-1]), dtype)
    if content is None or what == "absent":
        return Handed()
    buffer = prepare(content, dtype, side.memory_of(rank), device)
    local = torch.empty_like(buffer.tensor, device="meta") if what == "device" else buffer.tensor
    return Handed(TensorRef(shape, dtype, local), buffer, expected if name == "dst" else None)


def idle_reference(case: Case, truth: Truth, fault: Fault | None, device: torch.device) -> TensorRef:
    shape, dtype = case.shape, truth.dtype
    if fault is not None and fault.what == "global_shape":
        shape = sizes(fault)
    if fault is not None and fault.what == "dtype":
        dtype = getattr(torch, str(fault.value))
    return TensorRef(shape, dtype, None, device)


def shared(
    case: Case, truth: Truth, rank: int, sides: tuple[Handed, Handed], device: torch.device
) -> tuple[Handed, Handed]:
    """The same two sides, but the destination starts at the source's first element; the source keeps watch."""
    source, target = map(buffer_of, sides)
    start = int(source.tensor.storage_offset())
    end = (start + target.tensor.numel()) * truth.dtype.itemsize
    source = allocate(source.content, truth.dtype, case.src.memory_of(rank), end, device)
    local = source.memory.view(truth.dtype)[start : end // truth.dtype.itemsize].view(target.tensor.shape)
    return (
        Handed(TensorRef(case.shape, truth.dtype, source.tensor), source),
        Handed(TensorRef(case.shape, truth.dtype, local)),
    )


#: The sides that a rank with a fault has to be in, where it is not the fault's own.
NEEDED: dict[str, tuple[str, ...]] = {"alias": ("src", "dst"), "local_shape": (), "stray": (), "placements": ()}


def check_fault(case: Case) -> None:
    """CaseError for a fault on a rank that hands over nothing that could have it."""
    if case.fault is None:
        return
    for rank in case.fault.ranks:
        sides = [name for name in ("src", "dst") if rank in getattr(case, name).ranks]
        if case.fault.what == "stray" and case.fault.side in sides:
            raise CaseError("fault.ranks", f"ranks outside the {case.fault.side} mesh for 'stray'", rank)
        needed = NEEDED.get(case.fault.what, (case.fault.side,))
        idle_too = case.fault.what in {"absent", "global_shape", "dtype"} and not sides
        if not idle_too and not set(needed) <= set(sides):
            raise CaseError("fault.ranks", f"ranks of the {' and '.join(needed)} mesh for {case.fault.what!r}", rank)


def fault_of(case: Case, rank: int, side: str | None = None) -> Fault | None:
    """The case's fault, if this rank has it (and on this side, if one is named)."""
    fault = case.fault
    return fault if fault is not None and rank in fault.ranks and side in {None, fault.side} else None


def filler(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full((*shape, dtype.itemsize), 1 if dtype == torch.bool else POISON, dtype=torch.uint8)


def sizes(fault: Fault) -> tuple[int, ...]:
    if not isinstance(fault.value, tuple):
        raise CaseError("fault.value", "a list of sizes", fault.value)
    return tuple(size for size in fault.value if isinstance(size, int))


def buffer_of(handed: Handed) -> Buffer:
    if handed.buffer is None:
        raise CaseError("fault.ranks", "ranks of both meshes for 'alias'", "a rank outside")
    return handed.buffer
