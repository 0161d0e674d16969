"""From plans to a program: which bytes of which memory cross, and what is copied before and after; arithmetic on strides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from operator import attrgetter
from typing import NamedTuple

from restripe.execution.program import (
    Buffer,
    Copy,
    Gather,
    Geometry,
    Program,
    Round,
    Sizes,
    Span,
    Spread,
    View,
    contiguous,
)
from restripe.execution.strided_runs import Stretch, stretches, within
from restripe.layout.chunked import Region, lengths
from restripe.planning.plan import FanOutKind, RankPlan
from restripe.planning.rounds import Part


class Shard(NamedTuple):
    """The part of a memory that holds a global region, dims in order, from an offset in elements on."""

    memory: int
    geometry: Geometry
    region: Region
    offset: int = 0

    def span(self, region: Region) -> Span | None:
        """The part of the region as adjacent bytes, where it lies so."""
        offset, sizes = self.offset, []
        for owned, part, stride in zip(self.region, region, self.geometry.strides, strict=False):
            lies = within(owned, part)
            if len(lies) != 1:
                return None
            offset += lies[0][0] * stride
            sizes.append(lies[0][1] - lies[0][0])
        sizes += self.geometry.sizes[len(region) :]  # the halves of 16-byte elements
        if not contiguous(sizes, self.geometry.strides):
            return None
        return Span(self.memory, offset * self.geometry.itemsize, math.prod(sizes) * self.geometry.itemsize)

    def view(self, stretches: Sequence[Stretch], side: int) -> View:
        """The pieces that a stretch of each tensor dim visits on this side of a copy."""
        offset, sizes, strides = self.offset, [], []
        for (length, starts, pieces, steps), stride in zip(stretches, self.geometry.strides, strict=False):
            offset += starts[side] * stride
            if pieces > 1:
                sizes.append(pieces)
                strides.append(steps[side] * stride)
            sizes.append(length)
            strides.append(stride)
        more = len(stretches)
        return View(
            self.memory, offset, (*sizes, *self.geometry.sizes[more:]), (*strides, *self.geometry.strides[more:])
        )


def copies(into: Shard, out: Shard, region: Region) -> Iterator[Copy]:
    """How the region is copied between two shards that hold it."""
    sides = zip(into.region, out.region, region, strict=True)
    for each in product(*(stretches(one, other, part) for one, other, part in sides)):
        yield into.view(each, 0), out.view(each, 1)


def bind(
    plans: Sequence[RankPlan],
    schedule: Sequence[Sequence[Part]],
    geometries: Sequence[tuple[Geometry | None, Geometry | None]],
    splits: Sequence[int],
) -> Program:
    """The program of a submission: one plan, one (source, destination) geometry and one split's number a tensor.

    A round's rebuilds are sorted by split, an order that all ranks share.
    """
    binder = _Binder(plans, geometries, splits)
    return Program(list(binder.rounds(schedule)), binder.memories)


class _Binder:
    def __init__(
        self,
        plans: Sequence[RankPlan],
        geometries: Sequence[tuple[Geometry | None, Geometry | None]],
        splits: Sequence[int],
    ) -> None:
        self.plans, self.geometries, self.splits = plans, geometries, splits
        self.destinations: dict[int, Shard] = {}
        self.callers: dict[int, Shard] = {}
        self.memories = 2 * len(plans)
        self.round = Round()
        self.staged: dict[int, tuple[int, int]] = {}

    def rounds(self, schedule: Sequence[Sequence[Part]]) -> Iterator[Round]:
        for parts in schedule:
            self.round, self.staged = Round(), {}
            for part in parts:
                self._part(part)
            for itemsize, (memory, elements) in self.staged.items():
                self.round.buffers.append(Buffer(memory, elements, itemsize))
                self.round.drops.append(memory)
            self.round.stays = merged(self.round.stays)
            self.round.packs, self.round.unpacks = merged(self.round.packs), merged(self.round.unpacks)
            self.round.rebuilds.sort(key=attrgetter("split"))
            yield self.round

    def _part(self, part: Part) -> None:
        plan = self.plans[part.tensor]
        src, dst = self._source(part.tensor), self._destination(part)
        given = self._given(part, src, dst)
        if src is not None and dst is not None and part.first and given is None:
            for region in plan.copies:
                self.round.stays += copies(dst, src, region)
        if src is not None:
            for message in part.of(plan.sends):
                self.round.sends.append((self._pack(src, message.region), message.peer))
        if dst is not None:
            for message in part.of(plan.receives):
                self.round.receives.append((self._land(dst, message.region), message.peer))
            if part.last:
                self._complete(part.tensor, dst, given)

    def _source(self, tensor: int) -> Shard | None:
        plan, (geometry, _) = self.plans[tensor], self.geometries[tensor]
        if geometry is None or plan.source is None:
            return None
        return Shard(2 * tensor, geometry, plan.source)

    def _destination(self, part: Part) -> Shard | None:
        """The caller's memory, or a contiguous buffer in its stead where a collective needs one."""
        plan, (_, geometry) = self.plans[part.tensor], self.geometries[part.tensor]
        if geometry is None or plan.destination is None:
            return None
        caller = Shard(2 * part.tensor + 1, geometry, plan.destination)
        if plan.fan_out is None or geometry.contiguous:
            return caller
        if part.first:
            flat = geometry._replace(strides=_row_major(geometry.sizes))
            memory = self._memory()
            self.round.buffers.append(Buffer(memory, math.prod(flat.sizes), flat.itemsize))
            self.destinations[part.tensor] = Shard(memory, flat, plan.destination)
            self.callers[part.tensor] = caller
        return self.destinations[part.tensor]

    def _pack(self, src: Shard, region: Region) -> Span:
        span = src.span(region)
        if span is None:
            span, stage = self._stage(src.geometry, region)
            self.round.packs += copies(stage, src, region)
        return span

    def _land(self, dst: Shard, region: Region) -> Span:
        span = dst.span(region)
        if span is None:
            span, stage = self._stage(dst.geometry, region)
            self.round.unpacks += copies(dst, stage, region)
        return span

    def _stage(self, like: Geometry, region: Region) -> tuple[Span, Shard]:
        """Room for the region in the round's staging buffer, in the row-major order that both ends of a message share."""
        memory, start = self.staged.get(like.itemsize) or (self._memory(), 0)
        sizes = (*lengths(region), *like.sizes[len(region) :])
        elements = math.prod(sizes)
        self.staged[like.itemsize] = memory, start + elements
        span = Span(memory, start * like.itemsize, elements * like.itemsize)
        return span, Shard(memory, Geometry(sizes, _row_major(sizes), like.itemsize), region, start)

    def _given(self, part: Part, src: Shard | None, dst: Shard | None) -> Span | None:
        """The stripe as the source holds it, where an all-gather can read it from there: all of it, in one piece."""
        plan = self.plans[part.tensor]
        gathers = plan.fan_out is not None and plan.fan_out.kind is FanOutKind.ALL_GATHER
        if src is None or dst is None or not gathers or plan.receives or len(plan.copies) != 1:
            return None
        return src.span(plan.copies[0])

    def _complete(self, tensor: int, dst: Shard, given: Span | None) -> None:
        """Rebuild the rest of the destination from its replicas, then hand it to the caller's tensor."""
        fan_out, split = self.plans[tensor].fan_out, self.splits[tensor]
        if fan_out is None:
            return
        whole = Span(dst.memory, 0, dst.geometry.extent)
        stripes = _stripes(whole, fan_out.stripes)
        if fan_out.kind is FanOutKind.ALL_GATHER:
            self.round.rebuilds.append(Gather(split, whole, given or stripes[fan_out.index]))
        else:
            self.round.rebuilds += [Spread(split, root, each) for root, each in enumerate(stripes) if each.length]
        caller = self.callers.get(tensor)
        if caller is not None:
            self.round.finishes += copies(caller, dst, dst.region)
            self.round.drops.append(dst.memory)

    def _memory(self) -> int:
        self.memories += 1
        return self.memories - 1


