"""The picture of growth names every line."""

from __future__ import annotations

from pathlib import Path

from plan_bench.plot import plot
from restripe.bench.planning import PlanningTimes


def test_lines_and_worlds_are_named(tmp_path: Path) -> None:
    worlds = [PlanningTimes(ranks, {"move": 1.0}, {"move": 1}, {"refit": 10.0}) for ranks in (8, 2048)]
    for world in worlds:
        world.plan_ms.update({"second": 2.0, "third": 3.0})
        world.lookup_us.update({"restripe.Mesh": 11.0, "DeviceMesh": 12.0})
    plot(worlds, {8: {"move": 5.0}, 2048: {"move": 500.0}}, tmp_path / "growth.svg")
    drawn = (tmp_path / "growth.svg").read_text(encoding="utf-8")
    for text in ("restripe, move", "restripe, third", "every pair of ranks, move", "DeviceMesh", "2,048"):
        assert text in drawn
    assert "every pair of ranks, second" not in drawn
