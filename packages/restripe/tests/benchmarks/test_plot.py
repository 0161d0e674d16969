"""The picture names every row and contender that it has a ratio for."""

from __future__ import annotations

from pathlib import Path

from gpu_bench.plot import MANY_ROWS, plot
from gpu_bench.results import Result, Timing

from ..helpers.samples import result


def test_rows_with_raw_are_drawn(tmp_path: Path) -> None:
    shown = [result("first", raw=1, reshard=2), result("second", raw=1, refit_graph=3), result("third", reshard=1)]
    plot(shown, tmp_path / "ratios.svg")
    drawn = (tmp_path / "ratios.svg").read_text(encoding="utf-8")
    for text in ("first: GPU time", "second: host time of a call", "reshard", "refit graph"):
        assert text in drawn
    assert "third" not in drawn


def test_of_many_rows_the_gpu_s_times_alone_are_drawn(tmp_path: Path) -> None:
    plot([result(f"row {number}", raw=1) for number in range(MANY_ROWS + 1)], tmp_path / "ratios.svg")
    drawn = (tmp_path / "ratios.svg").read_text(encoding="utf-8")
    assert f"row {MANY_ROWS}: GPU time" in drawn
    assert "host time" not in drawn


def test_of_refits_the_times_that_were_taken_are_drawn(tmp_path: Path) -> None:
    timing = Timing((4000.0,), (), (8000.0,), (), 0, 0)
    plot([result("first", raw=1), Result("refits", 1, 0, {"raw each": timing})], tmp_path / "ratios.svg")
    drawn = (tmp_path / "ratios.svg").read_text(encoding="utf-8")
    for text in ("first: GPU time", "refits: host time of a call", "refits: from call to completion"):
        assert text in drawn
    assert "refits: GPU time" not in drawn
