"""A tensor dim cut so that a rank may hold several runs of it (strided and segmented placements), in closed form.

Each cut divides the list of what is left into *parts*, cuts every part over a mesh dim as torch.chunk does, and leaves each
coordinate its chunk of every part, in order. A plain shard is the cut whose list is one part. A *run* is adjacent elements
of the dim that one rank holds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import mul
from typing import NamedTuple, Protocol

from restripe.layout.chunked import Chunk, Interval, Intervals


class CutStep(NamedTuple):
    """The cut by one mesh dim of this `size`: into so many `pieces` first, as torch.chunk cuts, or into `segments`."""

    mesh_dim: int
    size: int
    pieces: int = 1
    segments: tuple[int, ...] = ()

    @property
    def plain(self) -> bool:
        """True where it cuts as Shard does."""
        return self.pieces == 1 and not self.segments

    def parts_of(self, length: int) -> DimParts:
        """Return the parts of a list of this length."""
        return SegmentParts(self.size, self.segments) if self.segments else EqualParts(self.size, length, self.pieces)


class DimParts(Protocol):
    """The parts that a list is divided into, each of which is cut over a mesh dim."""

    @property
    def size(self) -> int:
        """The mesh dim's size."""

    def bounds_of(self, number: int) -> tuple[int, int]:
        """Return where a part begins, and its length."""

    def part_at(self, position: int) -> int:
        """Return the number of the part that holds this position of the list."""

    def held_before(self, number: int, index: int) -> int:
        """Return how many elements a coordinate holds of the parts before this one."""

    def part_reached(self, place: int, index: int) -> int:
        """Return the number of the part that holds this element of what a coordinate holds."""

    def held_by(self, index: int) -> int:
        """Return how many elements a coordinate holds in all."""

    def part_lengths(self) -> Iterable[int]:
        """Return the lengths that parts have."""


