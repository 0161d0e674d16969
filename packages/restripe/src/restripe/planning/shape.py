"""Which shape a plan takes: decided from the two layouts and the tensor's shape alone, alike on every rank.

Whether a piece lies contiguous in a shard is judged dim by dim by row-major geometry of the layouts, never by a rank's
actual strides: ranks would decide differently and hang.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

from restripe.cuts import Cuts
from restripe.layout import Partition
from restripe.planning.plan import Reason


def decide(src: Partition, dst: Partition) -> Reason:
    """The shape of the plan that moves a tensor from `src` to `dst`."""
    if is_local(src, dst):
        return Reason.LOCAL
    if not math.prod(dst.shape):
        return Reason.EMPTY
    if dst.layout.replicas == 1:
        return Reason.POINT
    if not dst.shape:
        return Reason.SCALAR
    if not dst.cuts[0].divides(dst.layout.replicas):
        return Reason.UNEVEN
    twice = (View.BROKEN, View.BROKEN)
    return Reason.STAGING if twice in views(src.cuts, dst.cuts, dst.layout.replicas) else Reason.STRIPED


def is_local(src: Partition, dst: Partition) -> bool:
    """Whether the layouts alone put every destination region inside its own rank's source region."""
    if src.layout.mesh == dst.layout.mesh:
        return all(into[: len(out)] == out for out, into in zip(src.dims, dst.dims, strict=True))
    return not any(src.dims) and src.mesh.covers(dst.mesh)


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


def views(src: Sequence[Cuts], dst: Sequence[Cuts], stripes: int) -> set[tuple[View, View]]:
    """How pieces lie in their source shard and in their destination shard: every pair of views that occurs.

    Which pieces meet in one tensor dim does not depend on the other dims, so every combination of them occurs.
    """
    found = {(View.SINGLE, View.SINGLE)}
    for dim, (out, into) in enumerate(zip(src, dst, strict=True)):
        pieces = set(_pieces(out, into, stripes if dim == 0 else 1))
        found = {
            (source.step(piece.single, piece.fills_source), destination.step(piece.single, piece.fills_destination))
            for source, destination in found
            for piece in pieces
        }
    return found


def _pieces(src: Cuts, dst: Cuts, stripes: int) -> Iterator[Piece]:
    """Every kind of piece that crosses in one tensor dim, over one common period of the cuts and what follows the last."""
    target = striped(dst, stripes)
    (src_period, src_end), (dst_period, dst_end) = src.period, target.period
    period, end = math.lcm(src_period, dst_period), min(src_end, dst_end)
    position = 0
    while position < src.length:
        source, shard = src.owner(position), dst.owner(position)
        stop = min(source.hi, target.owner(position).hi)
        size = stop - position
        yield Piece(size == 1, size == source.hi - source.lo, size == shard.hi - shard.lo)
        position = max(stop, end // period * period) if stop == period else stop


def striped(cuts: Cuts, stripes: int) -> Cuts:
    """Dim 0 of a destination with each chunk cut once more, into one stripe a replica."""
    return Cuts(cuts.length, (*cuts.sizes, stripes)) if stripes > 1 else cuts
