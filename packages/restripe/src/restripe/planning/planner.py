"""One rank's plan, in closed form: its cost is the number of that rank's own overlaps, not the size of the world.

A *target* is what one rank receives before the fan-out: its shard, or its stripe of it. Both ends of a message find each
other by dividing positions by chunk sizes, and apply the same rule for who sends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from restripe.cuts import Chunk, Cuts, Region, ravel
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
            self._operations(),
            self._staging(),
        )

    def _receives(self, rank: int) -> Iterator[Message]:
        """What the rank's target takes from each source shard, its own included."""
        place, mine = self.dst.place(rank), self.src.place(rank)
        if place is None or (self.reason is not Reason.STRIPED and place.replica):
            return
        target = self._target(place)
        intervals = [cuts.interval(at) for cuts, at in zip(self.targets, target, strict=True)]
        for chunks in product(*(cuts.meeting(lo, hi) for cuts, (lo, hi) in zip(self.src.cuts, intervals, strict=True))):
            shard = tuple(chunk.coordinates for chunk in chunks)
            own = mine is not None and mine.shard == shard
            holder = rank if own else self.src.rank_of(shard, self._holder(self._number(chunks, intervals)))
            yield Message(holder, _overlap(chunks, intervals))

    def _sends(self, rank: int) -> Iterator[Message]:
        """What the rank sends: for every target that meets its region, in order, if it is this holder's turn."""
        place = self.src.place(rank)
        if place is None:
            return
        intervals = [cuts.interval(at) for cuts, at in zip(self.src.cuts, place.shard, strict=True)]
        meeting = product(*(cuts.meeting(lo, hi) for cuts, (lo, hi) in zip(self.targets, intervals, strict=True)))
        for number, chunks in enumerate(meeting):
            if self._holder(number) != place.replica:
                continue
            receiver = self._receiver(tuple(chunk.coordinates for chunk in chunks))
            other = self.src.place(receiver)
            if other is None or other.shard != place.shard:
                yield Message(receiver, _overlap(chunks, intervals))

    def _holder(self, number: int) -> int:
        """Which replica of a source shard serves its receiver number `number`."""
        return (number + self.turn) % self.src.layout.replicas

    def _number(self, sources: tuple[Chunk, ...], target: list[tuple[int, int]]) -> int:
        """The target's number among those that meet the source shard, in row-major order."""
        places, counts = [], []
        for cuts, source, (lo, _) in zip(self.targets, sources, target, strict=True):
            first = cuts.ordinal(source.lo)
            places.append(cuts.ordinal(lo) - first)
            counts.append(cuts.ordinal(source.hi - 1) - first + 1)
        return ravel(places, counts)

    def _target(self, place: Place) -> tuple[tuple[int, ...], ...]:
        """The target coordinate of a destination place."""
        if self.reason is not Reason.STRIPED:
            return place.shard
        return ((*place.shard[0], place.replica), *place.shard[1:])

    def _receiver(self, target: tuple[tuple[int, ...], ...]) -> int:
        """The rank that receives at a target coordinate: a stripe's replica, or the representative."""
        if self.reason is not Reason.STRIPED:
            return self.dst.rank_of(target, 0)
        return self.dst.rank_of((target[0][:-1], *target[1:]), target[0][-1])

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
        members = tuple(self.dst.rank_of(place.shard, replica) for replica in range(self.dst.layout.replicas))
        kind = FanOutKind.ALL_GATHER if self.reason is Reason.STRIPED else FanOutKind.BROADCAST
        return FanOut(kind, members, place.replica)

    def _operations(self) -> int:
        """A bound on the sends and receives of any rank."""
        if self.reason in (Reason.EMPTY, Reason.LOCAL):
            return 0
        sends = math.prod(into.most(out.longest) for out, into in zip(self.src.cuts, self.targets, strict=True))
        receives = math.prod(out.most(into.longest) for out, into in zip(self.src.cuts, self.targets, strict=True))
        return sends + receives

    def _staging(self) -> int:
        """A bound on the elements that any rank packs and unpacks, by the row-major geometry of the layouts."""
        if self.reason in (Reason.EMPTY, Reason.LOCAL):
            return 0
        found = views(self.src.cuts, self.dst.cuts, self.dst.layout.replicas if self.reason is Reason.STRIPED else 1)
        packed = (
            math.prod(cuts.longest for cuts in self.src.cuts) if any(view is View.BROKEN for view, _ in found) else 0
        )
        unpacked = (
            math.prod(cuts.longest for cuts in self.targets) if any(view is View.BROKEN for _, view in found) else 0
        )
        return packed + unpacked


def _overlap(chunks: tuple[Chunk, ...], intervals: list[tuple[int, int]]) -> Region:
    return tuple(((max(chunk.lo, lo), min(chunk.hi, hi)),) for chunk, (lo, hi) in zip(chunks, intervals, strict=True))


def _holds(region: Region) -> bool:
    """Whether the region has any element."""
    return all(region)
