"""Medians, spreads and ratios."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restripe.bench.results import TIMES, Spread, Timing, slowest

FLOATS = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=50)


def timing(values: list[float]) -> Timing:
    times = tuple(values)
    return Timing(times, times, times, times, 0, 0)


@given(FLOATS)
def test_a_spread_lies_in_order_among_its_values(values: list[float]) -> None:
    spread = Spread.of(values)
    assert min(values) <= spread.p10 <= spread.median <= spread.p90 <= max(values)


def test_the_tenths_of_eleven_values() -> None:
    assert Spread.of(range(10, -1, -1)) == (5, 1, 9)


@given(FLOATS, st.floats(0.1, 10))
def test_a_ratio_is_taken_repeat_by_repeat(values: list[float], factor: float) -> None:
    ratio = timing([value * factor for value in values]).ratio(timing(values), "gpu_us")
    assert ratio == pytest.approx((factor, factor, factor))


def test_each_time_has_its_own_ratio() -> None:
    mine = Timing((2.0,), (6.0,), (12.0,), (20.0,), 0, 0)
    theirs = Timing((1.0,), (2.0,), (3.0,), (4.0,), 0, 0)
    assert [mine.ratio(theirs, time).median for time in TIMES] == [2, 3, 4, 5]
    assert [mine.spread(time).median for time in TIMES] == [2, 6, 12, 20]


def test_the_slowest_rank_counts_in_every_repeat() -> None:
    assert slowest([[1e-6, 5e-6], [3e-6, 2e-6]]) == pytest.approx((3, 5))
