"""Lowering: from plans to a program, that is, which bytes of which memory cross or are copied; arithmetic on strides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from operator import attrgetter
from typing import NamedTuple

from restripe.execution.coalesce import coalesce_copies, collapse_dims
from restripe.execution.program import (
    AllGather,
    Broadcast,
    Buffer,
    Geometry,
    Program,
    Round,
    Span,
    StridedCopy,
    is_contiguous,
    row_major,
)
from restripe.layout.chunked import Interval, Intervals, Region, lengths
from restripe.layout.piecewise import join_intervals
from restripe.planning.plan import FanOutKind, RankPlan
from restripe.planning.rounds import RoundPart

TensorGeometry = tuple[Geometry | None, Geometry | None]  # of a tensor's source and destination on this rank


class RegionMemory(NamedTuple):
    """A memory that holds a region of the global tensor, from an offset in bytes on."""

    memory: int
    geometry: Geometry
    region: Region
    offset: int = 0

    def span(self, region: Region) -> Span | None:
        """Return the part of the region as adjacent bytes, or None where it does not lie so."""
        start, sizes = 0, []
        for owned, part, stride in zip(self.region, region, self.geometry.strides, strict=True):
            intervals = local_intervals(owned, part)
            if len(intervals) != 1:
                return None
            start += intervals[0][0] * stride
            sizes.append(intervals[0][1] - intervals[0][0])
        if not is_contiguous(sizes, self.geometry.strides):
            return None
        itemsize = self.geometry.itemsize
        return Span(self.memory, self.offset + start * itemsize, math.prod(sizes) * itemsize)


def region_copies(into: RegionMemory, out_of: RegionMemory, region: Region) -> Iterator[StridedCopy]:
    """Yield the copies that bring a region from one memory to another; both hold it."""
    sides = zip(into.region, out_of.region, region, strict=True)
    dims = [coalesce_copies(_dim_copies(*side)) for side in sides]
    for pieces in product(*dims):
        yield _combine(into, out_of, pieces)


def _dim_copies(into: Intervals, out_of: Intervals, part: Intervals) -> Iterator[StridedCopy]:
    """Yield the copies of a part of one tensor dim, in elements of the two local dims."""
    starts = zip(part, local_starts(into, part), local_starts(out_of, part), strict=True)
    for (lo, hi), into_start, out_start in starts:
        yield StridedCopy(0, 0, into_start, out_start, (hi - lo,), (1,), (1,))


def _combine(into: RegionMemory, out_of: RegionMemory, pieces: Sequence[StridedCopy]) -> StridedCopy:
    """Return the product of one piece of each tensor dim, in bytes."""
    itemsize = into.geometry.itemsize
    into_offset, out_offset = into.offset, out_of.offset
    sizes: list[int] = []
    into_strides: list[int] = []
    out_strides: list[int] = []
    for piece, into_stride, out_stride in zip(pieces, into.geometry.strides, out_of.geometry.strides, strict=True):
        into_step, out_step = into_stride * itemsize, out_stride * itemsize
        into_offset += piece.into_offset * into_step
        out_offset += piece.out_offset * out_step
        sizes += piece.sizes
        into_strides += [stride * into_step for stride in piece.into_strides]
        out_strides += [stride * out_step for stride in piece.out_strides]
    return StridedCopy(
        into.memory,
        out_of.memory,
        into_offset,
        out_offset,
        (*sizes, itemsize),
        (*into_strides, 1),
        (*out_strides, 1),
    )


def local_starts(owned: Intervals, part: Intervals) -> list[int]:
    """Return where each interval of a part begins in the local dim of what is owned; each lies within one owned interval."""
    starts, remaining = [], iter(owned)
    lo, hi, before = 0, 0, 0
    for part_lo, part_hi in part:
        while part_hi > hi:
            before += hi - lo
            lo, hi = next(remaining)
        starts.append(before + part_lo - lo)
    return starts


def local_intervals(owned: Intervals, part: Intervals) -> list[Interval]:
    """Return the intervals of the local dim in which a part of what is owned lies; adjacent ones as one."""
    return join_intervals(
        (start, start + hi - lo) for start, (lo, hi) in zip(local_starts(owned, part), part, strict=True)
    )


def lower(
    plans: Sequence[RankPlan],
    schedule: Sequence[Sequence[RoundPart]],
    geometries: Sequence[TensorGeometry],
    splits: Sequence[int],
) -> Program:
    """Return the program of a submission.

    Args:
        plans: one a tensor.
        schedule: the parts of each round; see `rounds`.
        geometries: of each tensor's source and destination; None where this rank has none.
        splits: for each tensor the number of the replica split that its collectives go over. The collectives of a round are
            sorted by it, an order that all ranks share.
    """
    lowering = _Lowering(plans, geometries, splits)
    return Program([lowering.round(parts) for parts in schedule], lowering.memories)


class _Lowering:
    """The state of one lowering: the memories so far, and the buffers that stand in for destinations."""

    def __init__(self, plans: Sequence[RankPlan], geometries: Sequence[TensorGeometry], splits: Sequence[int]) -> None:
        self.plans, self.geometries, self.splits = plans, geometries, splits
        self.memories = 2 * len(plans)
        self._flat: dict[int, RegionMemory] = {}  # by tensor, the contiguous buffer in place of a strided destination
        self._round = Round()
        # by itemsize, so that elements stay aligned: the round's staging buffer and its length so far
        self._staged: dict[int, tuple[int, int]] = {}

    def round(self, parts: Sequence[RoundPart]) -> Round:
        """Lower one round."""
        step = self._round = Round()
        self._staged = {}
        for part in parts:
            self._lower_part(part)
        for memory, length in self._staged.values():
            step.buffers.append(Buffer(memory, length))
            step.frees.append(memory)
        for copies in (step.packs, step.unpacks, step.local_copies, step.copy_back):
            copies[:] = map(collapse_dims, coalesce_copies(copies))
        step.replications.sort(key=attrgetter("split"))
        return step

    def _lower_part(self, part: RoundPart) -> None:
        plan, step = self.plans[part.tensor], self._round
        src, dst = self._source(part.tensor), self._destination(part)
        gathered = self._gathered_source(part, src, dst)
        if src is not None and dst is not None and part.first and gathered is None:
            for region in plan.copies:
                step.local_copies += region_copies(dst, src, region)
        if src is not None:
            for message in part.select(plan.sends):
                step.sends.append((self._pack(src, message.region), message.peer))
        if dst is not None:
            for message in part.select(plan.receives):
                step.receives.append((self._unpack(dst, message.region), message.peer))
            if part.last:
                self._replicate(part.tensor, dst, gathered)

    def _source(self, tensor: int) -> RegionMemory | None:
        plan, (geometry, _) = self.plans[tensor], self.geometries[tensor]
        if geometry is None or plan.source is None:
            return None
        return RegionMemory(2 * tensor, geometry, plan.source)

    def _caller_destination(self, tensor: int) -> RegionMemory | None:
        plan, (_, geometry) = self.plans[tensor], self.geometries[tensor]
        if geometry is None or plan.destination is None:
            return None
        return RegionMemory(2 * tensor + 1, geometry, plan.destination)

    def _destination(self, part: RoundPart) -> RegionMemory | None:
        """Return the caller's memory, or a contiguous buffer in its place where a collective needs one."""
        caller = self._caller_destination(part.tensor)
        if caller is None or self.plans[part.tensor].fan_out is None or caller.geometry.contiguous:
            return caller
        if part.first:
            flat = caller.geometry._replace(strides=row_major(caller.geometry.sizes))
            memory = self._new_memory()
            self._round.buffers.append(Buffer(memory, flat.extent))
            self._flat[part.tensor] = RegionMemory(memory, flat, caller.region)
        return self._flat[part.tensor]

    def _pack(self, src: RegionMemory, region: Region) -> Span:
        """Return where a region is sent from: where it lies, or the staging buffer."""
        span = src.span(region)
        if span is None:
            span, stage = self._stage(src.geometry.itemsize, region)
            self._round.packs += region_copies(stage, src, region)
        return span

    def _unpack(self, dst: RegionMemory, region: Region) -> Span:
        """Return where a region is received: where it belongs, or the staging buffer."""
        span = dst.span(region)
        if span is None:
            span, stage = self._stage(dst.geometry.itemsize, region)
            self._round.unpacks += region_copies(dst, stage, region)
        return span

    def _stage(self, itemsize: int, region: Region) -> tuple[Span, RegionMemory]:
        """Return room in the round's staging buffer, in the row-major order that both ends of a message share."""
        memory, start = self._staged.get(itemsize) or (self._new_memory(), 0)
        sizes = lengths(region)
        length = math.prod(sizes) * itemsize
        self._staged[itemsize] = memory, start + length
        stage = RegionMemory(memory, Geometry(sizes, row_major(sizes), itemsize), region, start)
        return Span(memory, start, length), stage

    def _gathered_source(self, part: RoundPart, src: RegionMemory | None, dst: RegionMemory | None) -> Span | None:
        """Return the stripe as the source holds it, where an all-gather can read all of it from there in one span."""
        plan = self.plans[part.tensor]
        gathers = plan.fan_out is not None and plan.fan_out.kind is FanOutKind.ALL_GATHER
        if src is None or dst is None or not gathers or plan.receives or len(plan.copies) != 1:
            return None
        return src.span(plan.copies[0])

    def _replicate(self, tensor: int, dst: RegionMemory, gathered: Span | None) -> None:
        """Rebuild the rest of the destination from its replicas, then copy it back to the caller's tensor."""
        fan_out, split = self.plans[tensor].fan_out, self.splits[tensor]
        if fan_out is None:
            return
        step, whole = self._round, Span(dst.memory, 0, dst.geometry.extent)
        stripes = _stripe_spans(whole, fan_out.stripes)
        if fan_out.kind is FanOutKind.ALL_GATHER:
            step.replications.append(AllGather(split, whole, gathered or stripes[fan_out.index]))
        else:
            step.replications += [Broadcast(split, root, span) for root, span in enumerate(stripes) if span.length]
        caller = self._caller_destination(tensor)
        if tensor in self._flat and caller is not None:
            step.copy_back += region_copies(caller, dst, dst.region)
            step.frees.append(dst.memory)

    def _new_memory(self) -> int:
        self.memories += 1
        return self.memories - 1


def _stripe_spans(whole: Span, elements: Sequence[int]) -> list[Span]:
    """Return a contiguous shard cut into stripes of so many elements, one after another."""
    itemsize = whole.length // sum(elements)
    starts = accumulate((count * itemsize for count in elements), initial=whole.offset)
    return [Span(whole.memory, start, count * itemsize) for start, count in zip(starts, elements, strict=False)]
