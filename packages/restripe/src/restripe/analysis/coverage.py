"""Whether pieces of a tensor tile a region, decided exactly: one tensor dim after the other is swept from cut to cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from restripe.layout.chunked import Interval, Intervals, Region


class Flaw(NamedTuple):
    """A box of global intervals, one a tensor dim that was looked at, that is covered so many times and not once."""

    box: tuple[Interval, ...]
    times: int


def flaw(pieces: Sequence[Region], whole: Region) -> Flaw | None:
    """Where the pieces cover a part of the whole not exactly once, or something outside it; None where they tile it.

    The cost grows with the pieces of each slab between two cuts; for pieces cut as layouts cut, it is linear in them.
    """
    return _sweep([piece for piece in pieces if all(piece)], whole, 0)


def _sweep(pieces: Sequence[Region], whole: Region, dim: int) -> Flaw | None:
    if dim == len(whole):
        return None if len(pieces) == 1 else Flaw((), len(pieces))
    begins, ends = _edges(enumerate([whole[dim], *(piece[dim] for piece in pieces)]))
    active: dict[int, None] = {}  # 0 stands for the whole, n + 1 for piece n; in order, for messages that never change
    for lo, hi in pairwise(sorted({*begins, *ends})):
        for number in ends[lo]:
            del active[number]
        active.update(dict.fromkeys(begins[lo]))
        here = [pieces[number - 1] for number in active if number]
        if 0 in active:
            found = _sweep(here, whole, dim + 1)
            if found is not None:
                return Flaw(((lo, hi), *found.box), found.times)
        elif here:
            return Flaw(((lo, hi),), len(here))
    return None


def _edges(
    numbered: Iterable[tuple[int, Intervals]],
) -> tuple[defaultdict[int, list[int]], defaultdict[int, list[int]]]:
    """Which numbers' intervals begin, and which end, at a position."""
    begins, ends = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for number, intervals in numbered:
        for lo, hi in merged(intervals):
            begins[lo].append(number)
            ends[hi].append(number)
    return begins, ends


def merged(intervals: Intervals) -> Intervals:
    """The intervals in rising order, those that touch joined."""
    found: list[Interval] = []
    for lo, hi in sorted(intervals):
        if found and found[-1][1] == lo:
            found[-1] = found[-1][0], hi
        else:
            found.append((lo, hi))
    return tuple(found)


def within(inner: Region, outer: Region) -> bool:
    """Whether the outer region holds every element of the inner one, which is not empty."""
    return all(
        all(any(low <= lo and hi <= high for low, high in merged(theirs)) for lo, hi in mine)
        for mine, theirs in zip(inner, outer, strict=True)
    )
