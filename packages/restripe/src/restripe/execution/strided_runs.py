"""How a part of a tensor dim lies in a local dim, and how it is copied from one to another in few strided pieces."""

from __future__ import annotations

from typing import NamedTuple

from restripe.layout.chunked import Interval, Intervals
from restripe.layout.piecewise import joined


class Stretch(NamedTuple):
    """So many `pieces` of `length` elements that lie at even distances in two local dims.

    The first begins at `starts`, each next one `steps` further, there and there.
    """

    length: int
    starts: tuple[int, int]
    pieces: int = 1
    steps: tuple[int, int] = (0, 0)


def places(owned: Intervals, part: Intervals) -> list[int]:
    """Where each interval of a part begins in the local dim of what is owned; each lies within one of its intervals."""
    found, mine = [], iter(owned)
    lo, hi, before = 0, 0, 0
    for first, last in part:
        while last > hi:
            before += hi - lo
            lo, hi = next(mine)
        found.append(before + first - lo)
    return found


def within(owned: Intervals, part: Intervals) -> list[Interval]:
    """The intervals of the local dim in which a part of what is owned lies: one where it is adjacent there."""
    starts = places(owned, part)
    return joined((start, start + hi - lo) for start, (lo, hi) in zip(starts, part, strict=True))


def stretches(one: Intervals, other: Intervals, part: Intervals) -> list[Stretch]:
    """How a part of what two sides own lies in both, in order, in as few stretches as neighbours make."""
    found: list[Stretch] = []
    for here, there, (lo, hi) in zip(places(one, part), places(other, part), part, strict=True):
        piece = Stretch(hi - lo, (here, there))
        if found and _adjoins(found[-1], piece):
            piece = Stretch(found[-1].length + piece.length, found.pop().starts)
        found.append(piece)
    return _even(found)


def _adjoins(one: Stretch, other: Stretch) -> bool:
    return all(end + one.length == start for end, start in zip(one.starts, other.starts, strict=True))


def _even(pieces: list[Stretch]) -> list[Stretch]:
    """Runs of pieces alike at even distances, each as one stretch."""
    found: list[Stretch] = []
    for piece in pieces:
        if found:
            last = found[-1]
            (here, there), count = last.starts, last.pieces
            ahead = piece.starts[0] - here, piece.starts[1] - there
            steps = ahead if count == 1 else last.steps
            if piece.length == last.length and ahead == (steps[0] * count, steps[1] * count):
                found[-1] = Stretch(last.length, last.starts, count + 1, steps)
                continue
        found.append(piece)
    return found
