"""A tensor dim cut into chunks, in closed form, and regions as products of intervals.

Sharding is torch.chunk, mesh dims left to right: each cuts what the one before left into chunks of ceil(length / size).

Words: a *region* is, for each tensor dim, a tuple of half-open global intervals that lie one after another in the local
tensor; the region is their product. A plain shard has one interval a dim. An empty region has a dim without intervals; the
region `()` of a 0-dim tensor holds its one element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeGuard

Interval = tuple[int, int]
Intervals = tuple[Interval, ...]
Region = tuple[Intervals, ...]
Coordinates = tuple[int, ...]


def lengths(region: Region) -> tuple[int, ...]:
    """Return the sizes of the region's local tensor, in elements."""
    return tuple(sum(hi - lo for lo, hi in intervals) for intervals in region)


def nth_chunk(intervals: Intervals, chunks: int, index: int) -> Intervals:
    """Return chunk `index` of the concatenated intervals, cut as torch.chunk cuts into `chunks`."""
    length = sum(hi - lo for lo, hi in intervals)
    chunk = -(-length // chunks)
    begin, end = chunk * index, min(chunk * (index + 1), length)
    taken, seen = [], 0
    for lo, hi in intervals:
        first, last = max(lo, lo + begin - seen), min(hi, lo + end - seen)
        if first < last:
            taken.append((first, last))
        seen += hi - lo
    return tuple(taken)


class Chunk(NamedTuple):
    """One chunk of a tensor dim: its coordinate on each cutting mesh dim, and its half-open global interval."""

    coordinates: Coordinates
    lo: int
    hi: int


class CutDim(Protocol):
    """A tensor dim cut by mesh dims of these `sizes` from left to right, whatever its placements."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the mesh dims that cut."""

    @property
    def longest(self) -> int:
        """The most elements that any coordinates hold."""

    def intervals(self, coordinates: Sequence[int]) -> Intervals:
        """Return what these coordinates hold."""

    def owner(self, position: int) -> Chunk:
        """Return the coordinates that hold this position, and their interval around it."""

    def overlapping(self, lo: int, hi: int) -> Iterator[Chunk]:
        """Yield the chunks that overlap [lo, hi), in order."""

    def divides(self, parts: int) -> bool:
        """Return whether what each coordinate holds splits into that many equal parts."""

    def cut_again(self, size: int) -> CutDim:
        """Return the dim cut once more as Shard cuts."""


@dataclass(frozen=True)
class ChunkedDim:
    """A tensor dim of `length` elements, cut by mesh dims of these `sizes` from left to right."""

    length: int
    sizes: tuple[int, ...]

    def interval(self, coordinates: Sequence[int]) -> Interval:
        """Return the half-open interval at these coordinates (lo == hi where it is empty)."""
        lo, hi = 0, self.length
        for size, index in zip(self.sizes, coordinates, strict=True):
            chunk = -(-(hi - lo) // size)
            lo, hi = min(hi, lo + chunk * index), min(hi, lo + chunk * (index + 1))
        return lo, hi

    def intervals(self, coordinates: Sequence[int]) -> Intervals:
        """Return the intervals at these coordinates: one, or none where it is empty."""
        lo, hi = self.interval(coordinates)
        return ((lo, hi),) if lo < hi else ()

    def owner(self, position: int) -> Chunk:
        """Return the chunk that holds this position, 0 <= position < length."""
        lo, hi, coordinates = 0, self.length, []
        for size in self.sizes:
            chunk = -(-(hi - lo) // size)
            index = (position - lo) // chunk
            lo, hi = lo + chunk * index, min(hi, lo + chunk * (index + 1))
            coordinates.append(index)
        return Chunk(tuple(coordinates), lo, hi)

    def overlapping(self, lo: int, hi: int) -> Iterator[Chunk]:
        """Yield the nonempty chunks that overlap [lo, hi), in order."""
        outer, size = ChunkedDim(self.length, self.sizes[:-1]), self.sizes[-1] if self.sizes else 1
        while lo < hi:
            coordinates, start, stop = outer.owner(lo)
            chunk = -(-(stop - start) // size)
            first = (lo - start) // chunk
            for index, at in enumerate(range(start + chunk * first, min(stop, hi), chunk), start=first):
                yield Chunk((*coordinates, index) if self.sizes else (), at, min(at + chunk, stop))
            lo = stop

    def ordinal(self, position: int) -> int:
        """Return how many nonempty chunks lie wholly before the one that holds this position."""
        return _ordinal(self.length, self.sizes, position)

    def nth(self, ordinal: int) -> Chunk:
        """Return the nonempty chunk with this ordinal."""
        return self.owner(_start(self.length, self.sizes, ordinal))

    def divides(self, parts: int) -> bool:
        """Return whether every nonempty chunk splits into that many equal parts."""
        return all(size % parts == 0 for size in self.chunk_lengths)

    def max_overlaps(self, length: int) -> int:
        """Return a bound on how many nonempty chunks one interval of this length can meet."""
        return _max_overlaps(self.length, self.sizes, length)

    def cut_again(self, size: int) -> ChunkedDim:
        """Return the dim with each chunk cut once more."""
        return ChunkedDim(self.length, (*self.sizes, size))

    @property
    def chunk_lengths(self) -> set[int]:
        """The lengths that nonempty chunks have."""
        return _chunk_lengths(self.length, self.sizes)

    @property
    def longest(self) -> int:
        """The length of the longest chunk: the first one."""
        lo, hi = self.interval((0,) * len(self.sizes))
        return hi - lo

    @property
    def period(self) -> tuple[int, int]:
        """(period, end): within [0, end) the cuts repeat every `period` elements; (1, length) where nothing cuts."""
        if not self.sizes or not self.length:
            return 1, self.length
        chunk = -(-self.length // self.sizes[0])
        return chunk, self.length // chunk * chunk


def is_chunked(dim: CutDim) -> TypeGuard[ChunkedDim]:
    """Return whether every coordinate of a dim holds a single interval."""
    return isinstance(dim, ChunkedDim)


def both_chunked(dim: CutDim, other: CutDim) -> tuple[ChunkedDim, ChunkedDim] | None:
    """Return both dims where every coordinate of either holds a single interval, else None."""
    return (dim, other) if is_chunked(dim) and is_chunked(other) else None


def _ordinal(length: int, sizes: tuple[int, ...], position: int) -> int:
    if not sizes:
        return 0
    chunk = -(-length // sizes[0])
    whole, inside = divmod(position, chunk)
    rest = min(chunk, length - whole * chunk)
    before = whole * _count(chunk, sizes[1:]) if whole else 0
    return before + _ordinal(rest, sizes[1:], inside)


def _start(length: int, sizes: tuple[int, ...], ordinal: int) -> int:
    """Return where the nonempty chunk with this ordinal begins."""
    if not sizes:
        return 0
    chunk = -(-length // sizes[0])
    each, full = _count(chunk, sizes[1:]), length // chunk
    whole = min(ordinal // each, full)  # past the full ones lies a shorter chunk
    return whole * chunk + _start(min(chunk, length - whole * chunk), sizes[1:], ordinal - whole * each)


def _count(length: int, sizes: tuple[int, ...]) -> int:
    """Return the number of nonempty chunks."""
    return _ordinal(length, sizes, length - 1) + 1 if length else 0


def _max_overlaps(total: int, sizes: tuple[int, ...], length: int) -> int:
    if not sizes or not total:
        return 1
    chunk = -(-total // sizes[0])
    met = min(-(-total // chunk), (length - 2) // chunk + 2)
    inner = {chunk, total % chunk or chunk}  # the shorter chunk at the end may be cut finer
    return met * max(_max_overlaps(each, sizes[1:], min(length, each)) for each in inner)


def _chunk_lengths(length: int, sizes: tuple[int, ...]) -> set[int]:
    """Return the lengths that nonempty chunks have; two a mesh dim at most."""
    lengths_ = {length}
    for size in sizes:
        chunks = {(total, -(-total // size)) for total in lengths_ if total}
        lengths_ = {chunk for _, chunk in chunks} | {total % chunk for total, chunk in chunks}
    return lengths_ - {0}


def ravel(coordinates: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the row-major number of these coordinates in a grid of these sizes."""
    index = 0
    for coordinate, size in zip(coordinates, sizes, strict=True):
        index = index * size + coordinate
    return index


def unravel(index: int, sizes: Sequence[int]) -> Coordinates:
    """Return the coordinates of a row-major number in a grid of these sizes."""
    coordinates = []
    for size in reversed(sizes):
        index, coordinate = divmod(index, size)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))
