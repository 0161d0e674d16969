"""A part of a tensor dim in two local dims, against lists of elements."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from restripe.execution.strided_runs import Stretch, places, stretches, within
from restripe.layout.chunked import Intervals
from restripe.layout.piecewise import Runs, Step

FLAGS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=24)


def intervals(numbers: list[int]) -> Intervals:
    """Ascending numbers as intervals, neighbours in one."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return tuple(found)


def elements(part: Intervals) -> list[int]:
    return [number for lo, hi in part for number in range(lo, hi)]


def walked(stretch: Stretch, side: int) -> list[int]:
    """The local positions that a stretch visits."""
    first, step = stretch.starts[side], stretch.steps[side]
    return [first + n * step + element for n in range(stretch.pieces) for element in range(stretch.length)]


def sides(flags: list[tuple[bool, bool, bool]]) -> tuple[Intervals, Intervals, Intervals]:
    """What two sides own, and a part of both that ends wherever either side's interval does."""
    both = [a and b and c for a, b, c in flags]
    one = intervals([n for n, (a, _, _) in enumerate(flags) if a])
    other = intervals([n for n, (_, b, _) in enumerate(flags) if b])
    return one, other, intervals([n for n, each in enumerate(both) if each])


@settings(max_examples=500, deadline=None, derandomize=True)
@given(FLAGS)
def test_a_part_visits_its_elements_in_order_on_both_sides(flags: list[tuple[bool, bool, bool]]) -> None:
    one, other, part = sides(flags)
    found = stretches(one, other, part)
    for side, owned in enumerate((one, other)):
        local = [position for stretch in found for position in walked(stretch, side)]
        assert [elements(owned)[position] for position in local] == elements(part)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(FLAGS)
def test_what_lies_adjacent_in_the_local_dim_is_one_interval(flags: list[tuple[bool, bool, bool]]) -> None:
    owned, _, part = sides(flags)
    found = within(owned, part)
    assert [elements(owned)[position] for lo, hi in found for position in range(lo, hi)] == elements(part)
    assert all(one[1] < other[0] for one, other in pairwise(found))
    assert places(owned, part) == [elements(owned).index(lo) for lo, _ in part]


def test_thousands_of_even_runs_are_one_stretch() -> None:
    owned = Runs(65536, (Step(0, 4, pieces=8192),)).intervals((1,))
    assert len(owned) == 8192
    assert stretches(owned, ((0, 65536),), owned) == [Stretch(2, (0, 2), 8192, (2, 8))]
    assert within(owned, owned) == [(0, 16384)]


def test_a_run_that_differs_begins_a_new_stretch() -> None:
    part = ((0, 2), (4, 6), (8, 10), (13, 15), (16, 17))
    assert stretches(part, ((0, 20),), part) == [
        Stretch(2, (0, 0), 3, (2, 4)),
        Stretch(2, (6, 13)),
        Stretch(1, (8, 16)),
    ]
