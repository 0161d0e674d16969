"""A picture of the ratios to raw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gpu_bench.results import Result, Spread

TITLES = {
    "host_us": "host time of a call",
    "loop_us": "host time in a loop",
    "wall_us": "from call to completion",
    "gpu_us": "GPU time",
}
MANY_ROWS = 20  # from which on a picture of all times takes longer than it is worth


def plot(results: Sequence[Result], path: Path) -> None:
    """Draw one column a time, of many rows the GPU's alone, and one line a row.

    Whiskers reach from the 10th to the 90th percentile.
    """
    drawn = [result for result in results if result.base in result.timings]
    times = list(TITLES) if len(drawn) <= MANY_ROWS else ["gpu_us"]
    figure = Figure(figsize=(4.75 * max(2, len(times)), 2.2 * len(drawn) + 1), layout="constrained")
    axes = figure.subplots(len(drawn), len(times), squeeze=False)
    for line, result in zip(axes, drawn, strict=True):
        for axis, time in zip(line, times, strict=True):
            spreads = {name: ratio for name in result.timings if (ratio := result.ratio(name, time)) is not None}
            axis.set_visible(bool(spreads))
            _draw_bars(axis, spreads)
            axis.set_title(f"{result.row}: {TITLES[time]}", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("times raw (less is better)")
    figure.savefig(path)


def _draw_bars(axis: Axes, spreads: Mapping[str, Spread]) -> None:
    positions, medians = range(len(spreads)), [spread.median for spread in spreads.values()]
    whiskers = [
        [max(0.0, spread.median - spread.p10) for spread in spreads.values()],
        [max(0.0, spread.p90 - spread.median) for spread in spreads.values()],
    ]
    axis.barh(positions, medians, xerr=whiskers, color=["0.6" if "raw" in name else "tab:blue" for name in spreads])
    axis.set_yticks(positions, list(spreads), fontsize=7)
    axis.invert_yaxis()
    axis.axvline(1.0, color="black", linewidth=0.8)
