"""The arguments that a rank passes to an implementation: references to tensors and meshes, with the case's fault."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from reshard_conformance.case.files import Case, CaseError, Fault, Side, read_placement
from reshard_conformance.judge.large_tensors import LargeTensor, is_large, make_large_tensor
from reshard_conformance.judge.oracle import CPU, POISON, Buffer, Truth, allocate_buffer, poisoned_bytes
from reshard_conformance.judge.tensor_kinds import interleave_tensors, make_buffer

__all__ = [
    "MeshRef",
    "RankInput",
    "Segmented",
    "TensorRef",
    "as_seen_by",
    "check_fault",
    "make_inputs",
    "torch_placements",
]


class TensorRef:
    """A reference to a distributed tensor, as callers without DTensors pass it.

    shape: the global shape. device: where the local tensor is. _local_tensor: None on a rank without a part.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, local: torch.Tensor | None, device: torch.device = CPU
    ) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self.device = device if local is None else local.device
        self._local_tensor = self.original = local

    def was_replaced(self) -> bool:
        """Tell whether the implementation put another tensor into the reference."""
        return self._local_tensor is not self.original


class MeshRef:
    """A mesh of ranks of the group: `mesh` and `_mesh` are the same int64 tensor."""

    def __init__(self, side: Side) -> None:
        self.mesh = self._mesh = torch.tensor(side.mesh, dtype=torch.int64)

    @property
    def ndim(self) -> int:
        return self.mesh.ndim


@dataclass(frozen=True, init=False)
class Segmented(Placement):
    """A segmented shard: segments of these `sizes` make up the tensor dim `dim`.

    Implementations recognise it by its attributes, not by this class.
    """

    dim: int
    sizes: tuple[int, ...]

    def __init__(self, dim: int, sizes: tuple[int, ...]) -> None:
        super().__init__()  # torch's side of it
        object.__setattr__(self, "dim", dim)
        object.__setattr__(self, "sizes", sizes)


def torch_placements(side: Side) -> tuple[Placement, ...]:
    """Return the side's placements as those of torch.distributed.tensor."""
    return tuple(torch_placement(text) for text in side.placements)


def torch_placement(text: str) -> Placement:
    parsed = read_placement(text)
    if parsed.kind == "S":
        return Shard(parsed.dim)
    if parsed.kind == "SS":
        return _StridedShard(parsed.dim, split_factor=parsed.factor)
    if parsed.kind == "SG":
        return Segmented(parsed.dim, parsed.sizes)
    return Partial(parsed.op) if parsed.kind == "P" else Replicate()


@dataclass(frozen=True)
class RankInput:
    """One side of a call on one rank.

    buffer: the memory that is compared after the call. expected: the bytes that a destination must then hold.
    large: compared instead of a buffer, where the tensor is too large for one; `expected` is then the tensor itself.
    """

    reference: TensorRef | None = None
    buffer: Buffer | None = None
    expected: torch.Tensor | None = None
    large: LargeTensor | None = None

    def faults(self, side: str, *, filled: bool) -> list[str]:
        """Describe what is wrong with the memory after the call; a `filled` destination has to hold `expected`."""
        memory = self.buffer if self.large is None else self.large
        if memory is None:
            return []
        differences = memory.differences(self.expected if filled else None)
        return [f"{side}: {sentence}" if filled else f"{side} was written: {sentence}" for sentence in differences]

    def was_replaced(self) -> bool:
        """Tell whether the implementation put another tensor into the caller's reference."""
        return self.reference is not None and self.reference.was_replaced()


def as_seen_by(case: Case, rank: int) -> Case:
    """Return the case as the rank calls it: a fault in placements gives it another layout."""
    fault = fault_of(case, rank)
    if fault is None or fault.what != "placements":
        return case
    side = replace(getattr(case, fault.side), placements=fault.value)
    return replace(case, src=side) if fault.side == "src" else replace(case, dst=side)


def make_inputs(case: Case, truth: Truth, rank: int, device: torch.device = CPU) -> tuple[RankInput, RankInput]:
    """Make the rank's source and destination.

    A rank in neither mesh passes one reference without a tensor as both.
    """
    if is_large(case):
        return make_large_inputs(case, truth, rank, device)
    src, dst = (make_side_input(case, truth, rank, name, device) for name in ("src", "dst"))
    fault = fault_of(case, rank)
    if fault is not None and fault.what == "alias":
        return alias_inputs(case, truth, rank, (src, dst), device)
    absent = fault is not None and fault.what == "absent"
    if src.reference is None and dst.reference is None and not absent:
        idle = RankInput(idle_reference(case, truth, fault, device))
        return idle, idle
    if case.src.memory == case.dst.memory == "interleaved" and src.buffer is not None and dst.buffer is not None:
        return interleave_inputs(src, dst, device)
    return src, dst


def make_large_inputs(case: Case, truth: Truth, rank: int, device: torch.device) -> tuple[RankInput, RankInput]:
    src = make_large_tensor(case, case.src, rank, truth.call, device, filled=True)
    dst = make_large_tensor(case, case.dst, rank, truth.call, device, filled=False)
    if src is None and dst is None:
        idle = RankInput(idle_reference(case, truth, None, device))
        return idle, idle
    return (
        RankInput() if src is None else RankInput(TensorRef(case.shape, truth.dtype, src.tensor), large=src),
        RankInput()
        if dst is None
        else RankInput(TensorRef(case.shape, truth.dtype, dst.tensor), None, dst.tensor, dst),
    )


