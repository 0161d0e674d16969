"""A picture of the ratios to raw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from restripe.bench.results import Result
from restripe.bench.table import BASE

TITLES = {
    "host_us": "host time of a call",
    "loop_us": "host time in a loop",
    "wall_us": "from call to completion",
    "gpu_us": "GPU time",
}


MANY = 20  # rows, from which on a picture of all times takes longer than it is worth


def plot(results: Sequence[Result], path: Path) -> None:
    """Draw one column a time, of many rows the GPU's alone, and one line a row.

    Whiskers reach from the 10th to the 90th percentile.
    """
    shown = [result for result in results if BASE in result.timings]
    times = list(TITLES) if len(shown) <= MANY else ["gpu_us"]
    figure = Figure(figsize=(4.75 * max(2, len(times)), 2.2 * len(shown) + 1), layout="constrained")
    axes = figure.subplots(len(shown), len(times), squeeze=False)
    for line, result in zip(axes, shown, strict=True):
        for axis, time in zip(line, times, strict=True):
            _bars(axis, result, time)
            axis.set_title(f"{result.row}: {TITLES[time]}", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel(f"times {BASE} (less is better)")
    figure.savefig(path)


def _bars(axis: Axes, result: Result, time: str) -> None:
    base = result.timings[BASE]
    spreads = {name: timing.ratio(base, time) for name, timing in result.timings.items()}
    places, medians = range(len(spreads)), [spread.median for spread in spreads.values()]
    reach = [
        [max(0.0, spread.median - spread.p10) for spread in spreads.values()],
        [max(0.0, spread.p90 - spread.median) for spread in spreads.values()],
    ]
    axis.barh(places, medians, xerr=reach, color=["0.6" if "raw" in name else "tab:blue" for name in spreads])
    axis.set_yticks(places, list(spreads), fontsize=7)
    axis.invert_yaxis()
    axis.axvline(1.0, color="black", linewidth=0.8)
