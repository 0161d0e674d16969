"""From a plan to memory: which bytes of which memory cross, and what is copied before and after; arithmetic on strides.

A program knows no tensor, only the sizes and strides that it was made for, so a warm call with other tensors of the same
geometry uses it again. Memory number 2i is the source of tensor i, 2i + 1 its destination; later numbers are buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from operator import attrgetter
from typing import Any, NamedTuple

from restripe.cuts import Intervals, Region
from restripe.planning import FanOut, FanOutKind, Part, RankPlan

Sizes = tuple[int, ...]


class Geometry(NamedTuple):
    """How a local tensor lies in memory: sizes and strides in elements of `itemsize` bytes (1, 2, 4 or 8).

    Elements of 16 bytes count as two of 8, in a last dim of their own.
    """

    sizes: Sizes
    strides: Sizes
    itemsize: int

    @classmethod
    def of(cls, sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> Geometry:
        """The geometry of a tensor with elements of 1 to 16 bytes."""
        if itemsize == 16:
            return cls((*sizes, 2), (*(2 * stride for stride in strides), 1), 8)
        return cls(tuple(sizes), tuple(strides), itemsize)

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after another in row-major order."""
        return _contiguous(self.sizes, self.strides)

    @property
    def extent(self) -> int:
        """The bytes from the first element to the end of the last; 0 where there is none."""
        if not math.prod(self.sizes):
            return 0
        return (sum((n - 1) * stride for n, stride in zip(self.sizes, self.strides, strict=True)) + 1) * self.itemsize


class View(NamedTuple):
    """A strided piece of a memory, in elements from its first."""

    memory: int
    offset: int
    sizes: Sizes
    strides: Sizes


class Span(NamedTuple):
    """Adjacent bytes of a memory."""

    memory: int
    offset: int
    length: int


class Buffer(NamedTuple):
    """A memory that a round allocates, in elements of `itemsize` bytes."""

    memory: int
    elements: int
    itemsize: int


class Rebuild(NamedTuple):
    """The fan-out of one tensor: its split's number, this rank's whole destination, and its stripe, here or in the source."""

    split: int
    fan_out: FanOut
    whole: Span
    stripe: Span


Copy = tuple[View, View]  # into, out of


@dataclass
class Round:
    """What is done for the messages of one round, in the order of the fields."""

    buffers: list[Buffer] = field(default_factory=list)
    packs: list[Copy] = field(default_factory=list)
    sends: list[tuple[Span, int]] = field(default_factory=list)
    receives: list[tuple[Span, int]] = field(default_factory=list)
    unpacks: list[Copy] = field(default_factory=list)
    rebuilds: list[Rebuild] = field(default_factory=list)
    finishes: list[Copy] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)


class Program(NamedTuple):
    """A submission's rounds, how many memories they know, and whether they make tensors: buffers, or views to copy."""

    rounds: list[Round]
    memories: int
    makes: bool

    @property
    def plain(self) -> bool:
        """Whether all there is to do is one round of messages."""
        return not self.makes and len(self.rounds) == 1 and not self.rounds[0].rebuilds


Posts = list[tuple[int, int, int]]  # address, length in bytes, peer


def posts(step: Round, starts: Sequence[Any]) -> tuple[Posts, Posts]:
    """A round's sends and receives, where each memory starts at such an address."""
    sends = [(starts[memory] + offset, length, peer) for (memory, offset, length), peer in step.sends]
    return sends, [(starts[memory] + offset, length, peer) for (memory, offset, length), peer in step.receives]


class Shard(NamedTuple):
    """The part of a memory that holds a global region, dims in order."""

    memory: int
    geometry: Geometry
    region: Region

    def views(self, region: Region) -> Iterator[View]:
        """The part of the region, a view a box, in the global row-major order that both ends of a message share."""
        wide = self.geometry.sizes[len(region) :]  # the halves of 16-byte elements
        for box in product(*region):
            starts = (_offset(owned, lo) for owned, (lo, _) in zip(self.region, box, strict=True))
            offset = sum(start * stride for start, stride in zip(starts, self.geometry.strides, strict=False))
            yield View(self.memory, offset, (*(hi - lo for lo, hi in box), *wide), self.geometry.strides)


