"""Routes of a hand-written move: sender, receiver and part, from the boundaries of torch.chunk and every pair of ranks.

Nothing here knows restripe's planner, so what is timed beside restripe, and counted beside it, does not follow from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import torch
from torch.distributed.tensor import Shard

from restripe import Layout
from restripe.analysis.mapping import Move
from restripe.analysis.simulation import simulate
from restripe.analysis.traffic import loads
from restripe.bench.transfers import Row

SMALL_SHARD = 2**13  # bytes; a shard of no more is not worth a collective call
Box = tuple[tuple[int, int], ...]  # for each tensor dim the start index and the one after the last


class ReplicaStrategy(StrEnum):
    """The way a shard comes to its replicas: each receives a stripe, or one of them receives all of it."""

    STRIPES = "stripes"
    REPRESENTATIVE = "representative"


class Transfer(NamedTuple):
    """A part of a tensor that one rank gives to another, or to itself."""

    sender: int
    receiver: int
    box: Box


class Replication(NamedTuple):
    """A collective after the transfers: member number i gives part number i to all others, in mesh order.

    Members without a part only receive.
    """

    members: tuple[int, ...]
    parts: tuple[Box, ...]

    @property
    def is_even(self) -> bool:
        """True where an all-gather does it."""
        return len(self.parts) == len(self.members) and len({box_numel(part) for part in self.parts}) == 1


class Route(NamedTuple):
    """The transfers of one tensor, and what follows them."""

    transfers: list[Transfer]
    replications: list[Replication]


class RankTraffic(NamedTuple):
    """Bytes that go from one rank to another before replicas share what they have: in all, and the most into one rank."""

    total: int
    busiest: int


def shard_box(side: Layout, shape: Sequence[int], rank: int) -> Box:
    """Return the box that a rank of the mesh holds."""
    bounds = [(0, size) for size in shape]
    coordinates = side.mesh.coordinates(rank) or ()
    for placement, parts, coordinate in zip(side.placements, side.mesh.shape, coordinates, strict=True):
        if isinstance(placement, Shard):
            bounds[placement.dim] = chunk_bounds(*bounds[placement.dim], parts, coordinate)
    return tuple(bounds)


def chunk_bounds(low: int, high: int, parts: int, number: int) -> tuple[int, int]:
    """Return one of the chunks that torch.chunk makes of indices `low` to `high`; those after its last are empty."""
    step = -(-(high - low) // parts)
    return min(low + number * step, high), min(low + (number + 1) * step, high)


def box_numel(box: Box) -> int:
    """Return the elements of a box."""
    return math.prod(high - low for low, high in box)


def holders(side: Layout, shape: Sequence[int]) -> dict[Box, list[int]]:
    """Return the ranks that hold each box, in mesh order; every shard must have elements."""
    ranks_of: dict[Box, list[int]] = {}
    for rank in side.mesh.ranks:
        ranks_of.setdefault(shard_box(side, shape, rank), []).append(rank)
    return ranks_of


def route(move: Move, strategy: ReplicaStrategy, rotation: int = 0) -> Route:
    """Return the route of a tensor.

    Args:
        rotation: the tensor's number in the row: holders of the same box send in turn, starting with another one.
    """
    owners, times_sent = holders(move.src, move.shape), Counter[Box]()
    result = Route([], [])
    for shard, members in holders(move.dst, move.shape).items():
        parts = [shard] * len(members)
        replicated = len(members) > 1
        small = box_numel(shard) * move.dtype.itemsize <= SMALL_SHARD
        if replicated and (strategy is ReplicaStrategy.REPRESENTATIVE or not small):
            parts = list(_replica_parts(shard, len(members), strategy))
            result.replications.append(Replication(tuple(members), tuple(parts)))
        for receiver, part in zip(members, parts, strict=False):
            for owned, ranks in owners.items():
                overlap = _intersection(owned, part)
                if not box_numel(overlap):
                    continue
                sender = receiver
                if receiver not in ranks:
                    sender = ranks[(times_sent[owned] + rotation) % len(ranks)]
                    times_sent[owned] += 1
                result.transfers.append(Transfer(sender, receiver, overlap))
    return result


def _replica_parts(shard: Box, count: int, strategy: ReplicaStrategy) -> Iterator[Box]:
    """Yield what the members receive: the representative all of it, or each a chunk of its rows."""
    if strategy is ReplicaStrategy.REPRESENTATIVE:
        yield shard
        return
    for number in range(count):
        yield (chunk_bounds(*shard[0], count, number), *shard[1:])


def _intersection(box: Box, other: Box) -> Box:
    """Return what both boxes have; where they do not meet it is empty."""
    bounds = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, other, strict=True)]
    return tuple((low, max(low, high)) for low, high in bounds)


def box_view(tensor: torch.Tensor, shard: Box, part: Box) -> torch.Tensor:
    """Return the part of a shard's tensor."""
    return tensor[tuple(slice(low - start, high - start) for (start, _), (low, high) in zip(shard, part, strict=True))]


def staging_bytes(row: Row) -> int:
    """Return the most bytes that any rank has to pack and unpack in a row, since they are not contiguous in its shard."""
    staged = Counter[int]()
    for number, move in enumerate(row.tensors):
        for sender, receiver, part in route(move, ReplicaStrategy.STRIPES, number).transfers:
            for rank, side in ((sender, move.src), (receiver, move.dst)):
                if sender != receiver and not _is_contiguous(shard_box(side, move.shape, rank), part):
                    staged[rank] += box_numel(part) * move.dtype.itemsize
    return max(staged.values(), default=0)


def _is_contiguous(shard: Box, part: Box) -> bool:
    sizes = [high - low for low, high in shard]
    return box_view(torch.empty(sizes, device="meta"), shard, part).is_contiguous()


def row_traffic(row: Row) -> dict[str, RankTraffic]:
    """Return restripe's traffic, counted in the plans of all ranks, and that of representatives."""
    received = {
        "restripe": loads(simulate(row.tensors)["all"].sent)[1],
        ReplicaStrategy.REPRESENTATIVE.value: representative_traffic(row),
    }
    return {name: RankTraffic(sum(c.values()), max(c.values(), default=0)) for name, c in received.items()}


def representative_traffic(row: Row) -> Counter[int]:
    """Return the bytes that each rank receives where replicas get all from a representative."""
    received = Counter[int]()
    for number, move in enumerate(row.tensors):
        for sender, receiver, part in route(move, ReplicaStrategy.REPRESENTATIVE, number).transfers:
            received[receiver] += (sender != receiver) * box_numel(part) * move.dtype.itemsize
    return received