@dataclass(frozen=True)
class EqualParts:
    """Parts as torch.chunk makes them: all of one length, but the last."""

    size: int
    length: int
    pieces: int

    @cached_property
    def _each(self) -> int:
        return -(-self.length // self.pieces)

    def bounds_of(self, number: int) -> tuple[int, int]:
        start = self._each * number
        return start, min(self._each, self.length - start)

    def part_at(self, position: int) -> int:
        return position // self._each

    def held_before(self, number: int, index: int) -> int:
        return number * _chunk_length(self._each, self.size, index)

    def part_reached(self, place: int, index: int) -> int:
        each, full = _chunk_length(self._each, self.size, index), self.length // self._each
        return (
            min(place // each, full) if each else full
        )  # an index past the chunks of full parts may have one of the last

    def held_by(self, index: int) -> int:
        if not self.length:
            return 0
        full, rest = divmod(self.length, self._each)
        return full * _chunk_length(self._each, self.size, index) + _chunk_length(rest, self.size, index)

    def part_lengths(self) -> Iterable[int]:
        return {self._each, self.length % self._each} if self.length else ()


@dataclass(frozen=True)
class SegmentParts:
    """Parts of the lengths that a placement names."""

    size: int
    lengths: tuple[int, ...]

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate(self.lengths, initial=0))

    @cached_property
    def _counts(self) -> Counter[int]:
        return Counter(self.lengths)

    def bounds_of(self, number: int) -> tuple[int, int]:
        return self._starts[number], self.lengths[number]

    def part_at(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def held_before(self, number: int, index: int) -> int:
        return sum(_chunk_length(length, self.size, index) for length in self.lengths[:number])

    def part_reached(self, place: int, index: int) -> int:
        ends = accumulate(_chunk_length(length, self.size, index) for length in self.lengths)
        return next(number for number, end in enumerate(ends) if place < end)

    def held_by(self, index: int) -> int:
        return sum(count * _chunk_length(length, self.size, index) for length, count in self._counts.items())

    def part_lengths(self) -> Iterable[int]:
        return self._counts


@dataclass(frozen=True)
class PiecewiseDim:
    """A tensor dim of `length` elements, cut by these steps from left to right; as `ChunkedDim` is by plain shards."""

    length: int
    steps: tuple[CutStep, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the mesh dims that cut."""
        return tuple(step.size for step in self.steps)

    def intervals(self, coordinates: Sequence[int]) -> Intervals:
        """Return what these coordinates hold: adjacent runs are one interval."""
        levels, length = [], self.length
        for step, index in zip(self.steps, coordinates, strict=True):
            levels.append((step.parts_of(length), index))
            length = levels[-1][0].held_by(index)
        runs = [(0, length)] if length else []
        for parts, index in reversed(levels):
            runs = join_intervals(run for lo, hi in runs for run in _runs_in_list(parts, index, lo, hi))
        return tuple(runs)

    def owner(self, position: int) -> Chunk:
        """Return the coordinates that hold this position, 0 <= position < length, and their run around it."""
        lo, hi, place, length, coordinates = 0, self.length, position, self.length, []
        for step in self.steps:
            parts = step.parts_of(length)
            number = parts.part_at(place)
            start, part = parts.bounds_of(number)
            chunk = -(-part // step.size)
            index = (place - start) // chunk
            first = start + chunk * index
            lo = max(lo, position - (place - first))
            hi = min(hi, position + min(first + chunk, start + part) - place)
            place, length = parts.held_before(number, index) + place - first, parts.held_by(index)
            coordinates.append(index)
        return Chunk(tuple(coordinates), lo, hi)

    def overlapping(self, lo: int, hi: int) -> Iterator[Chunk]:
        """Yield the runs that overlap [lo, hi), in order; coordinates may come again."""
        while lo < hi:
            chunk = self.owner(lo)
            yield chunk
            lo = chunk.hi

    def divides(self, parts: int) -> bool:
        """Return whether what each coordinate holds splits into that many equal parts."""
        return all(length % parts == 0 for length in self._lengths)

    @property
    def longest(self) -> int:
        """The most that any coordinates hold."""
        return max(self._lengths)

    @cached_property
    def _lengths(self) -> set[int]:
        """The numbers of elements that coordinates hold."""
        lengths = {self.length}
        for step in self.steps:
            lengths = {held for length in lengths for held in _held_lengths(step.parts_of(length))}
        return lengths

    def cut_again(self, size: int) -> PiecewiseDim:
        """Return the dim cut once more as Shard cuts."""
        return PiecewiseDim(self.length, (*self.steps, CutStep(0, size)))


def plain_order(length: int, steps: Sequence[CutStep]) -> list[CutStep] | None:
    """Return an order in which plain shards by the same mesh dims leave every coordinate what these steps do, or None.

    Where all divides evenly, cutting into pieces first is what mesh dims further right had done if they had come before: so
    FSDP2 writes a shard of what tensor parallelism left.
    """
    if any(step.segments for step in steps) or length % math.prod(step.size for step in steps):
        return None
    order: list[CutStep] = []
    for step in reversed(steps):
        before = list(accumulate((other.size for other in order), mul, initial=1))
        if step.pieces not in before:
            return None
        order.insert(before.index(step.pieces), step)
    return order


def join_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return ascending intervals without the empty ones, adjacent ones as one."""
    joined: list[Interval] = []
    for lo, hi in intervals:
        if joined and joined[-1][1] == lo:
            joined[-1] = joined[-1][0], hi
        elif lo < hi:
            joined.append((lo, hi))
    return joined


def _chunk_length(length: int, size: int, index: int) -> int:
    """Return how many of a part's elements a coordinate holds."""
    chunk = -(-length // size)
    return max(0, min(chunk, length - chunk * index))


def _held_lengths(parts: DimParts) -> set[int]:
    """Return how much the coordinates hold: it changes only after the full chunks of some part, and after its shorter one."""
    changes = {0}
    for length in parts.part_lengths():
        full = length // -(-length // parts.size) if length else 0
        changes |= {full, full + 1}
    return {parts.held_by(index) for index in changes if index < parts.size}


def _runs_in_list(parts: DimParts, index: int, lo: int, hi: int) -> Iterator[Interval]:
    """Yield where in the list the elements [lo, hi) of what a coordinate holds lie."""
    number = parts.part_reached(lo, index)
    before = parts.held_before(number, index)
    while before < hi:
        start, length = parts.bounds_of(number)
        held = _chunk_length(length, parts.size, index)
        shift = start + -(-length // parts.size) * index - before
        if before + held > lo:
            yield shift + max(before, lo), shift + min(before + held, hi)
        before, number = before + held, number + 1
