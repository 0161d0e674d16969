"""One rank's plan, in closed form: its cost is the number of that rank's own overlaps, not the size of the world.

A *target* is what one rank receives before the fan-out: its shard, or its stripe of it. Both ends of a message find each
other by dividing positions by chunk sizes, and apply the same rule for who sends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import NamedTuple

from restripe.cuts import Chunk, Cuts, Interval, Intervals, Region, ravel, unravel
from restripe.layout import Layout, Partition, Place
from restripe.planning.plan import FanOut, FanOutKind, Message, RankPlan, Reason
from restripe.planning.shape import View, decide, striped, views


def plan(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int, turn: int = 0) -> RankPlan:
    """What `rank` does to move a tensor of this global shape from `src` to `dst`.

    Args:
        src, dst: the layouts; meshes of group ranks.
        shape: the global sizes, in elements.
        rank: the group rank to plan for; it may be in both meshes, in one, or in none.
        turn: the tensor's place in a submission. Of a region's H source holders, number (t + turn) mod H serves the t-th
            of its receivers, so that many tensors spread over all holders.

    Raises:
        InvalidPlacementError: a shard dim that the shape does not have.
    """
    return _Planner(Partition(src, shape), Partition(dst, shape), turn).plan(rank)


class _Hit(NamedTuple):
    """A chunk of the other side that meets an interval in one tensor dim.

    `offset` is what it adds to its rank's index in the mesh, `overlap` what both share, `band` the sum of both ordinals.
    Where the chunk is a source's, `number` is the target's place among the `total` targets that meet it.
    """

    offset: int
    overlap: Intervals
    band: int
    number: int = 0
    total: int = 1


@dataclass(frozen=True)
class _Planner:
    src: Partition
    dst: Partition
    turn: int

    @cached_property
    def reason(self) -> Reason:
        return decide(self.src, self.dst)

    @cached_property
    def targets(self) -> tuple[Cuts, ...]:
        """How the targets cut each tensor dim; a stripe is one more cut of dim 0, its coordinate the replica's number."""
        cuts = self.dst.cuts
        return (striped(cuts[0], self.dst.layout.replicas), *cuts[1:]) if self.reason is Reason.STRIPED else cuts

    def plan(self, rank: int) -> RankPlan:
        source, destination = self.src.region(rank), self.dst.region(rank)
        copies: tuple[Region, ...] = ()
        sends: list[Message] = []
        receives: list[Message] = []
        if self.reason is Reason.LOCAL:
            copies = (destination,) if destination is not None and _holds(destination) else ()
        elif self.reason is not Reason.EMPTY:
            receives = sorted(self._receives(rank), key=lambda message: message.peer)
            copies = tuple(message.region for message in receives if message.peer == rank)
            receives = [message for message in receives if message.peer != rank]
            sends = sorted(self._sends(rank), key=lambda message: message.peer)
        fan_out = self._fan_out(rank)
        return RankPlan(
            source,
            destination,
            copies,
            tuple(sends),
            tuple(receives),
            fan_out,
            self.reason,
            self._widths(),
            self._staging(),
        )

    def _receives(self, rank: int) -> Iterator[Message]:
        """What the rank's target takes from each source shard, its own included."""
        place, mine = self.dst.place(rank), self.src.place(rank)
        if place is None or (self.reason is not Reason.STRIPED and place.replica):
            return
        own = None if mine is None else self.src.shard_offset(mine.shard)
        intervals = [cuts.interval(at) for cuts, at in zip(self.targets, self._target(place), strict=True)]
        for hits in product(*(self._sources(dim, *interval) for dim, interval in enumerate(intervals))):
            shard = sum(hit.offset for hit in hits)
            region = tuple(hit.overlap for hit in hits)
            band = tuple(hit.band for hit in hits)
            if shard == own:
                yield Message(rank, region, band)
            else:
                number = ravel([hit.number for hit in hits], [hit.total for hit in hits])
                replica = (number + self.turn) % self.src.layout.replicas
                yield Message(self.src.mesh.ranks[shard + self.src.replica_offset(replica)], region, band)

    def _sends(self, rank: int) -> Iterator[Message]:
        """What the rank sends: to every target that meets its region, where it is this holder's turn."""
        place = self.src.place(rank)
        if place is None or not all(lo < hi for lo, hi in self._intervals(place)):
            return
        mine, holders = self.src.shard_offset(place.shard), self.src.layout.replicas
        takers = [self._takers(dim, lo, hi) for dim, (lo, hi) in enumerate(self._intervals(place))]
        totals = [total for total, _ in takers]
        for number in range((place.replica - self.turn) % holders, math.prod(totals), holders):
            hits = [taker(index) for index, (_, taker) in zip(unravel(number, totals), takers, strict=True)]
            receiver = self.dst.mesh.ranks[sum(hit.offset for hit in hits)]
            other = self.src.place(receiver)
            if other is None or self.src.shard_offset(other.shard) != mine:
                yield Message(receiver, tuple(hit.overlap for hit in hits), tuple(hit.band for hit in hits))

    def _intervals(self, place: Place) -> list[Interval]:
        """The source's interval in each tensor dim."""
        return [cuts.interval(at) for cuts, at in zip(self.src.cuts, place.shard, strict=True)]

    def _sources(self, dim: int, lo: int, hi: int) -> list[_Hit]:
        """The source chunks that a target's interval meets, each with the target's number among those that meet it."""
        if lo == hi:
            return []
        sources, targets, hits = self.src.cuts[dim], self.targets[dim], []
        mine, before = targets.ordinal(lo), sources.ordinal(lo)
        for number, chunk in enumerate(sources.meeting(lo, hi), start=before):
            first, last = targets.ordinal(chunk.lo), targets.ordinal(chunk.hi - 1)
            offset = self.src.chunk_offset(dim, chunk.coordinates)
            hits.append(_Hit(offset, _overlap(chunk, lo, hi), number + mine, mine - first, last - first + 1))
        return hits

    def _takers(self, dim: int, lo: int, hi: int) -> tuple[int, Callable[[int], _Hit]]:
        """How many target chunks a source's interval meets, and the one of each number."""
        targets, mine = self.targets[dim], self.src.cuts[dim].ordinal(lo)
        first, last = targets.ordinal(lo), targets.ordinal(hi - 1)

        @cache
        def taker(number: int) -> _Hit:
            chunk = targets.nth(first + number)
            offset = self._target_offset(dim, chunk.coordinates)
            return _Hit(offset, _overlap(chunk, lo, hi), mine + first + number)

        return last - first + 1, taker

    def _target(self, place: Place) -> tuple[tuple[int, ...], ...]:
        """The target coordinate of a destination place."""
        if self.reason is not Reason.STRIPED:
            return place.shard
        return ((*place.shard[0], place.replica), *place.shard[1:])

    def _target_offset(self, dim: int, coordinates: tuple[int, ...]) -> int:
        """What a target chunk adds to its receiver's index in the mesh; a stripe is received by its replica."""
        if dim or self.reason is not Reason.STRIPED:
            return self.dst.chunk_offset(dim, coordinates)
        return self.dst.chunk_offset(dim, coordinates[:-1]) + self.dst.replica_offset(coordinates[-1])

    def _fan_out(self, rank: int) -> FanOut | None:
        place, region = self.dst.place(rank), self.dst.region(rank)
        if (
            place is None
            or region is None
            or self.dst.layout.replicas == 1
            or self.reason is Reason.LOCAL
            or not _holds(region)
        ):
            return None
        shard = self.dst.shard_offset(place.shard)
        members = tuple(self.dst.mesh.ranks[shard + offset] for offset in self.dst.replica_offsets)
        kind = FanOutKind.ALL_GATHER if self.reason is Reason.STRIPED else FanOutKind.BROADCAST
        return FanOut(kind, members, place.replica)

    def _widths(self) -> tuple[tuple[int, int], ...]:
        pairs = zip(self.src.cuts, self.targets, strict=True)
        return tuple((into.most(out.longest), out.most(into.longest)) for out, into in pairs)

    def _staging(self) -> int:
        """A bound on the elements that any rank packs and unpacks, by the row-major geometry of the layouts."""
        if self.reason in (Reason.EMPTY, Reason.LOCAL):
            return 0
        found = views(self.src.cuts, self.dst.cuts, self.dst.layout.replicas if self.reason is Reason.STRIPED else 1)
        packs, unpacks = (View.BROKEN in side for side in zip(*found, strict=True))
        packed = math.prod(cuts.longest for cuts in self.src.cuts) if packs else 0
        return packed + (math.prod(cuts.longest for cuts in self.targets) if unpacks else 0)


def _overlap(chunk: Chunk, lo: int, hi: int) -> Intervals:
    return ((max(chunk.lo, lo), min(chunk.hi, hi)),)


def _holds(region: Region) -> bool:
    """Whether the region has any element."""
    return all(region)