def _stripes(whole: Span, elements: Sequence[int]) -> list[Span]:
    """A contiguous shard cut into stripes of so many elements, one after another."""
    size = whole.length // sum(elements)
    ends = accumulate((count * size for count in elements), initial=whole.offset)
    return [Span(whole.memory, start, count * size) for start, count in zip(ends, elements, strict=False)]


def _row_major(sizes: Sequence[int]) -> Sizes:
    return tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))


def merged(copies: Sequence[Copy]) -> list[Copy]:
    """The same copies in fewer: a run of pieces alike, at even distances on both sides, is one piece with a dim more."""
    found: list[Copy] = []
    run: list[Copy] = []
    for copy in copies:
        if run and not _continues(run, copy):
            found.append(_joined(run))
            run = []
        run.append(copy)
    return [*found, _joined(run)] if run else found


def _continues(run: Sequence[Copy], copy: Copy) -> bool:
    for one, last, view in zip(run[0], run[-1], copy, strict=True):
        if (one.memory, one.sizes, one.strides) != (view.memory, view.sizes, view.strides):
            return False
        if len(run) > 1 and (last.offset - one.offset) != (view.offset - last.offset) * (len(run) - 1):
            return False
        if view.offset <= last.offset:
            return False
    return True


def _joined(run: Sequence[Copy]) -> Copy:
    if len(run) == 1:
        return run[0]
    into, out = (
        View(one.memory, one.offset, (len(run), *one.sizes), (other.offset - one.offset, *one.strides))
        for one, other in zip(run[0], run[1], strict=True)
    )
    return into, out
