"""What a reshard must give, short enough to be checked by eye.

Every rank gathers the whole tensor, one broadcast a source shard, and keeps the slice that its destination layout names.
Shards are cut by torch.chunk itself. Copies between tensors of one dtype keep every bit. Nothing outlives a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NoReturn, Protocol

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

__all__ = ["GoldenError", "reshard"]
__version__ = "0.1.0"


class GoldenError(ValueError):
    """A call that is refused before anything is sent or written; `kind` is the specification's word for the defect."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Communicator(Protocol):
    """What golden needs of the transport protocol."""

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
        """Every rank of the mesh with its coordinate, row-major."""
        for coordinate in product(*map(range, self.ranks.shape)):
            yield int(self.ranks[coordinate]), coordinate

    def shard(self, whole: torch.Tensor, coordinate: tuple[int, ...]) -> torch.Tensor:
        """The view of the global tensor that the rank at a coordinate holds; mesh dims cut from left to right."""
        for placement, parts, index in zip(self.placements, self.ranks.shape, coordinate, strict=True):
            if isinstance(placement, Shard):
                pieces = whole.chunk(parts, placement.dim)
                whole = pieces[index] if index < len(pieces) else whole.narrow(placement.dim, 0, 0)
        return whole

    def is_replica(self, coordinate: tuple[int, ...]) -> bool:
        """Whether an earlier rank of the mesh holds the same shard."""
        return any(index > 0 and type(p) is Replicate for index, p in zip(coordinate, self.placements, strict=True))


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

    A tensor has a global `shape`, a `dtype` and this rank's `_local_tensor`. A side that a rank does not have is None; a
    rank without any passes as both a tensor whose `_local_tensor` is None. Meshes hold ranks of the group, placements
    are Shard or Replicate. process_group: has a `communicator`, or is one. Raises GoldenError on the faulty rank.
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
    """The global tensor, on every rank."""
    whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=communicator.device)
    for rank, coordinate in src.members():
        shard = src.shard(whole, coordinate)
        if shard.numel() == 0 or src.is_replica(coordinate):
            continue
        buffer = torch.empty(shard.shape, dtype=tensor.dtype, device=communicator.device)
        if rank == communicator.rank and src.local is not None:
            buffer.copy_(src.local)
        communicator.broadcast(buffer.flatten().view(torch.uint8), rank, stream)
        shard.copy_(buffer)
    return whole


def check(src: Side, dst: Side, communicator: Communicator) -> None:
    """Refuse a bad call; the rules stand in the specification's order, and the first that is broken wins."""
    rules = (check_kind, check_dim, check_mesh, check_presence, check_device, check_dtype, check_shape, check_aliasing)
    for rule in rules:
        for side, other in ((src, dst), (dst, src)):
            rule(side, other, communicator)


def refuse(kind: str, rank: int, side: Side, expected: object, actual: object) -> NoReturn:
    """Raise the error of a kind, in the one form that all messages have."""
    raise GoldenError(kind, f"rank {rank}, {side.name}: expected {expected}, got {actual}; correct the call there")


def check_kind(side: Side, _other: Side, communicator: Communicator) -> None:
    for placement in side.placements:
        if type(placement) not in {Shard, Replicate}:
            refuse("placement", communicator.rank, side, "Shard or Replicate", placement)


def check_dim(side: Side, other: Side, communicator: Communicator) -> None:
    tensor = other.tensor if side.tensor is None else side.tensor
    ndim = None if tensor is None else len(tensor.shape)
    for placement in side.placements:
        if type(placement) is Shard and ndim is not None and not -ndim <= placement.dim < ndim:
            refuse("placement", communicator.rank, side, f"a shard dim of a tensor of {ndim} dims", placement)


def check_mesh(side: Side, _other: Side, communicator: Communicator) -> None:
    ranks = side.ranks.flatten().tolist()
    if len(side.placements) != side.ranks.ndim:
        refuse("layout", communicator.rank, side, f"{side.ranks.ndim} placements, one a mesh dim", len(side.placements))
    if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(communicator.size)):
        refuse("layout", communicator.rank, side, f"distinct ranks below {communicator.size}", ranks)


def check_presence(side: Side, other: Side, communicator: Communicator) -> None:
    if side.tensor is None and other.tensor is None:
        refuse("missing", communicator.rank, side, "a tensor, or a reference that names the shape", None)
    inside = communicator.rank in side.ranks.flatten().tolist()
    if inside == (side.local is None):
        expected = "a local tensor, as the mesh has this rank" if inside else "None, as the mesh lacks this rank"
        refuse("missing", communicator.rank, side, expected, None if inside else "a local tensor")


def check_device(side: Side, _other: Side, communicator: Communicator) -> None:
    if side.local is not None and side.local.device != communicator.device:
        refuse("device", communicator.rank, side, communicator.device, side.local.device)


def check_dtype(side: Side, other: Side, communicator: Communicator) -> None:
    for tensor in (side.local, other.tensor):
        if side.tensor is not None and tensor is not None and tensor.dtype != side.tensor.dtype:
            refuse("dtype", communicator.rank, side, side.tensor.dtype, tensor.dtype)


def check_shape(side: Side, other: Side, communicator: Communicator) -> None:
    if side.tensor is not None and other.tensor is not None and side.tensor.shape != other.tensor.shape:
        refuse("shape", communicator.rank, side, f"the {other.name}'s {tuple(other.tensor.shape)}", side.tensor.shape)
    for rank, coordinate in side.members():
        if rank == communicator.rank and side.local is not None:
            expected = side.shard(torch.empty(side.tensor.shape, device="meta"), coordinate).shape
            if side.local.shape != expected:
                refuse("shape", rank, side, f"a local tensor of {tuple(expected)}", tuple(side.local.shape))


def check_aliasing(side: Side, other: Side, communicator: Communicator) -> None:
    """No element of the destination may share memory with another one, nor with one of the source."""
    if side.name == "destination" and side.local is not None:
        starts = element_starts(side.local)
        if other.local is not None:
            starts = torch.cat([starts, torch.unique(element_starts(other.local))])
        if bool((starts.sort().values.diff() < side.local.element_size()).any()):
            refuse("aliasing", communicator.rank, side, "elements apart, also from the source's", "shared memory")


def element_starts(local: torch.Tensor) -> torch.Tensor:
    """The byte address of every element."""
    starts = torch.tensor(local.data_ptr())
    for size, stride in zip(local.shape, local.stride(), strict=True):
        starts = starts.unsqueeze(-1) + torch.arange(size) * stride * local.element_size()
    return starts.flatten()
