"""The closed form of cutting one tensor dim, against torch.chunk done one mesh dim after the other."""

from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from restripe.layout.chunked import Chunk, ChunkedDim, nth_chunk

LENGTHS = st.sampled_from([0, 1, 2, 3, 5, 7, 12, 13, 24, 36, 60, 97]) | st.integers(0, 130)


def chunked(cuts: ChunkedDim) -> list[Chunk]:
    """Every chunk, empty ones included, in order of coordinates (lo == hi == 0 where empty)."""
    found = []
    for coordinates in product(*map(range, cuts.sizes)):
        piece = torch.arange(cuts.length)
        for size, index in zip(cuts.sizes, coordinates, strict=True):
            pieces = piece.chunk(size)
            piece = pieces[index] if index < len(pieces) else piece[:0]
        lo, hi = (int(piece[0]), int(piece[-1]) + 1) if len(piece) else (0, 0)
        found.append(Chunk(coordinates, lo, hi))
    return found


def nonempty(cuts: ChunkedDim) -> list[Chunk]:
    return [chunk for chunk in chunked(cuts) if chunk.lo < chunk.hi]


@st.composite
def drawn_cuts(draw: st.DrawFn, min_length: int = 0, min_cuts: int = 0) -> ChunkedDim:
    length = max(min_length, draw(LENGTHS))
    return ChunkedDim(length, tuple(draw(st.lists(st.integers(1, 6), min_size=min_cuts, max_size=3))))


@pytest.mark.requirement("RS-LAYOUT-5", "RS-LAYOUT-6", "RS-LAYOUT-7")
@settings(max_examples=200, deadline=None, derandomize=True)
@given(drawn_cuts())
def test_the_interval_at_every_coordinate_is_torchs_chunk(cuts: ChunkedDim) -> None:
    for coordinates, lo, hi in chunked(cuts):
        found = cuts.interval(coordinates)
        assert found == (lo, hi) if lo < hi else found[0] == found[1]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(drawn_cuts())
def test_every_position_has_its_owner_and_every_ordinal_its_chunk(cuts: ChunkedDim) -> None:
    for ordinal, chunk in enumerate(nonempty(cuts)):
        for position in range(chunk.lo, chunk.hi):
            assert cuts.owner(position) == chunk
            assert cuts.ordinal(position) == ordinal
        assert cuts.nth(ordinal) == chunk


@settings(max_examples=300, deadline=None, derandomize=True)
@given(drawn_cuts(), st.integers(0, 130), st.integers(0, 130))
def test_the_chunks_that_meet_an_interval_come_in_order(cuts: ChunkedDim, start: int, stop: int) -> None:
    lo, hi = min(start, cuts.length), min(stop, cuts.length)
    meeting = [chunk for chunk in nonempty(cuts) if max(chunk.lo, lo) < min(chunk.hi, hi)]
    assert list(cuts.overlapping(lo, hi)) == meeting


@settings(max_examples=200, deadline=None, derandomize=True)
@given(drawn_cuts(), st.integers(1, 5))
def test_what_is_said_of_all_chunks_holds_for_each(cuts: ChunkedDim, parts: int) -> None:
    lengths = [hi - lo for _, lo, hi in nonempty(cuts)]
    assert cuts.divides(parts) == all(length % parts == 0 for length in lengths)
    assert cuts.longest == max(lengths, default=0)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(drawn_cuts(min_length=1), st.integers(1, 130))
@example(ChunkedDim(405, (21, 5)), 5)  # the short chunk at the end is nth_chunk finer than the others
def test_no_interval_meets_more_chunks_than_the_bound(cuts: ChunkedDim, length: int) -> None:
    chunks = nonempty(cuts)
    length = min(length, cuts.length)
    for lo in range(cuts.length - length + 1):
        assert sum(max(chunk.lo, lo) < min(chunk.hi, lo + length) for chunk in chunks) <= cuts.max_overlaps(length)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(drawn_cuts(min_length=1, min_cuts=1))
def test_the_cuts_repeat_within_their_period(cuts: ChunkedDim) -> None:
    period, end = cuts.period
    edges = {chunk.lo for chunk in nonempty(cuts) if chunk.lo < end}
    assert end % period == 0
    assert 0 <= cuts.length - end < period
    assert all(edge % period in edges for edge in edges)
    assert all(edge + period in edges for edge in edges if edge + period < end)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_several_intervals_are_cut_as_if_they_lay_end_to_end(sizes: list[int], gaps: list[int]) -> None:
    intervals, position = [], 0
    for size, gap in zip(sizes, gaps, strict=False):
        intervals.append((position + gap, position + gap + size))
        position += gap + size
    line = torch.cat([torch.arange(lo, hi) for lo, hi in intervals])
    for pieces in range(1, 5):
        chunks = [chunk.tolist() for chunk in line.chunk(pieces)]
        chunks += [[]] * (pieces - len(chunks))
        for index, chunk in enumerate(chunks):
            taken = nth_chunk(tuple(intervals), pieces, index)
            assert [element for lo, hi in taken for element in range(lo, hi)] == chunk
