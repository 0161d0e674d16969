"""How planning grows with the world, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from restripe.bench.planning import Measured

COLOURS = ("tab:blue", "tab:orange", "tab:green")


def plot(found: Sequence[Measured], quadratic_ms: Mapping[int, Mapping[str, float]], path: Path) -> None:
    """Left the time of a plan, right that of a look-up, over ranks."""
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    ranks = [one.ranks for one in found]
    for colour, move in zip(COLOURS, found[0].plan_ms, strict=True):
        left.plot(ranks, [one.plan_ms[move] for one in found], "o-", color=colour, label=f"restripe, {move}")
        judged = [(size, times[move]) for size, times in sorted(quadratic_ms.items()) if move in times]
        if judged:
            left.plot(*zip(*judged, strict=True), "x--", color=colour, label=f"every pair of ranks, {move}")
    left.set_yscale("log")
    _axes(left, ranks, "one rank's plan of one tensor", "milliseconds")
    for colour, kind in zip(COLOURS, found[0].lookup_us, strict=True):
        right.plot(ranks, [one.lookup_us[kind] for one in found], "o-", color=colour, label=kind)
    right.set_ylim(bottom=0)
    _axes(right, ranks, "a warm call on a rank that moves nothing", "microseconds")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _axes(axes: Axes, ranks: Sequence[int], title: str, unit: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [f"{size:,}" for size in ranks])
    axes.minorticks_off()
    axes.set_title(title)
    axes.set_xlabel("ranks")
    axes.set_ylabel(unit)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
