"""Who meets whom in one tensor dim: the chunks of the other side that share elements with one of ours, found by dividing.

A *target* is what one rank receives before the fan-out. Both ends find each other alike: a pair's overlap, its band, and
the target's number among those that take from one source follow from both cuts alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from restripe.layout.chunked import Chunk, Coordinates, Cuts, Interval, Intervals, ravel
from restripe.layout.piecewise import Runs, joined
from restripe.planning.plan import Width


class Hit(NamedTuple):
    """A chunk of the other side that meets ours: its coordinates, and what both share.

    `band` numbers the pair. `number` is the target's place among the `total` targets that take from the source; where these
    are not counted, it is the target's place among all, and the total 1: the numbers of several dims then just add up.
    """

    coordinates: Coordinates
    overlap: Intervals
    band: int
    number: int
    total: int


@dataclass(frozen=True)
class Chunks:
    """Sources and targets that are single intervals; numbers are left out where nobody asks."""

    sources: Cuts
    targets: Cuts
    numbered: bool

    def givers(self, target: Coordinates) -> list[Hit]:
        """The sources that a target takes from."""
        lo, hi = self.targets.interval(target)
        if lo == hi:
            return []
        found, mine = [], self.targets.ordinal(lo)
        first = last = mine
        for band, chunk in enumerate(self.sources.meeting(lo, hi), start=mine + self.sources.ordinal(lo)):
            if self.numbered:
                first, last = self.targets.ordinal(chunk.lo), self.targets.ordinal(chunk.hi - 1)
            found.append(Hit(chunk.coordinates, _overlap(chunk, lo, hi), band, mine - first, last - first + 1))
        return found

    def takers(self, source: Coordinates) -> list[Hit]:
        """The targets that take from a source."""
        lo, hi, first, total = self._taken(source)
        band = self.sources.ordinal(lo) + first if total else 0
        return [
            Hit(chunk.coordinates, _overlap(chunk, lo, hi), band + number, number, total)
            for number, chunk in enumerate(self.targets.meeting(lo, hi))
        ]

    def count(self, source: Coordinates) -> int:
        """How many targets take from a source."""
        return self._taken(source)[-1]

    def taker(self, source: Coordinates, number: int) -> Hit:
        """The target of this number among those that take from a source."""
        lo, hi, first, total = self._taken(source)
        chunk = self.targets.nth(first + number)
        band = self.sources.ordinal(lo) + first + number
        return Hit(chunk.coordinates, _overlap(chunk, lo, hi), band, number, total)

    def _taken(self, source: Coordinates) -> tuple[int, int, int, int]:
        """A source's interval, the ordinal of the first target that takes from it, and how many do."""
        lo, hi = self.sources.interval(source)
        if lo == hi:
            return lo, hi, 0, 0
        first = self.targets.ordinal(lo)
        return lo, hi, first, self.targets.ordinal(hi - 1) - first + 1

    @property
    def widths(self) -> tuple[Width, Width]:
        """Bounds on the targets that one source meets, and on the sources that one target meets."""
        out, into = self.targets.most(self.sources.longest), self.sources.most(self.targets.longest)
        return Width(out, out), Width(into, into)


@dataclass(frozen=True)
class Woven:
    """Sources or targets of which some are several runs."""

    sources: Cuts | Runs
    targets: Cuts | Runs

    def givers(self, target: Coordinates) -> list[Hit]:
        """The sources that a target takes from."""
        number = ravel(target, self.targets.sizes)
        found = _meetings(self.targets.intervals(target), self.sources)
        return [
            Hit(source, overlap, ravel(source, self.sources.sizes) + number, number, 1)
            for source, overlap in found.items()
        ]

    def takers(self, source: Coordinates) -> list[Hit]:
        """The targets that take from a source."""
        before, hits = ravel(source, self.sources.sizes), []
        for target, overlap in _meetings(self.sources.intervals(source), self.targets).items():
            number = ravel(target, self.targets.sizes)
            hits.append(Hit(target, overlap, before + number, number, 1))
        return hits

    @property
    def widths(self) -> tuple[Width, Width]:
        """Bounds on the targets that one source meets, and on the sources that one target meets.

        Which of all they are is anybody's guess, so bands may leave gaps.
        """
        return _width(self.sources, self.targets), _width(self.targets, self.sources)


Meeting = Chunks | Woven


def meeting(sources: Cuts | Runs, targets: Cuts | Runs, *, numbered: bool) -> Meeting:
    """How the sources and targets of one tensor dim meet."""
    if isinstance(sources, Cuts) and isinstance(targets, Cuts):
        return Chunks(sources, targets, numbered)
    return Woven(sources, targets)


def _overlap(chunk: Chunk, lo: int, hi: int) -> Intervals:
    return ((max(chunk.lo, lo), min(chunk.hi, hi)),)


def _meetings(mine: Intervals, others: Cuts | Runs) -> dict[Coordinates, Intervals]:
    """What each coordinate of the other side shares with these intervals."""
    found: dict[Coordinates, list[Interval]] = {}
    for lo, hi in mine:
        for coordinates, first, last in others.meeting(lo, hi):
            found.setdefault(coordinates, []).append((max(first, lo), min(last, hi)))
    return {coordinates: tuple(joined(shared)) for coordinates, shared in found.items()}


def _width(mine: Cuts | Runs, others: Cuts | Runs) -> Width:
    count = math.prod(others.sizes)
    return Width(min(count, mine.longest), count)
