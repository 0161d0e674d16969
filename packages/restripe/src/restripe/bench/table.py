"""Results as tables for a terminal."""

from __future__ import annotations

from rich.table import Table

from restripe.bench.results import TIMES, Result, Spread, Timing

BASE = "raw"
WIDTH = 180  # a narrower terminal had better wrap lines than lose figures
UNITS = {
    "host_us": ("host us", 1.0),
    "loop_us": ("loop us", 1.0),
    "wall_us": ("wall ms", 1e-3),
    "gpu_us": ("GPU ms", 1e-3),
}


def table(result: Result) -> Table:
    """One row's contenders: medians, with the ratio to raw and its 10th and 90th percentile."""
    drawn = Table(title=f"{result.row}: {result.size_bytes:,} bytes", title_justify="left", caption_justify="left")
    drawn.add_column("contender")
    for time in TIMES:
        drawn.add_column(UNITS[time][0], justify="right")
        drawn.add_column(f"x {BASE}", justify="right")
    for head in ("GB/s", "wrong bytes", "extra MB"):
        drawn.add_column(head, justify="right")
    for name, timing in result.timings.items():
        drawn.add_row(name, *_cells(timing, result))
    drawn.caption = "\n".join([*crossings(result), *(f"{name}: {reason}" for name, reason in result.unfit.items())])
    return drawn


def crossings(result: Result) -> list[str]:
    """What crosses from rank to rank before replicas share it, a line a path; nothing where there are no replicas."""
    return [
        f"crosses before replicas share, {name}: {found.total:,} bytes, {found.busiest:,} at most into one rank"
        for name, found in result.crossing.items()
    ]


def _cells(timing: Timing, result: Result) -> list[str]:
    cells, base = [], result.timings.get(BASE)
    for time in TIMES:
        cells.append(f"{timing.spread(time).median * UNITS[time][1]:.3g}")
        cells.append("" if base is None else brief(timing.ratio(base, time)))
    rate = result.size_bytes / timing.spread("gpu_us").median / 1e3
    return [*cells, f"{rate:.4g}", f"{timing.wrong_bytes:,}", f"{timing.extra_bytes / 1e6:.1f}"]


def brief(spread: Spread) -> str:
    """A ratio with its spread."""
    return f"{spread.median:.2f} ({spread.p10:.2f}-{spread.p90:.2f})"
