"""How a tensor dim is cut where a rank may hold several runs of it (strided and segmented placements), in closed form.

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


class Step(NamedTuple):
    """How one mesh dim of this `size` cuts: into so many `pieces` first, as torch.chunk cuts, or into `segments`."""

    mesh_dim: int
    size: int
    pieces: int = 1
    segments: tuple[int, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether it cuts as Shard does."""
        return self.pieces == 1 and not self.segments

    def over(self, length: int) -> Parts:
        """The parts of a list of this length."""
        return Segments(self.size, self.segments) if self.segments else Pieces(self.size, length, self.pieces)


class Parts(Protocol):
    """The parts that a list is divided into, each cut over a mesh dim."""

    @property
    def size(self) -> int:
        """The mesh dim's size."""

    def part(self, number: int) -> tuple[int, int]:
        """Where a part begins, and its length."""

    def at(self, position: int) -> int:
        """The number of the part that holds this position of the list."""

    def before(self, number: int, index: int) -> int:
        """How many elements a coordinate holds of the parts before this one."""

    def reached(self, place: int, index: int) -> int:
        """The number of the part that holds this place of what a coordinate holds."""

    def holds(self, index: int) -> int:
        """How many elements a coordinate holds in all."""

    def kinds(self) -> Iterable[int]:
        """The lengths that parts have."""


@dataclass(frozen=True)
class Pieces:
    """Parts as torch.chunk makes them: all of one length, but the last."""

    size: int
    length: int
    pieces: int

    @cached_property
    def _each(self) -> int:
        return -(-self.length // self.pieces)

    def part(self, number: int) -> tuple[int, int]:
        start = self._each * number
        return start, min(self._each, self.length - start)

    def at(self, position: int) -> int:
        return position // self._each

    def before(self, number: int, index: int) -> int:
        return number * _held(self._each, self.size, index)

    def reached(self, place: int, index: int) -> int:
        each, full = _held(self._each, self.size, index), self.length // self._each
        return (
            min(place // each, full) if each else full
        )  # an index past the chunks of full parts may have one of the last

    def holds(self, index: int) -> int:
        if not self.length:
            return 0
        full, rest = divmod(self.length, self._each)
        return full * _held(self._each, self.size, index) + _held(rest, self.size, index)

    def kinds(self) -> Iterable[int]:
        return {self._each, self.length % self._each} if self.length else ()


@dataclass(frozen=True)
class Segments:
    """Parts of the lengths that a placement names."""

    size: int
    lengths: tuple[int, ...]

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate(self.lengths, initial=0))

    @cached_property
    def _counts(self) -> Counter[int]:
        return Counter(self.lengths)

    def part(self, number: int) -> tuple[int, int]:
        return self._starts[number], self.lengths[number]

    def at(self, position: int) -> int:
        return bisect_right(self._starts, position) - 1

    def before(self, number: int, index: int) -> int:
        return sum(_held(length, self.size, index) for length in self.lengths[:number])

    def reached(self, place: int, index: int) -> int:
        ends = accumulate(_held(length, self.size, index) for length in self.lengths)
        return next(number for number, end in enumerate(ends) if place < end)

    def holds(self, index: int) -> int:
        return sum(count * _held(length, self.size, index) for length, count in self._counts.items())

    def kinds(self) -> Iterable[int]:
        return self._counts


@dataclass(frozen=True)
class Runs:
    """A tensor dim of `length` elements, cut by these steps from left to right; what `Cuts` is for plain shards."""

    length: int
    steps: tuple[Step, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the mesh dims that cut."""
        return tuple(step.size for step in self.steps)

    def intervals(self, coordinates: Sequence[int]) -> Intervals:
        """What these coordinates hold: adjacent runs are one interval."""
        levels, length = [], self.length
        for step, index in zip(self.steps, coordinates, strict=True):
            levels.append((step.over(length), index))
            length = levels[-1][0].holds(index)
        found = [(0, length)] if length else []
        for parts, index in reversed(levels):
            found = joined(run for lo, hi in found for run in _spread(parts, index, lo, hi))
        return tuple(found)

    def owner(self, position: int) -> Chunk:
        """The coordinates that hold this position, 0 <= position < length, and their run around it."""
        lo, hi, place, length, coordinates = 0, self.length, position, self.length, []
        for step in self.steps:
            parts = step.over(length)
            number = parts.at(place)
            start, part = parts.part(number)
            chunk = -(-part // step.size)
            index = (place - start) // chunk
            first = start + chunk * index
            lo = max(lo, position - (place - first))
            hi = min(hi, position + min(first + chunk, start + part) - place)
            place, length = parts.before(number, index) + place - first, parts.holds(index)
            coordinates.append(index)
        return Chunk(tuple(coordinates), lo, hi)

    def meeting(self, lo: int, hi: int) -> Iterator[Chunk]:
        """The runs that overlap [lo, hi), in order; coordinates may come again."""
        while lo < hi:
            chunk = self.owner(lo)
            yield chunk
            lo = chunk.hi

    def divides(self, parts: int) -> bool:
        """Whether what each coordinate holds splits into that many equal parts."""
        return all(length % parts == 0 for length in self._lengths)

    @property
    def longest(self) -> int:
        """The most that any coordinates hold."""
        return max(self._lengths)

    @cached_property
    def _lengths(self) -> set[int]:
        """How much the coordinates hold."""
        lengths = {self.length}
        for step in self.steps:
            lengths = {held for length in lengths for held in _holdings(step.over(length))}
        return lengths

    def cut(self, size: int) -> Runs:
        """The same, cut once more as Shard cuts."""
        return Runs(self.length, (*self.steps, Step(0, size)))


def plain_order(length: int, steps: Sequence[Step]) -> list[Step] | None:
    """An order in which plain shards by the same mesh dims leave every coordinate what these steps do; None without one.

    Where all divides evenly, cutting into pieces first is what mesh dims further right had done if they had come before: so
    FSDP2 writes a shard of what tensor parallelism left.
    """
    if any(step.segments for step in steps) or length % math.prod(step.size for step in steps):
        return None
    order: list[Step] = []
    for step in reversed(steps):
        before = list(accumulate((other.size for other in order), mul, initial=1))
        if step.pieces not in before:
            return None
        order.insert(before.index(step.pieces), step)
    return order


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Ascending intervals without the empty ones, adjacent ones as one."""
    found: list[Interval] = []
    for lo, hi in intervals:
        if found and found[-1][1] == lo:
            found[-1] = found[-1][0], hi
        elif lo < hi:
            found.append((lo, hi))
    return found


def _held(length: int, size: int, index: int) -> int:
    """How many of a part's elements a coordinate holds."""
    chunk = -(-length // size)
    return max(0, min(chunk, length - chunk * index))


def _holdings(parts: Parts) -> set[int]:
    """How much the coordinates hold: it changes only after the full chunks of some part, and after its shorter one."""
    changes = {0}
    for length in parts.kinds():
        full = length // -(-length // parts.size) if length else 0
        changes |= {full, full + 1}
    return {parts.holds(index) for index in changes if index < parts.size}


def _spread(parts: Parts, index: int, lo: int, hi: int) -> Iterator[Interval]:
    """Where in the list the places [lo, hi) of what a coordinate holds lie."""
    number = parts.reached(lo, index)
    place = parts.before(number, index)
    while place < hi:
        start, length = parts.part(number)
        held = _held(length, parts.size, index)
        first = start + -(-length // parts.size) * index - place
        if place + held > lo:
            yield first + max(place, lo), first + min(place + held, hi)
        place, number = place + held, number + 1
