"""The planner: one rank's plan, in closed form. Its cost is the number of that rank's own overlaps, not the size of the world.

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

from restripe.layout.chunked import ChunkedDim, Coordinates, CutDim, Region, lengths, unravel
from restripe.layout.mesh import Layout
from restripe.layout.partition import Partition, ShardPosition
from restripe.planning.overlaps import ChunkedOverlaps, DimOverlaps, Overlap, dim_overlaps
from restripe.planning.plan import FanOut, FanOutKind, Holders, Message, OverlapBound, RankPlan, Reason
from restripe.planning.strategy import Contiguity, choose_strategy, contiguities, stripe_dim, stripe_grid


def plan(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int, rotation: int = 0) -> RankPlan:
    """Return what `rank` does to move a tensor of this global shape from `src` to `dst`.

    Args:
        src, dst: the layouts; meshes of group ranks.
        shape: the global sizes, in elements.
        rank: the group rank to plan for; it may be in both meshes, in one, or in none.
        rotation: the round-robin offset. Of a region's H source holders, number (t + rotation) mod H serves the t-th of its
            receivers, so that many tensors spread over all holders. Holders on a receiver's host come before others.

    Raises:
        InvalidPlacementError: a shard dim that the shape does not have.
        ShapeError: a segmented shard whose segments do not add up to its dim.
    """
    return make_planner(src, dst, shape).plan(rank, rotation)


def make_planner(src: Layout, dst: Layout, shape: tuple[int, ...]) -> Planner:
    """Return the planner of any rank and rotation of one move; plans made by one planner share what is alike in all.

    Raises:
        InvalidPlacementError, ShapeError: as `plan`.
    """
    return Planner(Partition(src, shape), Partition(dst, shape))


def max_receivers(src: Layout, dst: Layout, shape: tuple[int, ...]) -> int:
    """Return how many targets take from one source shard, at most."""
    return math.prod(targets.most for targets, _ in make_planner(src, dst, shape).overlap_bounds)


def holder_rule(src: Layout, dst: Layout) -> Holders:
    """Return which holders of a part send it: those on the receiver's host, wherever both meshes have ranks on one host."""
    if src.replicas == 1:
        return Holders.ONE
    return Holders.TURNS if src.mesh.by_host.keys().isdisjoint(dst.mesh.by_host) else Holders.NEAR


class _Counterpart(NamedTuple):
    """The other end of an overlap, in one tensor dim or in all.

    `offset` is what it adds to its index in the mesh, `stripe` what it adds to its replica's number; see Overlap for the rest.
    """

    offset: int
    stripe: int
    region: Region
    pair_indices: tuple[int, ...]
    number: int
    total: int


class _ReplicaGroup(NamedTuple):
    """The replicas of one destination shard, in member order, and the elements of each one's stripe."""

    members: tuple[int, ...]
    stripes: tuple[int, ...]


