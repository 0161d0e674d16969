"""Tilings, and regions that cover an element twice or not at all; every element is counted."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from restripe.analysis.coverage import Flaw, find_flaw, is_within, join_touching
from restripe.layout.chunked import Interval, Intervals, Region

REGIONS = st.integers(0, 3).flatmap(lambda dims: st.tuples(*[st.sets(st.integers(0, 5))] * dims))


def intervals(positions: set[int]) -> Intervals:
    return join_touching(tuple((position, position + 1) for position in positions))


def region(sets: tuple[set[int], ...]) -> Region:
    return tuple(map(intervals, sets))


def elements(region: Region) -> set[tuple[int, ...]]:
    return set(product(*([index for lo, hi in intervals for index in range(lo, hi)] for intervals in region)))


def holds(box: tuple[Interval, ...], element: tuple[int, ...]) -> bool:
    return all(lo <= index < hi for (lo, hi), index in zip(box, element, strict=False))


@st.composite
def tilings(draw: st.DrawFn) -> tuple[list[Region], Region]:
    """Draw a region of up to three dims, and pieces of it that are cut again and again along a dim, with scattered intervals."""
    whole = draw(REGIONS)
    pieces = [whole]
    for _ in range(draw(st.integers(0, 5)) if whole else 0):
        piece = pieces.pop(draw(st.integers(0, len(pieces) - 1)))
        dim = draw(st.integers(0, len(piece) - 1))
        left = {index for index in piece[dim] if draw(st.booleans())}
        pieces += [(*piece[:dim], part, *piece[dim + 1 :]) for part in (left, piece[dim] - left)]
    return [region(piece) for piece in pieces], region(whole)


@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(tilings())
def test_a_tiling_has_no_flaw(tiling: tuple[list[Region], Region]) -> None:
    assert find_flaw(*tiling) is None


@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(
    st.integers(1, 3).flatmap(
        lambda dims: st.lists(st.tuples(*[st.sets(st.integers(0, 3))] * dims), min_size=1, max_size=5)
    )
)
def test_a_flaw_is_found_where_some_element_is_not_covered_once(drawn: list[tuple[set[int], ...]]) -> None:
    whole, *pieces = map(region, drawn)
    times = Counter(element for piece in pieces for element in elements(piece))
    inside = elements(whole)
    wrong = {element for element in {*times, *inside} if times[element] != (1 if element in inside else 0)}
    flaw = find_flaw(pieces, whole)
    assert (flaw is not None) == bool(wrong)
    if flaw is not None:
        assert any(holds(flaw.box, element) for element in wrong)


def test_a_flaw_is_a_box_and_how_often_it_is_covered() -> None:
    assert find_flaw([((((0, 4)),), ((0, 2),))], (((0, 4),), ((0, 3),))) == Flaw(((0, 4), (2, 3)), 0)
    assert find_flaw([(((0, 3),),), (((2, 4),),)], (((0, 4),),)) == Flaw(((2, 3),), 2)
    assert find_flaw([], ()) == Flaw((), 0)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(
    st.tuples(st.sets(st.integers(0, 3), min_size=1), st.sets(st.integers(0, 3))),
    st.tuples(*[st.sets(st.integers(0, 4))] * 2),
)
def test_within(inner: tuple[set[int], ...], outer: tuple[set[int], ...]) -> None:
    if all(inner):
        assert is_within(region(inner), region(outer)) == (elements(region(inner)) <= elements(region(outer)))
