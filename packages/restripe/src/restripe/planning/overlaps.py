"""Overlaps in one tensor dim: the chunks of the other side that share elements with one of ours, found by dividing.

A *target* is what one rank receives before the fan-out. Both ends of a message find each other by the same arithmetic: what
a pair shares, its number, and the target's place among those that take from one source follow from both cuts alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from restripe.layout.chunked import Chunk, ChunkedDim, Coordinates, CutDim, Interval, Intervals, both_chunked, ravel
from restripe.layout.piecewise import join_intervals
from restripe.planning.plan import OverlapBound


class Overlap(NamedTuple):
    """A chunk of the other side that meets ours: its coordinates, and the intervals that both share.

    `pair_index` numbers the pair. `number` is the target's place among the `total` targets that take from the source; where
    these are not counted, it is the target's place among all, and the total 1: the numbers of several dims then just add up.
    """

    coordinates: Coordinates
    shared: Intervals
    pair_index: int
    number: int
    total: int


class DimOverlaps(Protocol):
    """Sources and targets of one tensor dim."""

    def senders_to(self, target: Coordinates) -> list[Overlap]:
        """Return the sources that a target takes from."""

    def receivers_of(self, source: Coordinates) -> list[Overlap]:
        """Return the targets that take from a source."""

    @property
    def bounds(self) -> tuple[OverlapBound, OverlapBound]:
        """Bounds on the targets that one source meets, and on the sources that one target meets."""


@dataclass(frozen=True)
class ChunkedOverlaps:
    """Sources and targets that are single intervals.

    Args:
        numbered: whether targets are numbered among those that take from one source, which costs a division each.
    """

    sources: ChunkedDim
    targets: ChunkedDim
    numbered: bool

    def senders_to(self, target: Coordinates) -> list[Overlap]:
        """Return the sources that a target takes from."""
        lo, hi = self.targets.interval(target)
        if lo == hi:
            return []
        overlaps, ordinal = [], self.targets.ordinal(lo)
        first = last = ordinal
        for pair_index, chunk in enumerate(self.sources.overlapping(lo, hi), start=ordinal + self.sources.ordinal(lo)):
            if self.numbered:
                first, last = self.targets.ordinal(chunk.lo), self.targets.ordinal(chunk.hi - 1)
            shared = _shared_interval(chunk, lo, hi)
            overlaps.append(Overlap(chunk.coordinates, shared, pair_index, ordinal - first, last - first + 1))
        return overlaps

    def receivers_of(self, source: Coordinates) -> list[Overlap]:
        """Return the targets that take from a source."""
        lo, hi, first, total = self._receiver_range(source)
        pair_index = self.sources.ordinal(lo) + first if total else 0
        return [
            Overlap(chunk.coordinates, _shared_interval(chunk, lo, hi), pair_index + number, number, total)
            for number, chunk in enumerate(self.targets.overlapping(lo, hi))
        ]

    def receiver_count(self, source: Coordinates) -> int:
        """Return how many targets take from a source."""
        return self._receiver_range(source)[-1]

    def nth_receiver(self, source: Coordinates, number: int) -> Overlap:
        """Return the target of this number among those that take from a source."""
        lo, hi, first, total = self._receiver_range(source)
        chunk = self.targets.nth(first + number)
        pair_index = self.sources.ordinal(lo) + first + number
        return Overlap(chunk.coordinates, _shared_interval(chunk, lo, hi), pair_index, number, total)

    def _receiver_range(self, source: Coordinates) -> tuple[int, int, int, int]:
        """Return a source's interval, the ordinal of the first target that takes from it, and how many do."""
        lo, hi = self.sources.interval(source)
        if lo == hi:
            return lo, hi, 0, 0
        first = self.targets.ordinal(lo)
        return lo, hi, first, self.targets.ordinal(hi - 1) - first + 1

    @property
    def bounds(self) -> tuple[OverlapBound, OverlapBound]:
        """Bounds on the targets that one source meets, and on the sources that one target meets."""
        targets = self.targets.max_overlaps(self.sources.longest)
        sources = self.sources.max_overlaps(self.targets.longest)
        return OverlapBound(targets, targets), OverlapBound(sources, sources)


@dataclass(frozen=True)
class PiecewiseOverlaps:
    """Sources or targets of which some are several intervals."""

    sources: CutDim
    targets: CutDim

    def senders_to(self, target: Coordinates) -> list[Overlap]:
        """Return the sources that a target takes from."""
        number = ravel(target, self.targets.sizes)
        shared_with = _shared_intervals(self.targets.intervals(target), self.sources)
        return [
            Overlap(source, shared, ravel(source, self.sources.sizes) + number, number, 1)
            for source, shared in shared_with.items()
        ]

    def receivers_of(self, source: Coordinates) -> list[Overlap]:
        """Return the targets that take from a source."""
        before, overlaps = ravel(source, self.sources.sizes), []
        for target, shared in _shared_intervals(self.sources.intervals(source), self.targets).items():
            number = ravel(target, self.targets.sizes)
            overlaps.append(Overlap(target, shared, before + number, number, 1))
        return overlaps

    @property
    def bounds(self) -> tuple[OverlapBound, OverlapBound]:
        """Bounds on the targets that one source meets, and on the sources that one target meets.

        Which of all they are does not follow from the cuts, so pair indices may leave gaps.
        """
        return _overlap_bound(self.sources, self.targets), _overlap_bound(self.targets, self.sources)


def dim_overlaps(sources: CutDim, targets: CutDim, *, numbered: bool) -> DimOverlaps:
    """Return the overlaps of the sources and targets of one tensor dim."""
    chunked = both_chunked(sources, targets)
    return PiecewiseOverlaps(sources, targets) if chunked is None else ChunkedOverlaps(*chunked, numbered)


def _shared_interval(chunk: Chunk, lo: int, hi: int) -> Intervals:
    return ((max(chunk.lo, lo), min(chunk.hi, hi)),)


def _shared_intervals(intervals: Intervals, other: CutDim) -> dict[Coordinates, Intervals]:
    """Return the intervals that each coordinate of the other side shares with these."""
    shared: dict[Coordinates, list[Interval]] = {}
    for lo, hi in intervals:
        for coordinates, chunk_lo, chunk_hi in other.overlapping(lo, hi):
            shared.setdefault(coordinates, []).append((max(chunk_lo, lo), min(chunk_hi, hi)))
    return {coordinates: tuple(join_intervals(pieces)) for coordinates, pieces in shared.items()}


def _overlap_bound(dim: CutDim, other: CutDim) -> OverlapBound:
    count = math.prod(other.sizes)
    return OverlapBound(min(count, dim.longest), count)
