"""The reference reshard, short enough to be checked by eye.

Every rank gathers the whole tensor, with one broadcast for each source shard, and keeps its slice of it.
Shards are cut by torch.chunk and torch.split. Copies within one dtype keep every bit. Nothing outlives a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NoReturn, Protocol

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard, _StridedShard

__all__ = ["GoldenError", "reshard"]
__version__ = "0.1.0"


class GoldenError(ValueError):
    """A call that is refused before anything is sent or written; `kind` is the specification's word for the defect."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Communicator(Protocol):
    """The members of the transport protocol that golden uses."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    def broadcast(self, buffer: torch.Tensor, root: int, stream: torch.cuda.Stream | None = None) -> None: ...


@dataclass(frozen=True)
class Side:
    """The source or the destination of a call."""

    name: str
    tensor: Any
    ranks: torch.Tensor
    placements: tuple[Placement, ...]

    @property
    def local(self) -> torch.Tensor | None:
        """This rank's shard, waited for; detached, as a Parameter or an inference tensor cannot be written directly."""
        local = None if self.tensor is None else self.tensor._local_tensor  # noqa: SLF001 - the name that callers use
        if isinstance(local, AsyncCollectiveTensor):
            local = local.trigger_wait()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return None if local is None else local.detach()

    def members(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield every rank of the mesh with its coordinate, in row-major order."""
        for coordinate in product(*map(range, self.ranks.shape)):
            yield int(self.ranks[coordinate]), coordinate

    def shard(self, whole: torch.Tensor, coordinate: tuple[int, ...]) -> torch.Tensor:
        """Return the shard of the global tensor at a coordinate of the mesh; mesh dims cut from left to right."""
        for placement, parts, index in zip(self.placements, self.ranks.shape, coordinate, strict=True):
            if type(placement) is not Replicate:
                dim: int = placement.dim  # type: ignore[attr-defined]  # all others have one
                chunks = [chunk(piece, parts, index, dim) for piece in pieces(whole, placement)]
                whole = torch.cat(chunks, dim) if len(chunks) > 1 else chunks[0]
        return whole

    def is_replica(self, coordinate: tuple[int, ...]) -> bool:
        """Return whether an earlier rank of the mesh holds the same shard."""
        return any(index > 0 and type(p) is Replicate for index, p in zip(coordinate, self.placements, strict=True))


def segments(placement: Placement) -> tuple[int, ...] | None:
    """Return the sizes of a segmented placement, any type with `dim` and `sizes`; None for other placements."""
    unsegmented = type(placement) in {Shard, Replicate, _StridedShard} or not hasattr(placement, "dim")
    return None if unsegmented else getattr(placement, "sizes", None)


def pieces(whole: torch.Tensor, placement: Placement) -> Sequence[torch.Tensor]:
    """Return the parts that a placement shards one by one: segments, chunks by split factor, or the whole."""
    sizes = segments(placement)
    if sizes is not None:
        return whole.split(list(sizes), placement.dim)  # type: ignore[attr-defined, no-any-return, no-untyped-call]
    return whole.chunk(int(placement.split_factor), placement.dim) if type(placement) is _StridedShard else (whole,)


def chunk(piece: torch.Tensor, parts: int, index: int, dim: int) -> torch.Tensor:
    """Return part `index` of torch.chunk, or an empty one: torch.chunk itself leaves out empty parts at the end."""
    chunks = piece.chunk(parts, dim)
    return chunks[index] if index < len(chunks) else piece.narrow(dim, 0, 0)


def reshard(
    src_tensor: Any,
    src_mesh: Any,
    src_placement: Sequence[Placement],
    dst_tensor: Any,
    dst_mesh: Any,
    dst_placement: Sequence[Placement],
    process_group: Any,
    stream: torch.cuda.Stream | None = None,
) -> None:
    """Fill every destination rank's local tensor with its slice of the global tensor, bit for bit. Collective.

    A tensor has a global `shape`, a `dtype` and this rank's `_local_tensor`. A rank outside one mesh passes None for
    that side; a rank outside both passes for each a tensor whose `_local_tensor` is None. Meshes hold ranks of the group.
    Placements are Shard, Replicate, _StridedShard, or segmented: with a `dim`, and the `sizes` of its segments.
    The process group has a `communicator`, or is one. Raise GoldenError on a rank whose call is faulty.
    """
    communicator: Communicator = getattr(process_group, "communicator", process_group)
    src = Side("source", src_tensor, src_mesh.mesh.cpu(), tuple(src_placement))
    dst = Side("destination", dst_tensor, dst_mesh.mesh.cpu(), tuple(dst_placement))
    with torch.cuda.stream(stream):
        check(src, dst, communicator)
        whole = gather(src, dst_tensor if src_tensor is None else src_tensor, communicator, stream)
        for rank, coordinate in dst.members():
            if rank == communicator.rank and dst.local is not None:
                dst.local.copy_(dst.shard(whole, coordinate))


def gather(src: Side, tensor: Any, communicator: Communicator, stream: torch.cuda.Stream | None) -> torch.Tensor:
    """Return the global tensor on every rank: each source shard is broadcast once, by the first rank that holds it."""
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=communicator.device)
    elements = whole.flatten().view(torch.uint8).view(whole.numel(), whole.itemsize)
    numbers = torch.arange(whole.numel(), device=whole.device).view(whole.shape)
    for rank, coordinate in src.members():
        shard = src.shard(numbers, coordinate)
        if shard.numel() == 0 or src.is_replica(coordinate):
            continue
        buffer = torch.empty(shard.shape, dtype=tensor.dtype, device=communicator.device)
        if rank == communicator.rank and src.local is not None:
            buffer.copy_(src.local)
        communicator.broadcast(buffer.flatten().view(torch.uint8), rank, stream)
        elements[shard.flatten()] = buffer.flatten().view(torch.uint8).view(shard.numel(), whole.itemsize)
    return whole


def check(src: Side, dst: Side, communicator: Communicator) -> None:
    """Refuse a bad call. The rules stand in the specification's order; the first that is broken decides the kind."""
    placements = (check_kind, check_dim, check_pieces)
    for rule in (*placements, check_mesh, check_presence, check_device, check_dtype, check_shape, check_aliasing):
        for side, opposite in ((src, dst), (dst, src)):
            rule(side, opposite, communicator)


def refuse(kind: str, rank: int, side: Side, expected: object, actual: object) -> NoReturn:
    """Raise the GoldenError of a kind; all messages have one form."""
    raise GoldenError(kind, f"rank {rank}, {side.name}: expected {expected}, got {actual}; correct the call there")


def check_kind(side: Side, _opposite: Side, communicator: Communicator) -> None:
    for placement in side.placements:
        if type(placement) not in {Shard, Replicate, _StridedShard} and segments(placement) is None:
            refuse("placement", communicator.rank, side, "Shard, Replicate, a strided or a segmented shard", placement)


def check_dim(side: Side, opposite: Side, communicator: Communicator) -> None:
    tensor = opposite.tensor if side.tensor is None else side.tensor
    ndim = None if tensor is None else len(tensor.shape)
    for placement in side.placements:
        dim = getattr(placement, "dim", None)
        if dim is not None and ndim is not None and not -ndim <= dim < ndim:
            refuse("placement", communicator.rank, side, f"a shard dim of a tensor of {ndim} dims", placement)


def check_pieces(side: Side, opposite: Side, communicator: Communicator) -> None:
    tensor = opposite.tensor if side.tensor is None else side.tensor
    ndim = 1 if tensor is None else len(tensor.shape)
    dims = [placement.dim % ndim if hasattr(placement, "dim") else None for placement in side.placements]
    for mesh_dim, placement in enumerate(side.placements):
        sizes = segments(placement)
        if type(placement) is _StridedShard and placement.split_factor < 1:
            refuse("placement", communicator.rank, side, "a split factor of at least 1", placement)
        if sizes is not None and (len(sizes) == 0 or min(sizes) < 0):
            refuse("placement", communicator.rank, side, "one or more segments of at least 0 elements", placement)
        if sizes is not None and tensor is not None and dims[mesh_dim] in dims[:mesh_dim]:
            refuse("placement", communicator.rank, side, "segments of a dim that no mesh dim before shards", placement)


def check_mesh(side: Side, _opposite: Side, communicator: Communicator) -> None:
    ranks = side.ranks.flatten().tolist()
    if len(side.placements) != side.ranks.ndim:
        refuse("layout", communicator.rank, side, f"{side.ranks.ndim} placements, one a mesh dim", len(side.placements))
    if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(communicator.size)):
        refuse("layout", communicator.rank, side, f"distinct ranks below {communicator.size}", ranks)


