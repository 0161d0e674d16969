"""A picture of how planning grows with the world."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from restripe.bench.planning import PlanningTimes

COLOURS = ("tab:blue", "tab:orange", "tab:green")


def plot(worlds: Sequence[PlanningTimes], quadratic_ms: Mapping[int, Mapping[str, float]], path: Path) -> None:
    """Draw the time of a plan on the left, that of a look-up on the right, over ranks."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    ranks = [world.ranks for world in worlds]
    for colour, move in zip(COLOURS, worlds[0].plan_ms, strict=True):
        left.plot(ranks, [world.plan_ms[move] for world in worlds], "o-", color=colour, label=f"restripe, {move}")
        pairs = [(size, times[move]) for size, times in sorted(quadratic_ms.items()) if move in times]
        if pairs:
            left.plot(*zip(*pairs, strict=True), "x--", color=colour, label=f"every pair of ranks, {move}")
    left.set_yscale("log")
    _label_axes(left, ranks, "one rank's plan of one tensor", "milliseconds")
    for colour, call in zip(COLOURS, worlds[0].lookup_us, strict=True):
        right.plot(ranks, [world.lookup_us[call] for world in worlds], "o-", color=colour, label=call)
    right.set_ylim(bottom=0)
    _label_axes(right, ranks, "a warm call on a rank that moves nothing", "microseconds")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _label_axes(axes: Axes, ranks: Sequence[int], title: str, unit: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [f"{size:,}" for size in ranks])
    axes.minorticks_off()
    axes.set_title(title)
    axes.set_xlabel("ranks")
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