def _offset(owned: Intervals, position: int) -> int:
    """Where a global position lies in the local dim."""
    before = accumulate((hi - lo for lo, hi in owned), initial=0)
    return next(start + position - lo for (lo, hi), start in zip(owned, before, strict=False) if lo <= position < hi)


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
    rounds = list(binder.rounds(schedule))
    makes = any(step.buffers or step.packs or step.unpacks or step.finishes for step in rounds)
    return Program(rounds, binder.memories, makes)


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
            self.round.packs, self.round.unpacks = merged(self.round.packs), merged(self.round.unpacks)
            self.round.rebuilds.sort(key=attrgetter("split"))
            yield self.round

    def _part(self, part: Part) -> None:
        plan = self.plans[part.tensor]
        src, dst = self._source(part.tensor), self._destination(part)
        given = self._given(part, src, dst)
        if src is not None and dst is not None and part.first and given is None:
            for region in plan.copies:
                self.round.packs += zip(dst.views(region), src.views(region), strict=True)
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
        views = list(src.views(region))
        span = _span(views, src.geometry.itemsize)
        if span is None:
            span, places = self._stage(views, src.geometry.itemsize)
            self.round.packs += zip(places, views, strict=True)
        return span

    def _land(self, dst: Shard, region: Region) -> Span:
        views = list(dst.views(region))
        span = _span(views, dst.geometry.itemsize)
        if span is None:
            span, places = self._stage(views, dst.geometry.itemsize)
            self.round.unpacks += zip(views, places, strict=True)
        return span

    def _stage(self, views: Sequence[View], itemsize: int) -> tuple[Span, list[View]]:
        """Room in the round's staging buffer: as one span, and as a place for each view."""
        memory, start = self.staged.get(itemsize) or (self._memory(), 0)
        places, end = [], start
        for view in views:
            places.append(View(memory, end, view.sizes, _row_major(view.sizes)))
            end += math.prod(view.sizes)
        self.staged[itemsize] = memory, end
        return Span(memory, start * itemsize, (end - start) * itemsize), places

    def _given(self, part: Part, src: Shard | None, dst: Shard | None) -> Span | None:
        """The stripe as the source holds it, where an all-gather can read it from there: all of it, in one piece."""
        plan = self.plans[part.tensor]
        gathers = plan.fan_out is not None and plan.fan_out.kind is FanOutKind.ALL_GATHER
        if src is None or dst is None or not gathers or plan.receives or len(plan.copies) != 1:
            return None
        return _span(list(src.views(plan.copies[0])), src.geometry.itemsize)

    def _complete(self, tensor: int, dst: Shard, given: Span | None) -> None:
        """Rebuild the rest of the destination from its replicas, then hand it to the caller's tensor."""
        fan_out, size = self.plans[tensor].fan_out, dst.geometry.extent
        if fan_out is None:
            return
        stripe = size // len(fan_out.members)
        whole = Span(dst.memory, 0, size)
        mine = given or Span(dst.memory, stripe * fan_out.index, stripe)
        self.round.rebuilds.append(Rebuild(self.splits[tensor], fan_out, whole, mine))
        caller = self.callers.get(tensor)
        if caller is not None:
            self.round.finishes += zip(caller.views(caller.region), dst.views(dst.region), strict=True)
            self.round.drops.append(dst.memory)

    def _memory(self) -> int:
        self.memories += 1
        return self.memories - 1


def _span(views: Sequence[View], itemsize: int) -> Span | None:
    """The views as adjacent bytes, where they are one contiguous piece."""
    if len(views) != 1 or not _contiguous(views[0].sizes, views[0].strides):
        return None
    return Span(views[0].memory, views[0].offset * itemsize, math.prod(views[0].sizes) * itemsize)


def _contiguous(sizes: Sizes, strides: Sizes) -> bool:
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def _row_major(sizes: Sizes) -> Sizes:
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
