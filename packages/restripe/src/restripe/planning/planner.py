"""One rank's plan, in closed form: its cost is the number of that rank's own overlaps, not the size of the world.

A *target* is what one rank receives before the fan-out: its shard, or its stripe of it. Both ends of a message find each
other by dividing positions by chunk sizes, and apply the same rule for who sends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from operator import itemgetter
from typing import NamedTuple

from restripe.layout.chunked import Coordinates, Cuts, Region, lengths, unravel
from restripe.layout.mesh import Layout
from restripe.layout.partition import Partition, Place
from restripe.layout.piecewise import Runs
from restripe.planning.overlaps import Chunks, Hit, Meeting, meeting
from restripe.planning.plan import FanOut, FanOutKind, Holders, Message, RankPlan, Reason, Width
from restripe.planning.strategy import View, decide, grid, striped, views


def plan(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int, turn: int = 0) -> RankPlan:
    """What `rank` does to move a tensor of this global shape from `src` to `dst`.

    Args:
        src, dst: the layouts; meshes of group ranks.
        shape: the global sizes, in elements.
        rank: the group rank to plan for; it may be in both meshes, in one, or in none.
        turn: the tensor's place in a submission. Of a region's H source holders, number (t + turn) mod H serves the t-th
            of its receivers, so that many tensors spread over all holders. Holders on a receiver's host come before others.

    Raises:
        InvalidPlacementError: a shard dim that the shape does not have.
        ShapeError: a segmented shard whose segments do not add up to its dim.
    """
    return planner(src, dst, shape).plan(rank, turn)


def planner(src: Layout, dst: Layout, shape: tuple[int, ...]) -> Planner:
    """What plans any rank and turn of one move; whoever plans many of them shares what is alike in all.

    Raises:
        InvalidPlacementError, ShapeError: as `plan`.
    """
    return Planner(Partition(src, shape), Partition(dst, shape))


def takers(src: Layout, dst: Layout, shape: tuple[int, ...]) -> int:
    """How many targets take from one source shard, at most."""
    return math.prod(out.most for out, _ in planner(src, dst, shape).widths)


def holders(src: Layout, dst: Layout) -> Holders:
    """Which holders of a part send it: those on the receiver's host, wherever both meshes have ranks on one host."""
    if src.replicas == 1:
        return Holders.ONE
    return Holders.TURNS if src.mesh.by_host.keys().isdisjoint(dst.mesh.by_host) else Holders.NEAR


class _End(NamedTuple):
    """The other end of a meeting, in one tensor dim or in all.

    `offset` is what it adds to its index in the mesh, `stripe` what it adds to its replica's number; see Hit for the rest.
    """

    offset: int
    stripe: int
    region: Region
    band: tuple[int, ...]
    number: int
    total: int


class _Group(NamedTuple):
    """The replicas of one destination shard, in member order, and the elements of each one's stripe."""

    members: tuple[int, ...]
    stripes: tuple[int, ...]


