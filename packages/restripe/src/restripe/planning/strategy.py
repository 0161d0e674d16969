"""Which shape a plan takes: decided from the two layouts and the tensor's shape alone, alike on every rank.

Whether a piece lies contiguous in a shard is judged dim by dim by row-major geometry of the layouts, never by a rank's
actual strides: ranks would decide differently and hang.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from itertools import product
from typing import NamedTuple

from restripe.layout.chunked import Cuts
from restripe.layout.partition import Partition
from restripe.layout.piecewise import Runs
from restripe.planning.plan import Reason

LONG = 512  # how many pieces of one tensor dim are looked at, one after another


def decide(src: Partition, dst: Partition) -> Reason:
    """The shape of the plan that moves a tensor from `src` to `dst`."""
    if is_local(src, dst):
        return Reason.LOCAL
    if not math.prod(dst.shape):
        return Reason.EMPTY
    if dst.layout.replicas == 1:
        return Reason.POINT
    stripes = grid(dst)
    if math.prod(stripes) == 1:
        return Reason.SCALAR
    if (View.BROKEN, View.BROKEN) in views(src.cuts, dst.cuts, stripes):
        return Reason.STAGING
    even = all(cuts.divides(count) for cuts, count in zip(dst.cuts, stripes, strict=True))
    return Reason.STRIPED if even and math.prod(stripes) == dst.layout.replicas else Reason.RAGGED


def grid(dst: Partition) -> tuple[int, ...]:
    """Into how many stripes each tensor dim of a shard is cut, at most one stripe a replica in all.

    A stripe is contiguous in a row-major shard: the dims before the last that is cut are cut down to length 1.
    """
    left, found = dst.layout.replicas, []
    for cuts in dst.cuts:
        found.append(min(left, cuts.longest))
        left //= found[-1]
    return tuple(found)


def is_local(src: Partition, dst: Partition) -> bool:
    """Whether the layouts alone put every destination region inside its own rank's source region."""
    if src.mesh.is_grid_of(dst.mesh):
        return all(into[: len(out)] == out for out, into in zip(src.steps, dst.steps, strict=True))
    return not any(src.steps) and src.mesh.covers(dst.mesh)


class Piece(NamedTuple):
    """How a piece that crosses lies in one tensor dim: of length 1, and covering the source's or destination's shard."""

    single: bool
    fills_source: bool
    fills_destination: bool


class View(Enum):
    """How far a piece is contiguous in its shard, walking its dims in row-major order."""

    SINGLE = auto()  # every dim so far has length 1
    WHOLE = auto()  # one dim was longer; each dim since covers the shard's
    BROKEN = auto()  # not contiguous

    def step(self, single: bool, fills: bool) -> View:
        """The view one dim further on."""
        if self is View.SINGLE:
            return View.SINGLE if single else View.WHOLE
        return View.WHOLE if self is View.WHOLE and fills else View.BROKEN


def views(src: Sequence[Cuts | Runs], dst: Sequence[Cuts | Runs], stripes: Sequence[int]) -> set[tuple[View, View]]:
    """How pieces lie in their source shard and in their destination shard: every pair of views that occurs.

    Which pieces meet in one tensor dim does not depend on the other dims, so every combination of them occurs. Where either
    side is woven the worse is assumed.
    """
    found = {(View.SINGLE, View.SINGLE)}
    for out, into, count in zip(src, dst, stripes, strict=True):
        found = {after for before in found for after in _steps(before, out, into, count)}
    return found


def _steps(before: tuple[View, View], src: Cuts | Runs, dst: Cuts | Runs, stripes: int) -> Iterator[tuple[View, View]]:
    """The views one dim further on. What one interval meets of several runs is one run of their local dim, not of its own."""
    source, destination = before
    if isinstance(src, Cuts) and isinstance(dst, Cuts):
        for piece in _pieces(src, dst, stripes):
            yield (
                source.step(piece.single, piece.fills_source),
                destination.step(piece.single, piece.fills_destination),
            )
    else:
        yield (
            source.step(False, False) if isinstance(dst, Cuts) else View.BROKEN,
            destination.step(False, False) if isinstance(src, Cuts) else View.BROKEN,
        )


def _pieces(src: Cuts, dst: Cuts, stripes: int) -> Iterator[Piece]:
    """Every kind of piece that crosses in one tensor dim, over one common period of the cuts and what follows the last.

    Where that would be a long walk, every kind that the lengths of chunks allow.
    """
    target = dst.cut(stripes) if stripes > 1 else dst
    (src_period, src_end), (dst_period, dst_end) = src.period, target.period
    period, end = math.lcm(src_period, dst_period), min(src_end, dst_end)
    walk = min(period, src.length)
    if src.most(walk) + target.most(walk) > LONG:
        yield from _possible(src, dst, target)
        return
    position = 0
    while position < src.length:
        source, shard = src.owner(position), dst.owner(position)
        stop = min(source.hi, target.owner(position).hi)
        size = stop - position
        yield Piece(size == 1, size == source.hi - source.lo, size == shard.hi - shard.lo)
        position = max(stop, end // period * period) if stop == period else stop


def _possible(src: Cuts, dst: Cuts, target: Cuts) -> Iterator[Piece]:
    """Every kind of piece that sources, shards and targets of such lengths could leave."""
    sources, shards, targets = src.kinds, dst.kinds, target.kinds
    longest = min(max(sources), max(targets))
    for single in (True, False):
        within = range(1, 2) if single else range(2, longest + 1)
        if single and math.gcd(*sources, *targets) > 1:  # every edge is a multiple of it
            continue
        fills_source = any(length in within for length in sources)
        fills_shard = any(length in within for length in shards)
        kinds = product((False, True)[: 1 + fills_source], (False, True)[: 1 + fills_shard])
        yield from (Piece(single, *fills) for fills in kinds if within)


def striped(cuts: Cuts | Runs, stripes: int) -> Cuts | Runs:
    """A destination's tensor dim with each shard cut once more, into stripes."""
    return cuts.cut(stripes) if stripes > 1 else cuts