def check_presence(side: Side, opposite: Side, communicator: Communicator) -> None:
    if side.tensor is None and opposite.tensor is None:
        refuse("missing", communicator.rank, side, "a tensor, or a reference that names the shape", None)
    inside = communicator.rank in side.ranks.flatten().tolist()
    if inside == (side.local is None):
        expected = "a local tensor, as the mesh has this rank" if inside else "None, as the mesh lacks this rank"
        refuse("missing", communicator.rank, side, expected, None if inside else "a local tensor")


def check_device(side: Side, _opposite: Side, communicator: Communicator) -> None:
    if side.local is not None and side.local.device != communicator.device:
        refuse("device", communicator.rank, side, communicator.device, side.local.device)


def check_dtype(side: Side, opposite: Side, communicator: Communicator) -> None:
    for tensor in (side.local, opposite.tensor):
        if side.tensor is not None and tensor is not None and tensor.dtype != side.tensor.dtype:
            refuse("dtype", communicator.rank, side, side.tensor.dtype, tensor.dtype)


def check_shape(side: Side, opposite: Side, communicator: Communicator) -> None:
    if side.tensor is not None and opposite.tensor is not None and side.tensor.shape != opposite.tensor.shape:
        opposite_shape = f"the {opposite.name}'s {tuple(opposite.tensor.shape)}"
        refuse("shape", communicator.rank, side, opposite_shape, side.tensor.shape)
    tensor = opposite.tensor if side.tensor is None else side.tensor
    for placement in side.placements:
        sizes = segments(placement)
        if sizes is not None and sum(sizes) != (length := tensor.shape[placement.dim]):  # type: ignore[attr-defined]
            refuse("shape", communicator.rank, side, f"segments of {length} elements in all", placement)
    for rank, coordinate in side.members():
        if rank == communicator.rank and side.local is not None:
            expected = side.shard(torch.empty(side.tensor.shape, device="meta"), coordinate).shape
            if side.local.shape != expected:
                refuse("shape", rank, side, f"a local tensor of {tuple(expected)}", tuple(side.local.shape))


def check_aliasing(side: Side, opposite: Side, communicator: Communicator) -> None:
    """Refuse a destination whose elements share memory with each other or with elements of the source."""
    if side.name == "destination" and side.local is not None:
        starts = element_starts(side.local)
        if opposite.local is not None:
            starts = torch.cat([starts, torch.unique(element_starts(opposite.local))])
        if bool((starts.sort().values.diff() < side.local.element_size()).any()):
            refuse("aliasing", communicator.rank, side, "elements apart, also from the source's", "shared memory")


def element_starts(local: torch.Tensor) -> torch.Tensor:
    """Return the byte address of every element."""
    starts = torch.tensor(local.data_ptr())
    for size, stride in zip(local.shape, local.stride(), strict=True):
        starts = starts.unsqueeze(-1) + torch.arange(size) * stride * local.element_size()
    return starts.flatten()