@dataclass(frozen=True)
class Planner:
    """A move between two partitions of one shape; each value is computed when a plan first needs it, and once."""

    src: Partition
    dst: Partition
    _groups: dict[int, _ReplicaGroup] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def reason(self) -> Reason:
        """The strategy of every rank's plan."""
        return choose_strategy(self.src, self.dst)

    @cached_property
    def stripes(self) -> tuple[int, ...]:
        """The number of stripes that each tensor dim of a destination shard is cut into."""
        striping = self.reason in (Reason.STRIPED, Reason.RAGGED)
        return stripe_grid(self.dst) if striping else (1,) * len(self.dst.shape)

    @cached_property
    def targets(self) -> list[CutDim]:
        """The cut of each tensor dim by targets."""
        return [stripe_dim(cut, stripes) for cut, stripes in zip(self.dst.cuts, self.stripes, strict=True)]

    @cached_property
    def overlaps(self) -> list[DimOverlaps]:
        """The overlaps of sources and targets in each tensor dim."""
        numbered = self.src.layout.replicas > 1
        return [
            dim_overlaps(source, target, numbered=numbered)
            for source, target in zip(self.src.cuts, self.targets, strict=True)
        ]

    @cached_property
    def overlap_bounds(self) -> tuple[tuple[OverlapBound, OverlapBound], ...]:
        """For each tensor dim, bounds on the targets that one source meets, and the reverse."""
        return tuple(overlaps.bounds for overlaps in self.overlaps)

    def plan(self, rank: int, rotation: int = 0) -> RankPlan:
        """Return what one rank does; see the function of that name."""
        source_position, position = self.src.position(rank), self.dst.position(rank)
        source = None if source_position is None else self.src.region_of(source_position)
        destination = None if position is None else self.dst.region_of(position)
        copies: tuple[Region, ...] = ()
        sends: list[Message] = []
        receives: list[Message] = []
        if self.reason is Reason.LOCAL:
            copies = (destination,) if destination is not None and _has_elements(destination) else ()
        elif self.reason is not Reason.EMPTY:
            receives = sorted(self._receives(rank, rotation, source_position, position), key=itemgetter(0))
            copies = tuple(message.region for message in receives if message.peer == rank)
            receives = [message for message in receives if message.peer != rank]
            sends = sorted(self._sends(rank, rotation, source_position), key=itemgetter(0))
        return RankPlan(
            source,
            destination,
            copies,
            tuple(sends),
            tuple(receives),
            self._fan_out(position, destination),
            self.reason,
            self.overlap_bounds,
            self.staging,
        )

    def _receives(
        self, rank: int, rotation: int, source_position: ShardPosition | None, position: ShardPosition | None
    ) -> Iterator[Message]:
        """Yield what the rank's target takes from each source shard, its own included."""
        if position is None or position.replica >= math.prod(self.stripes):
            return
        own_shard = None if source_position is None else self.src.shard_offset(source_position.shard)
        ranks, holders = self.src.mesh.ranks, self.src.layout.replicas
        for shard, _, region, pair_indices, number, _ in _combine_dims(
            [self._sender(dim, overlap) for overlap in overlaps.senders_to(coordinates)]
            for dim, (overlaps, coordinates) in enumerate(zip(self.overlaps, self._target(position), strict=True))
        ):
            if shard == own_shard:
                yield Message(rank, region, pair_indices)
            else:
                holder = ranks[shard] if holders == 1 else self._holder(shard, number, rotation, rank)
                yield Message(holder, region, pair_indices)

    def _sends(self, rank: int, rotation: int, position: ShardPosition | None) -> Iterator[Message]:
        """Yield what the rank sends to each target that meets its region and that this holder serves."""
        if position is None:
            return
        shard, holders = self.src.shard_offset(position.shard), self.src.layout.replicas
        chunked = [overlaps for overlaps in self.overlaps if isinstance(overlaps, ChunkedOverlaps)]
        numbered = holders > 1 and not self.prefers_same_host and len(chunked) == len(self.overlaps)
        targets = self._served_targets(chunked, rotation, position) if numbered else self._targets_of(position)
        for receiver, target in self._receivers(targets):
            if self.src.holds(receiver, shard):
                continue
            if numbered or holders == 1 or self._holder(shard, target.number, rotation, receiver) == rank:
                yield Message(receiver, target.region, target.pair_indices)

    def _receivers(self, targets: Iterable[_Counterpart]) -> Iterator[tuple[int, _Counterpart]]:
        """Yield each target with the rank that receives it."""
        ranks = self.dst.mesh.ranks
        replicas = self.dst.replica_offsets if math.prod(self.stripes) > 1 else [0]
        for target in targets:
            yield ranks[target.offset + replicas[target.stripe]], target

    def _targets_of(self, position: ShardPosition) -> list[_Counterpart]:
        """Return the targets that meet a source."""
        return _combine_dims(
            [self._receiver(dim, overlap) for overlap in overlaps.receivers_of(coordinates)]
            for dim, (overlaps, coordinates) in enumerate(zip(self.overlaps, position.shard, strict=True))
        )

    def _served_targets(
        self, chunked: Sequence[ChunkedOverlaps], rotation: int, position: ShardPosition
    ) -> Iterator[_Counterpart]:
        """Yield those of the targets that this holder serves, where their numbers alone tell; the others cost nothing."""

        @cache
        def receiver(dim: int, number: int) -> list[_Counterpart]:
            return [self._receiver(dim, chunked[dim].nth_receiver(position.shard[dim], number))]

        holders = self.src.layout.replicas
        counts = [overlaps.receiver_count(at) for overlaps, at in zip(chunked, position.shard, strict=True)]
        for number in range((position.replica - rotation) % holders, math.prod(counts), holders):
            yield from _combine_dims(receiver(dim, index) for dim, index in enumerate(unravel(number, counts)))

    @cached_property
    def prefers_same_host(self) -> bool:
        """True where receivers may find a holder on their own host."""
        return holder_rule(self.src.layout, self.dst.layout) is Holders.NEAR

    def _holder(self, shard: int, number: int, rotation: int, receiver: int) -> int:
        """Return the rank that serves a source shard's target of this number: on the receiver's host where one holds it."""
        host = self.dst.mesh.host(receiver) if self.prefers_same_host else None
        if host is not None:
            holders = [rank for rank in self.src.mesh.by_host.get(host, ()) if self.src.holds(rank, shard)]
            if holders:
                index = self.dst.mesh.by_host[host].index(receiver)
                return holders[(index + rotation) % len(holders)]
        replica = (number + rotation) % self.src.layout.replicas
        return self.src.mesh.ranks[shard + self.src.replica_offset(replica)]

    def _sender(self, dim: int, overlap: Overlap) -> _Counterpart:
        coordinates, shared, pair_index, number, total = overlap
        return _Counterpart(self.src.chunk_offset(dim, coordinates), 0, (shared,), (pair_index,), number, total)

    def _receiver(self, dim: int, overlap: Overlap) -> _Counterpart:
        """Return a target; a stripe, its last coordinate where there are any, is received by its replica."""
        coordinates, shared, pair_index, number, total = overlap
        stripe = 0
        if self.stripes[dim] > 1:
            coordinates, stripe = coordinates[:-1], coordinates[-1] * math.prod(self.stripes[dim + 1 :])
        return _Counterpart(self.dst.chunk_offset(dim, coordinates), stripe, (shared,), (pair_index,), number, total)

    def _target(self, position: ShardPosition) -> list[Coordinates]:
        """Return the target coordinates of a destination position."""
        numbers = unravel(position.replica, self.stripes)
        dims = zip(position.shard, self.stripes, numbers, strict=True)
        return [(*coordinates, number) if stripes > 1 else coordinates for coordinates, stripes, number in dims]

    def _fan_out(self, position: ShardPosition | None, region: Region | None) -> FanOut | None:
        if (
            position is None
            or region is None
            or self.dst.layout.replicas == 1
            or self.reason is Reason.LOCAL
            or not _has_elements(region)
        ):
            return None
        kind = FanOutKind.ALL_GATHER if self.reason is Reason.STRIPED else FanOutKind.BROADCAST
        members, stripes = self._replica_group(self.dst.shard_offset(position.shard), region)
        return FanOut(kind, members, position.replica, stripes)

    def _replica_group(self, shard: int, region: Region) -> _ReplicaGroup:
        """Return the replicas of the shard of this offset, computed once for all of them."""
        if shard not in self._groups:
            members = tuple(self.dst.mesh.ranks[shard + offset] for offset in self.dst.replica_offsets)
            self._groups[shard] = _ReplicaGroup(members, self._stripe_lengths(lengths(region)))
        return self._groups[shard]

    def _stripe_lengths(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the elements of every member's stripe of a shard of these sizes: those of the last dims follow one another."""
        stripe_lengths = [1]
        for size, stripes in zip(sizes, self.stripes, strict=True):
            cut = ChunkedDim(size, (stripes,))
            chunks = [hi - lo for lo, hi in map(cut.interval, product(range(stripes)))]
            stripe_lengths = [before * chunk for before in stripe_lengths for chunk in chunks]
        return (*stripe_lengths, *[0] * (self.dst.layout.replicas - len(stripe_lengths)))

    @cached_property
    def staging(self) -> int:
        """A bound on the elements that any rank packs and unpacks, by the row-major geometry of the layouts."""
        if self.reason in (Reason.EMPTY, Reason.LOCAL):
            return 0
        pairs = contiguities(self.src.cuts, self.dst.cuts, self.stripes)
        packs, unpacks = (Contiguity.BROKEN in side for side in zip(*pairs, strict=True))
        packed = math.prod(cut.longest for cut in self.src.cuts) if packs else 0
        return packed + (math.prod(cut.longest for cut in self.targets) if unpacks else 0)


def _combine_dims(dims: Iterable[Sequence[_Counterpart]]) -> list[_Counterpart]:
    """Return every combination of the ends of all tensor dims as one end, numbered among all combinations."""
    combined = [_Counterpart(0, 0, (), (), 0, 1)]
    for ends in dims:
        combined = [
            _Counterpart(
                offset + dim_offset,
                stripe + dim_stripe,
                region + shared,
                pair_indices + pair_index,
                number * total + dim_number,
                1,
            )
            for offset, stripe, region, pair_indices, number, _ in combined
            for dim_offset, dim_stripe, shared, pair_index, dim_number, total in ends
        ]
    return combined


def _has_elements(region: Region) -> bool:
    """Return whether the region has any element."""
    return all(region)
