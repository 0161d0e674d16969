"""Exact check that pieces of a tensor tile a region: it sweeps one tensor dim after the other from cut to cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from restripe.layout.chunked import Interval, Intervals, Region


class Flaw(NamedTuple):
    """A box that pieces cover `times` times instead of once; it has an interval for each tensor dim that was swept."""

    box: tuple[Interval, ...]
    times: int


def find_flaw(pieces: Sequence[Region], whole: Region) -> Flaw | None:
    """Return a box that the pieces cover wrongly: not exactly once, or outside the whole; None for a tiling.

    The cost grows with the number of pieces between each two cuts; for pieces of a layout it is linear in their number.
    """
    return _sweep([piece for piece in pieces if all(piece)], whole, 0)


def _sweep(pieces: Sequence[Region], whole: Region, dim: int) -> Flaw | None:
    """Return the flaw of the lowest position along tensor dims from `dim` on."""
    if dim == len(whole):
        return None if len(pieces) == 1 else Flaw((), len(pieces))
    begins, ends = _edges(enumerate([whole[dim], *(piece[dim] for piece in pieces)]))
    active: dict[int, None] = {}  # 0 stands for the whole, n + 1 for piece n; in order, for messages that never change
    for lo, hi in pairwise(sorted({*begins, *ends})):
        for number in ends[lo]:
            del active[number]
        active.update(dict.fromkeys(begins[lo]))
        slab = [pieces[number - 1] for number in active if number]
        if 0 in active:
            inner = _sweep(slab, whole, dim + 1)
            if inner is not None:
                return Flaw(((lo, hi), *inner.box), inner.times)
        elif slab:
            return Flaw(((lo, hi),), len(slab))
    return None


def _edges(
    numbered: Iterable[tuple[int, Intervals]],
) -> tuple[defaultdict[int, list[int]], defaultdict[int, list[int]]]:
    """Return by position the numbers whose intervals begin there, and the numbers whose intervals end there."""
    begins, ends = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for number, intervals in numbered:
        for lo, hi in join_touching(intervals):
            begins[lo].append(number)
            ends[hi].append(number)
    return begins, ends


def join_touching(intervals: Intervals) -> Intervals:
    """Return the intervals in rising order, with those that touch joined."""
    joined: list[Interval] = []
    for lo, hi in sorted(intervals):
        if joined and joined[-1][1] == lo:
            joined[-1] = joined[-1][0], hi
        else:
            joined.append((lo, hi))
    return tuple(joined)


def is_within(inner: Region, outer: Region) -> bool:
    """Return whether the outer region holds every element of the inner region, which must not be empty."""
    return all(
        all(any(low <= lo and hi <= high for low, high in join_touching(outer_dim)) for lo, hi in inner_dim)
        for inner_dim, outer_dim in zip(inner, outer, strict=True)
    )
