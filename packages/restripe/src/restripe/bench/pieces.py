"""Who sends what to whom in a hand-written move: from the boundaries of torch.chunk alone, every pair of ranks looked at.

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

from restripe.analysis.mapping import Move
from restripe.bench.rows import Row
from restripe.layout.mesh import Layout

SMALL = 2**13  # bytes; a shard of no more is not worth a collective call
Box = tuple[tuple[int, int], ...]  # for each tensor dim the first index and the one after the last


class Way(StrEnum):
    """How the replicas of a destination shard come by it: each receives a stripe, or the first receives all of it."""

    STRIPES = "stripes"
    REPRESENTATIVE = "representative"


class Piece(NamedTuple):
    """A part of a tensor that one rank gives to another, or to itself."""

    sender: int
    receiver: int
    box: Box


class Rebuild(NamedTuple):
    """What follows: member number i gives part number i to all others, in mesh order; those without a part only take."""

    members: tuple[int, ...]
    parts: tuple[Box, ...]

    @property
    def even(self) -> bool:
        """Whether an all-gather does it."""
        return len(self.parts) == len(self.members) and len({numel(part) for part in self.parts}) == 1


class Route(NamedTuple):
    """All of one tensor."""

    pieces: list[Piece]
    rebuilds: list[Rebuild]


def box(layout: Layout, shape: Sequence[int], rank: int) -> Box:
    """What a rank of the mesh holds."""
    found = [(0, size) for size in shape]
    for placement, parts, place in zip(
        layout.placements, layout.mesh.shape, layout.mesh.coordinates(rank) or (), strict=True
    ):
        if isinstance(placement, Shard):
            found[placement.dim] = chunk(*found[placement.dim], parts, place)
    return tuple(found)


def chunk(low: int, high: int, parts: int, place: int) -> tuple[int, int]:
    """One of the chunks that torch.chunk makes of indices `low` to `high`; those after its last are empty."""
    step = -(-(high - low) // parts)
    return min(low + place * step, high), min(low + (place + 1) * step, high)


def numel(part: Box) -> int:
    """The elements of a box."""
    return math.prod(high - low for low, high in part)


def holders(layout: Layout, shape: Sequence[int]) -> dict[Box, list[int]]:
    """The ranks that hold each box, in mesh order; every shard must have elements."""
    found: dict[Box, list[int]] = {}
    for rank in layout.mesh.ranks:
        found.setdefault(box(layout, shape, rank), []).append(rank)
    return found


def route(tensor: Move, way: Way, turn: int = 0) -> Route:
    """How a tensor goes; `turn` is its place in the row: who holds the same sends in turns."""
    owners, served = holders(tensor.src, tensor.shape), Counter[Box]()
    found = Route([], [])
    for shard, members in holders(tensor.dst, tensor.shape).items():
        wanted = [shard] * len(members)
        if len(members) > 1 and (way is Way.REPRESENTATIVE or numel(shard) * tensor.dtype.itemsize > SMALL):
            wanted = list(_parts(shard, len(members), way))
            found.rebuilds.append(Rebuild(tuple(members), tuple(wanted)))
        for receiver, part in zip(members, wanted, strict=False):
            for owned, ranks in owners.items():
                common = _common(owned, part)
                if receiver in ranks:
                    sender = receiver
                else:
                    sender = ranks[(served[owned] + turn) % len(ranks)]
                    served[owned] += bool(numel(common))
                if numel(common):
                    found.pieces.append(Piece(sender, receiver, common))
    return found


def _parts(shard: Box, count: int, way: Way) -> Iterator[Box]:
    """What the members receive: the first all of it, or each a chunk of its rows."""
    if way is Way.REPRESENTATIVE:
        yield shard
        return
    for place in range(count):
        yield (chunk(*shard[0], count, place), *shard[1:])


def _common(one: Box, other: Box) -> Box:
    """What both have; where they do not meet it is empty."""
    bounds = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)]
    return tuple((low, max(low, high)) for low, high in bounds)


def view(tensor: torch.Tensor, shard: Box, part: Box) -> torch.Tensor:
    """The part of a shard's tensor."""
    return tensor[tuple(slice(low - start, high - start) for (start, _), (low, high) in zip(shard, part, strict=True))]


def staging(row: Row) -> int:
    """The most bytes that any rank has to pack and unpack in a row, since they do not lie together in its shard."""
    staged = Counter[int]()
    for turn, tensor in enumerate(row.tensors):
        for sender, receiver, part in route(tensor, Way.STRIPES, turn).pieces:
            for rank, layout in ((sender, tensor.src), (receiver, tensor.dst)):
                if sender != receiver and not _together(box(layout, tensor.shape, rank), part):
                    staged[rank] += numel(part) * tensor.dtype.itemsize
    return max(staged.values(), default=0)


def _together(shard: Box, part: Box) -> bool:
    """Whether a part lies in one stretch of its shard."""
    sizes = [high - low for low, high in shard]
    return view(torch.empty(sizes, device="meta"), shard, part).is_contiguous()
