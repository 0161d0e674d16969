"""The closed form of strided and segmented cuts, against lists that torch.chunk cuts one mesh dim after the other."""

from __future__ import annotations

from itertools import accumulate, pairwise, product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from restripe.layout.chunked import ChunkedDim
from restripe.layout.piecewise import CutStep, PiecewiseDim, join_intervals, plain_order


def parts(line: list[int], step: CutStep) -> list[list[int]]:
    """A list as the step divides it, before the mesh dim cuts."""
    if step.segments:
        return [line[lo:hi] for lo, hi in pairwise(accumulate(step.segments, initial=0))]
    return [piece.tolist() for piece in torch.tensor(line, dtype=torch.int64).chunk(step.pieces)]


def held(runs: PiecewiseDim, coordinates: tuple[int, ...]) -> list[int]:
    """The elements that these coordinates hold, in order."""
    line = list(range(runs.length))
    for step, index in zip(runs.steps, coordinates, strict=True):
        chunks = [torch.tensor(part, dtype=torch.int64).chunk(step.size) for part in parts(line, step)]
        line = [element for each in chunks if index < len(each) for element in each[index].tolist()]
    return line


def everywhere(runs: PiecewiseDim) -> dict[tuple[int, ...], list[int]]:
    return {at: held(runs, at) for at in product(*map(range, runs.sizes))}


@st.composite
def drawn_runs(draw: st.DrawFn) -> PiecewiseDim:
    """Segments first, if at all; then strided and plain cuts."""
    segments = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    first = [CutStep(0, draw(st.integers(1, 4)), segments=segments)] if segments else []
    strided = st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 3, 4, 7, 60]))
    length = sum(segments) if segments else draw(st.integers(0, 40))
    return PiecewiseDim(length, (*first, *(CutStep(1, *each) for each in draw(st.lists(strided, max_size=2)))))


@pytest.mark.requirement("RS-LAYOUT-10", "RS-LAYOUT-11")
@settings(max_examples=400, deadline=None, derandomize=True)
@given(drawn_runs())
@example(PiecewiseDim(9, (CutStep(0, 4, pieces=2),)))
@example(PiecewiseDim(17, (CutStep(0, 4, pieces=2), CutStep(1, 2))))
@example(
    PiecewiseDim(28, (CutStep(0, 4, pieces=3), CutStep(1, 4)))
)  # the last coordinate has more of the shorter piece than of others
def test_coordinates_hold_their_chunk_of_every_part(runs: PiecewiseDim) -> None:
    for at, elements in everywhere(runs).items():
        intervals = runs.intervals(at)
        assert [element for lo, hi in intervals for element in range(lo, hi)] == elements
        assert all(lo < hi for lo, hi in intervals)
        assert all(one[1] < other[0] for one, other in pairwise(intervals))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(drawn_runs(), st.integers(0, 40), st.integers(0, 40))
def test_the_runs_that_meet_an_interval_come_in_order(runs: PiecewiseDim, start: int, stop: int) -> None:
    owners = {element: at for at, elements in everywhere(runs).items() for element in elements}
    lo, hi = min(start, runs.length), min(stop, runs.length)
    met = list(runs.overlapping(lo, hi))
    found = {element: chunk.coordinates for chunk in met for element in range(chunk.lo, chunk.hi)}
    assert all(owners[element] == at for element, at in found.items())
    assert set(range(lo, hi)) <= set(found)
    assert all(one.hi == other.lo for one, other in pairwise(met))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(drawn_runs(), st.integers(1, 5))
@example(PiecewiseDim(11, (CutStep(0, 4, segments=(2, 4, 5)),)), 2)  # past a segment's shorter chunk
@example(
    PiecewiseDim(4, (CutStep(0, 2, pieces=3), CutStep(1, 2, pieces=3))), 2
)  # a longer list may leave its first coordinate less
def test_what_is_said_of_all_coordinates_holds_for_each(runs: PiecewiseDim, count: int) -> None:
    lengths = [len(elements) for elements in everywhere(runs).values()]
    assert runs.divides(count) == all(length % count == 0 for length in lengths)
    assert runs.longest == max(lengths)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(drawn_runs(), st.integers(1, 4))
def test_one_more_cut_is_a_chunk_of_what_was_held(runs: PiecewiseDim, size: int) -> None:
    for at, elements in everywhere(runs).items():
        chunks = torch.tensor(elements, dtype=torch.int64).chunk(size)
        for index, chunk in enumerate(chunks):
            intervals = runs.cut_again(size).intervals((*at, index))
            assert [element for lo, hi in intervals for element in range(lo, hi)] == chunk.tolist()


@st.composite
def tensor_parallel_first(draw: st.DrawFn) -> PiecewiseDim:
    """Mesh dims that cut from the right to the left, written as strided shards; now and then of a length that is odd."""
    sizes = draw(st.lists(st.integers(2, 3), min_size=1, max_size=3))
    steps, right = [], 1
    for mesh_dim in reversed(range(len(sizes))):
        steps.append(CutStep(mesh_dim, sizes[mesh_dim], pieces=draw(st.sampled_from([right, right, right, 1, 2]))))
        right *= sizes[mesh_dim]
    return PiecewiseDim(right * draw(st.integers(1, 3)) + draw(st.sampled_from([0, 0, 1])), tuple(reversed(steps)))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(tensor_parallel_first())
def test_an_order_of_plain_cuts_leaves_every_coordinate_the_same(runs: PiecewiseDim) -> None:
    order = plain_order(runs.length, runs.steps)
    if order is None:
        return
    plain = ChunkedDim(runs.length, tuple(step.size for step in order))
    for at in everywhere(runs):
        assert plain.intervals([at[step.mesh_dim] for step in order]) == runs.intervals(at)


def test_fsdp_over_tensor_parallelism_is_the_other_order() -> None:
    """Three mesh dims that cut from the right to the left, and what is no such thing."""
    steps = (CutStep(0, 4, pieces=6), CutStep(1, 3, pieces=2), CutStep(2, 2))
    assert plain_order(48, steps) == [CutStep(2, 2), CutStep(1, 3, pieces=2), CutStep(0, 4, pieces=6)]
    assert plain_order(49, steps) is None
    assert plain_order(48, (CutStep(0, 4, pieces=5), CutStep(1, 2))) is None
    assert plain_order(48, (CutStep(0, 4, segments=(24, 24)),)) is None


def test_adjacent_intervals_are_one_and_empty_ones_none() -> None:
    assert join_intervals([(0, 2), (2, 3), (4, 4), (5, 6)]) == [(0, 3), (5, 6)]
    assert join_intervals([]) == []
