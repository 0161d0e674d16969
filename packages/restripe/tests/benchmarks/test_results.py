"""Medians, spreads and ratios, and what a reader of the table sees."""

from __future__ import annotations

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gpu_bench.results import TIMES, Result, Spread, Timing, slowest_rank_us, table
from gpu_bench.routes import RankTraffic

FLOATS = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=50)


def timed(values: list[float]) -> Timing:
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
    ratio = timed([value * factor for value in values]).ratio(timed(values), "gpu_us")
    assert ratio == pytest.approx((factor, factor, factor))


def test_each_time_has_its_own_ratio() -> None:
    own = Timing((2.0,), (6.0,), (12.0,), (20.0,), 0, 0)
    base = Timing((1.0,), (2.0,), (3.0,), (4.0,), 0, 0)
    assert [own.ratio(base, time).median for time in TIMES] == [2, 3, 4, 5]
    assert [own.spread(time).median for time in TIMES] == [2, 6, 12, 20]


def test_the_slowest_rank_counts_in_every_repeat() -> None:
    assert slowest_rank_us([[1e-6, 5e-6], [3e-6, 2e-6]]) == pytest.approx((3, 5))


def shown(row: Result) -> str:
    console = Console(width=200, file=(written := StringIO()))
    console.print(table(row))
    return written.getvalue()


def lines(row: Result) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown(row).splitlines() if "│" in line]
    return {line[0]: line[1:] for line in cells}


RAW = Timing((100.0, 100.0), (50.0, 50.0), (2000.0, 2000.0), (1000.0, 1000.0), 0, 0)
UNCHANGED = "1.00 (1.00-1.00)"
RESHARD = Timing((120.0, 130.0), (60.0, 60.0), (2000.0, 2000.0), (1010.0, 1030.0), 7, 65_500_000)


def test_medians_ratios_rate_wrong_bytes_and_memory() -> None:
    row = lines(Result("row", 10**9, 0, {"raw": RAW, "reshard": RESHARD}))
    assert row["raw"] == ["100", UNCHANGED, "50", UNCHANGED, "2", UNCHANGED, "1", UNCHANGED, "1000", "0", "0.0"]
    assert row["reshard"][:4] == ["125", "1.25 (1.20-1.30)", "60", "1.20 (1.20-1.20)"]
    assert row["reshard"][6:] == ["1.02", "1.02 (1.01-1.03)", "980.4", "7", "65.5"]


def test_without_raw_there_are_no_ratios() -> None:
    assert lines(Result("row", 10**9, 0, {"reshard": RESHARD}))["reshard"][1:8:2] == [""] * 4


def test_who_did_not_run_is_shown_with_the_reason() -> None:
    assert "nccl.m2n: refuses" in shown(Result("row", 1, 0, {"raw": RAW}, {"nccl.m2n": "refuses"}))


def test_what_crosses_is_shown_a_line_a_path() -> None:
    written = shown(Result("row", 1, 0, {"raw": RAW}, traffic={"restripe": RankTraffic(4000, 1000)}))
    assert "crosses before replicas share, restripe: 4,000 bytes, 1,000 at most into one rank" in written
    assert "crosses" not in shown(Result("row", 1, 0, {"raw": RAW}))


def test_a_spread_in_a_few_characters() -> None:
    assert Spread(1.214, 1.15, 1.268).text == "1.21 (1.15-1.27)"


def test_refits_are_shown_by_tensor_beside_raw_with_a_group_for_each() -> None:
    raw = Timing((4000.0, 4000.0), (), (8000.0, 8000.0), (), 0, 0)
    foreign = Timing((5000.0, 5000.0), (), (8000.0, 8000.0), (), 3, 0)
    row = Result("row", 10**9, 0, {"raw each": raw, "drop-in": foreign}, tensors=400, shared_gpu=True)
    assert lines(row)["raw each"] == ["10", "4e+03", UNCHANGED, "8", UNCHANGED, "125", "0", "0.0"]
    assert lines(row)["drop-in"] == ["12.5", "5e+03", "1.25 (1.25-1.25)", "8", UNCHANGED, "125", "3", "0.0"]
    assert "row: 400 tensors, 1,000,000,000 bytes; shared GPU: its times say nothing" in " ".join(shown(row).split())