def interleave_inputs(src: RankInput, dst: RankInput, device: torch.device) -> tuple[RankInput, RankInput]:
    """Put both sides into one memory, which the destination's buffer compares."""
    source, target = buffer_of(src), buffer_of(dst)
    tensor, buffer = interleave_tensors(source.content, target.content, target.tensor.dtype, device)
    src_reference = (
        None if src.reference is None else TensorRef(tuple(src.reference.shape), source.tensor.dtype, tensor)
    )
    dst_reference = (
        None if dst.reference is None else TensorRef(tuple(dst.reference.shape), buffer.tensor.dtype, buffer.tensor)
    )
    return RankInput(src_reference), RankInput(dst_reference, buffer, dst.expected)


def make_side_input(case: Case, truth: Truth, rank: int, name: str, device: torch.device) -> RankInput:
    side: Side = getattr(case, name)
    expected, dtype, shape = truth.shard(side, rank), truth.dtype, case.shape
    content = expected if expected is None or name == "src" else poisoned_bytes(expected, dtype)
    fault = fault_of(case, rank, name)
    what = None if fault is None else fault.what
    if fault is not None and what == "local_shape":
        content = filler_bytes(fault_sizes(fault), dtype)
    elif what == "stray":
        content = filler_bytes(case.shape, dtype)
    elif fault is not None and what == "global_shape":
        shape = fault_sizes(fault)
    elif fault is not None and what == "dtype" and expected is not None:
        dtype = getattr(torch, str(fault.value))
        content = filler_bytes(tuple(expected.shape[:-1]), dtype)
    if content is None or what == "absent":
        return RankInput()
    buffer = make_buffer(content, dtype, side.memory_of(rank), device)
    local = torch.empty_like(buffer.tensor, device="meta") if what == "device" else buffer.tensor
    return RankInput(TensorRef(shape, dtype, local), buffer, expected if name == "dst" else None)


def idle_reference(case: Case, truth: Truth, fault: Fault | None, device: torch.device) -> TensorRef:
    """Make the reference of a rank in neither mesh."""
    shape, dtype = case.shape, truth.dtype
    if fault is not None and fault.what == "global_shape":
        shape = fault_sizes(fault)
    if fault is not None and fault.what == "dtype":
        dtype = getattr(torch, str(fault.value))
    return TensorRef(shape, dtype, None, device)


def alias_inputs(
    case: Case, truth: Truth, rank: int, sides: tuple[RankInput, RankInput], device: torch.device
) -> tuple[RankInput, RankInput]:
    """Make a destination that starts at the source's first element; the source's buffer compares both."""
    source, target = map(buffer_of, sides)
    start = int(source.tensor.storage_offset())
    end = (start + target.tensor.numel()) * truth.dtype.itemsize
    source = allocate_buffer(source.content, truth.dtype, case.src.memory_of(rank), end, device)
    local = source.memory.view(truth.dtype)[start : end // truth.dtype.itemsize].view(target.tensor.shape)
    return (
        RankInput(TensorRef(case.shape, truth.dtype, source.tensor), source),
        RankInput(TensorRef(case.shape, truth.dtype, local)),
    )


#: The sides that a rank with a fault has to be in, for faults that need another side than their own.
NEEDED_SIDES: dict[str, tuple[str, ...]] = {
    "alias": ("src", "dst"),
    "local_shape": (),
    "stray": (),
    "placements": (),
}


def check_fault(case: Case) -> None:
    """Raise CaseError for a fault on a rank that passes nothing that could have it."""
    if case.fault is None:
        return
    for rank in case.fault.ranks:
        sides = [name for name in ("src", "dst") if rank in getattr(case, name).ranks]
        if case.fault.what == "stray" and case.fault.side in sides:
            raise CaseError("fault.ranks", f"ranks outside the {case.fault.side} mesh for 'stray'", rank)
        needed = NEEDED_SIDES.get(case.fault.what, (case.fault.side,))
        possible_when_idle = case.fault.what in {"absent", "global_shape", "dtype"} and not sides
        if not possible_when_idle and not set(needed) <= set(sides):
            raise CaseError("fault.ranks", f"ranks of the {' and '.join(needed)} mesh for {case.fault.what!r}", rank)


def fault_of(case: Case, rank: int, side: str | None = None) -> Fault | None:
    """Return the case's fault if this rank has it (and on this side, if one is named)."""
    fault = case.fault
    return fault if fault is not None and rank in fault.ranks and side in {None, fault.side} else None


def filler_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full((*shape, dtype.itemsize), 1 if dtype == torch.bool else POISON, dtype=torch.uint8)


def fault_sizes(fault: Fault) -> tuple[int, ...]:
    if not isinstance(fault.value, tuple):
        raise CaseError("fault.value", "a list of sizes", fault.value)
    return tuple(size for size in fault.value if isinstance(size, int))


def buffer_of(rank_input: RankInput) -> Buffer:
    if rank_input.buffer is None:
        raise CaseError("fault.ranks", "ranks of both meshes for 'alias'", "a rank outside")
    return rank_input.buffer