@dataclass(frozen=True)
class Planner:
    """A move between two partitions of one shape; nothing is found out before a plan needs it, and nothing twice."""

    src: Partition
    dst: Partition
    _groups: dict[int, _Group] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def reason(self) -> Reason:
        return decide(self.src, self.dst)

    @cached_property
    def stripes(self) -> tuple[int, ...]:
        """Into how many stripes each tensor dim of a destination shard is cut."""
        striping = self.reason in (Reason.STRIPED, Reason.RAGGED)
        return grid(self.dst) if striping else (1,) * len(self.dst.shape)

    @cached_property
    def targets(self) -> list[Cuts | Runs]:
        """How the targets cut each tensor dim."""
        return [striped(cuts, stripes) for cuts, stripes in zip(self.dst.cuts, self.stripes, strict=True)]

    @cached_property
    def meetings(self) -> list[Meeting]:
        """How sources and targets meet in each tensor dim."""
        numbered = self.src.layout.replicas > 1
        return [meeting(out, into, numbered=numbered) for out, into in zip(self.src.cuts, self.targets, strict=True)]

    @cached_property
    def widths(self) -> tuple[tuple[Width, Width], ...]:
        """For each tensor dim, bounds on the targets that one source meets, and the reverse."""
        return tuple(each.widths for each in self.meetings)

    def plan(self, rank: int, turn: int = 0) -> RankPlan:
        """What one rank does; see the function of that name."""
        source_place, place = self.src.place(rank), self.dst.place(rank)
        source = None if source_place is None else self.src.region_of(source_place)
        destination = None if place is None else self.dst.region_of(place)
        copies: tuple[Region, ...] = ()
        sends: list[Message] = []
        receives: list[Message] = []
        if self.reason is Reason.LOCAL:
            copies = (destination,) if destination is not None and _holds(destination) else ()
        elif self.reason is not Reason.EMPTY:
            receives = sorted(self._receives(rank, turn, source_place, place), key=itemgetter(0))
            copies = tuple(message.region for message in receives if message.peer == rank)
            receives = [message for message in receives if message.peer != rank]
            sends = sorted(self._sends(rank, turn, source_place), key=itemgetter(0))
        return RankPlan(
            source,
            destination,
            copies,
            tuple(sends),
            tuple(receives),
            self._fan_out(place, destination),
            self.reason,
            self.widths,
            self.staging,
        )

    def _receives(self, rank: int, turn: int, mine: Place | None, place: Place | None) -> Iterator[Message]:
        """What the rank's target takes from each source shard, its own included."""
        if place is None or place.replica >= math.prod(self.stripes):
            return
        own = None if mine is None else self.src.shard_offset(mine.shard)
        ranks, holders = self.src.mesh.ranks, self.src.layout.replicas
        for shard, _, region, band, number, _ in _joint(
            [self._giver(dim, hit) for hit in each.givers(at)]
            for dim, (each, at) in enumerate(zip(self.meetings, self._target(place), strict=True))
        ):
            if shard == own:
                yield Message(rank, region, band)
            else:
                yield Message(ranks[shard] if holders == 1 else self._holder(shard, number, turn, rank), region, band)

    def _sends(self, rank: int, turn: int, place: Place | None) -> Iterator[Message]:
        """What the rank sends: to every target that meets its region, where it is this holder's turn."""
        if place is None:
            return
        shard, holders = self.src.shard_offset(place.shard), self.src.layout.replicas
        chunks = [each for each in self.meetings if isinstance(each, Chunks)]
        numbered = holders > 1 and not self.near and len(chunks) == len(self.meetings)
        for receiver, end in self._receiving(self._numbered(chunks, turn, place) if numbered else self._takers(place)):
            if self.src.holds(receiver, shard):
                continue
            if numbered or holders == 1 or self._holder(shard, end.number, turn, receiver) == rank:
                yield Message(receiver, end.region, end.band)

    def _receiving(self, ends: Iterable[_End]) -> Iterator[tuple[int, _End]]:
        """Each target with the rank that receives it."""
        ranks = self.dst.mesh.ranks
        replicas = self.dst.replica_offsets if math.prod(self.stripes) > 1 else [0]
        for end in ends:
            yield ranks[end.offset + replicas[end.stripe]], end

    def _takers(self, place: Place) -> list[_End]:
        """The targets that meet a source."""
        return _joint(
            [self._taker(dim, hit) for hit in each.takers(at)]
            for dim, (each, at) in enumerate(zip(self.meetings, place.shard, strict=True))
        )

    def _numbered(self, chunks: Sequence[Chunks], turn: int, place: Place) -> Iterator[_End]:
        """Those of them that this holder serves, where their numbers alone tell: the others are not looked at."""

        @cache
        def taker(dim: int, number: int) -> list[_End]:
            return [self._taker(dim, chunks[dim].taker(place.shard[dim], number))]

        holders = self.src.layout.replicas
        totals = [each.count(at) for each, at in zip(chunks, place.shard, strict=True)]
        for number in range((place.replica - turn) % holders, math.prod(totals), holders):
            yield from _joint(taker(dim, index) for dim, index in enumerate(unravel(number, totals)))

    @cached_property
    def near(self) -> bool:
        """Whether receivers may find a holder on their own host."""
        return holders(self.src.layout, self.dst.layout) is Holders.NEAR

    def _holder(self, shard: int, number: int, turn: int, receiver: int) -> int:
        """The rank that serves a source shard's target of this number: on the receiver's host, where some hold it there."""
        host = self.dst.mesh.host(receiver) if self.near else None
        if host is not None:
            holders = [rank for rank in self.src.mesh.by_host.get(host, ()) if self.src.holds(rank, shard)]
            if holders:
                place = self.dst.mesh.by_host[host].index(receiver)
                return holders[(place + turn) % len(holders)]
        replica = (number + turn) % self.src.layout.replicas
        return self.src.mesh.ranks[shard + self.src.replica_offset(replica)]

    def _giver(self, dim: int, hit: Hit) -> _End:
        at, overlap, band, number, total = hit
        return _End(self.src.chunk_offset(dim, at), 0, (overlap,), (band,), number, total)

    def _taker(self, dim: int, hit: Hit) -> _End:
        """A target's end; a stripe, its last coordinate where there are any, is received by its replica."""
        at, overlap, band, number, total = hit
        stripe = 0
        if self.stripes[dim] > 1:
            at, stripe = at[:-1], at[-1] * math.prod(self.stripes[dim + 1 :])
        return _End(self.dst.chunk_offset(dim, at), stripe, (overlap,), (band,), number, total)

    def _target(self, place: Place) -> list[Coordinates]:
        """The target coordinates of a destination place."""
        numbers = unravel(place.replica, self.stripes)
        ends = zip(place.shard, self.stripes, numbers, strict=True)
        return [(*at, number) if stripes > 1 else at for at, stripes, number in ends]

    def _fan_out(self, place: Place | None, region: Region | None) -> FanOut | None:
        if (
            place is None
            or region is None
            or self.dst.layout.replicas == 1
            or self.reason is Reason.LOCAL
            or not _holds(region)
        ):
            return None
        kind = FanOutKind.ALL_GATHER if self.reason is Reason.STRIPED else FanOutKind.BROADCAST
        members, stripes = self._group(self.dst.shard_offset(place.shard), region)
        return FanOut(kind, members, place.replica, stripes)

    def _group(self, shard: int, region: Region) -> _Group:
        """The replicas of the shard of this offset, found once for all of them."""
        if shard not in self._groups:
            members = tuple(self.dst.mesh.ranks[shard + offset] for offset in self.dst.replica_offsets)
            self._groups[shard] = _Group(members, self._stripe_lengths(lengths(region)))
        return self._groups[shard]

    def _stripe_lengths(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The elements of every member's stripe of a shard of these sizes: those of the last dims follow one another."""
        found = [1]
        for size, stripes in zip(sizes, self.stripes, strict=True):
            cuts = Cuts(size, (stripes,))
            chunks = [hi - lo for lo, hi in map(cuts.interval, product(range(stripes)))]
            found = [before * chunk for before in found for chunk in chunks]
        return (*found, *[0] * (self.dst.layout.replicas - len(found)))

    @cached_property
    def staging(self) -> int:
        """A bound on the elements that any rank packs and unpacks, by the row-major geometry of the layouts."""
        if self.reason in (Reason.EMPTY, Reason.LOCAL):
            return 0
        found = views(self.src.cuts, self.dst.cuts, self.stripes)
        packs, unpacks = (View.BROKEN in side for side in zip(*found, strict=True))
        packed = math.prod(cuts.longest for cuts in self.src.cuts) if packs else 0
        return packed + (math.prod(cuts.longest for cuts in self.targets) if unpacks else 0)


def _joint(dims: Iterable[Sequence[_End]]) -> list[_End]:
    """Every combination of the ends of all tensor dims, as one end; its number is the target's among all combinations."""
    found = [_End(0, 0, (), (), 0, 1)]
    for ends in dims:
        found = [
            _End(offset + more, stripe + other, region + overlap, band + beside, number * total + nth, 1)
            for offset, stripe, region, band, number, _ in found
            for more, other, overlap, beside, nth, total in ends
        ]
    return found


def _holds(region: Region) -> bool:
    """Whether the region has any element."""
    return all(region)
