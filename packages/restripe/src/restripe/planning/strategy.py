"""The strategy of a plan: chosen from the two layouts and the tensor's shape alone, the same on every rank.

Whether a piece lies contiguous in a shard is judged dim by dim by row-major geometry of the layouts, never by a rank's
actual strides: ranks would choose differently and hang.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from itertools import product
from typing import NamedTuple

from restripe.layout.chunked import ChunkedDim, CutDim, both_chunked, is_chunked
from restripe.layout.partition import Partition
from restripe.planning.plan import Reason

MAX_WALK = (
    512  # pieces of one tensor dim that are looked at one by one; set so that a decision stays below a millisecond
)


def choose_strategy(src: Partition, dst: Partition) -> Reason:
    """Return the strategy of the plan that moves a tensor from `src` to `dst`, as the reason that the plan gives."""
    if is_local(src, dst):
        return Reason.LOCAL
    if not math.prod(dst.shape):
        return Reason.EMPTY
    if dst.layout.replicas == 1:
        return Reason.POINT
    stripes = stripe_grid(dst)
    if math.prod(stripes) == 1:
        return Reason.SCALAR
    if (Contiguity.BROKEN, Contiguity.BROKEN) in contiguities(src.cuts, dst.cuts, stripes):
        return Reason.STAGING
    even = all(cut.divides(count) for cut, count in zip(dst.cuts, stripes, strict=True))
    return Reason.STRIPED if even and math.prod(stripes) == dst.layout.replicas else Reason.RAGGED


def stripe_grid(dst: Partition) -> tuple[int, ...]:
    """Return into how many stripes each tensor dim of a shard is cut, at most one stripe a replica in all.

    A stripe is contiguous in a row-major shard: the dims before the last that is cut are cut down to length 1.
    """
    left, stripes = dst.layout.replicas, []
    for cut in dst.cuts:
        stripes.append(min(left, cut.longest))
        left //= stripes[-1]
    return tuple(stripes)


def is_local(src: Partition, dst: Partition) -> bool:
    """Return whether the layouts alone put every destination region inside its own rank's source region."""
    if src.mesh.is_grid_of(dst.mesh):
        return all(into[: len(out)] == out for out, into in zip(src.steps, dst.steps, strict=True))
    return not any(src.steps) and src.mesh.covers(dst.mesh)


class CrossingPiece(NamedTuple):
    """A piece that crosses, in one tensor dim: whether it has length 1, and covers the source's or destination's shard."""

    single: bool
    fills_source: bool
    fills_destination: bool


class Contiguity(Enum):
    """The contiguity of a piece in its shard, as far as its dims have been walked in row-major order."""

    SINGLE = auto()  # every dim so far has length 1
    WHOLE = auto()  # one dim was longer; each dim since covers the shard's
    BROKEN = auto()  # not contiguous

    def step(self, single: bool, fills: bool) -> Contiguity:
        """Return the contiguity one dim further on."""
        if self is Contiguity.SINGLE:
            return Contiguity.SINGLE if single else Contiguity.WHOLE
        return Contiguity.WHOLE if self is Contiguity.WHOLE and fills else Contiguity.BROKEN


SidePair = tuple[Contiguity, Contiguity]  # of a piece in its source shard and in its destination shard


def contiguities(src: Sequence[CutDim], dst: Sequence[CutDim], stripes: Sequence[int]) -> set[SidePair]:
    """Return every pair of contiguities that a piece has in its source shard and in its destination shard.

    Which pieces meet in one tensor dim does not depend on the other dims, so every combination of them occurs. Where either
    side is piecewise the worse is assumed.
    """
    pairs = {(Contiguity.SINGLE, Contiguity.SINGLE)}
    for source, destination, count in zip(src, dst, stripes, strict=True):
        pairs = {after for before in pairs for after in _next_pairs(before, source, destination, count)}
    return pairs


def _next_pairs(before: SidePair, src: CutDim, dst: CutDim, stripes: int) -> Iterator[SidePair]:
    """Yield the pairs one dim further on.

    One interval meets several runs of a piecewise side as one run of their local dim, not of its own.
    """
    source, destination = before
    chunked = both_chunked(src, dst)
    if chunked is None:
        yield (
            source.step(False, False) if is_chunked(dst) else Contiguity.BROKEN,
            destination.step(False, False) if is_chunked(src) else Contiguity.BROKEN,
        )
        return
    for piece in _crossing_pieces(*chunked, stripes):
        yield source.step(piece.single, piece.fills_source), destination.step(piece.single, piece.fills_destination)


def _crossing_pieces(src: ChunkedDim, dst: ChunkedDim, stripes: int) -> Iterator[CrossingPiece]:
    """Yield every kind of piece that crosses in one tensor dim, over one common period of the cuts and what follows the last.

    Where that would be a long walk, every kind that the lengths of chunks allow.
    """
    target = dst.cut_again(stripes) if stripes > 1 else dst
    (src_period, src_end), (dst_period, dst_end) = src.period, target.period
    period, end = math.lcm(src_period, dst_period), min(src_end, dst_end)
    walk = min(period, src.length)
    if src.max_overlaps(walk) + target.max_overlaps(walk) > MAX_WALK:
        yield from _possible_pieces(src, dst, target)
        return
    position = 0
    while position < src.length:
        source, shard = src.owner(position), dst.owner(position)
        stop = min(source.hi, target.owner(position).hi)
        size = stop - position
        yield CrossingPiece(size == 1, size == source.hi - source.lo, size == shard.hi - shard.lo)
        position = max(stop, end // period * period) if stop == period else stop


def _possible_pieces(src: ChunkedDim, dst: ChunkedDim, target: ChunkedDim) -> Iterator[CrossingPiece]:
    """Yield every kind of piece that sources, shards and targets of such lengths could leave."""
    sources, shards, targets = src.chunk_lengths, dst.chunk_lengths, target.chunk_lengths
    longest = min(max(sources), max(targets))
    for single in (True, False):
        lengths = range(1, 2) if single else range(2, longest + 1)
        if single and math.gcd(*sources, *targets) > 1:  # every edge is a multiple of it
            continue
        fills_source = any(length in lengths for length in sources)
        fills_shard = any(length in lengths for length in shards)
        kinds = product((False, True)[: 1 + fills_source], (False, True)[: 1 + fills_shard])
        yield from (CrossingPiece(single, *fills) for fills in kinds if lengths)


def stripe_dim(cut: CutDim, stripes: int) -> CutDim:
    """Return a destination's tensor dim with each shard cut once more, into stripes."""
    return cut.cut_again(stripes) if stripes > 1 else cut
