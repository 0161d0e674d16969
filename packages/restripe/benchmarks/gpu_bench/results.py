"""The outcome of a run: medians and ratios, times in microseconds; as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from rich.table import Table

from gpu_bench.routes import RankTraffic

BASES = ("raw", "raw each", "drop-in, restripe.Mesh")  # a ratio is to the one that comes first here
TIMES = ("host_us", "loop_us", "wall_us", "gpu_us")
HEADS = {
    "host_us": ("host us", 1.0),
    "loop_us": ("loop us", 1.0),
    "wall_us": ("wall ms", 1e-3),
    "gpu_us": ("GPU ms", 1e-3),
}


class Spread(NamedTuple):
    """A median with the values that a tenth lies below and above."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)])

    @property
    def text(self) -> str:
        """A ratio with its spread."""
        return f"{self.median:.2f} ({self.p10:.2f}-{self.p90:.2f})"


@dataclass(frozen=True)
class Timing:
    """One contender in one row; the slowest rank counts, repeat by repeat.

    Args:
        host_us: until one call returned, on an idle GPU.
        loop_us: a call's share of a burst on the host, which is ahead of the GPU.
        wall_us: until the GPU was done with one call.
        gpu_us: a call's share of a burst on the GPU.
        wrong_bytes: bytes of the destinations, on all ranks, that were not as they have to be in the first or last move.
        extra_bytes: the most that torch had allocated on any rank during a warm call, beyond what there was before the
            contender prepared the row.
    """

    host_us: tuple[float, ...]
    loop_us: tuple[float, ...]
    wall_us: tuple[float, ...]
    gpu_us: tuple[float, ...]
    wrong_bytes: int
    extra_bytes: int

    def spread(self, time: str) -> Spread:
        """Return the spread of one of TIMES."""
        return Spread.of(getattr(self, time))

    def ratio(self, other: Timing, time: str) -> Spread:
        """Return the spread of this time over the other's, repeat by repeat."""
        pairs = zip(getattr(self, time), getattr(other, time), strict=True)
        return Spread.of([own / base for own, base in pairs])


@dataclass(frozen=True)
class Result:
    """One row: the times, why other contenders have none, and for rows with replicas the traffic on either path.

    Args:
        tensors: their number.
        shared_gpu: whether several ranks shared a GPU, so that its times say nothing.
    """

    row: str
    size_bytes: int
    staging_bytes: int
    timings: dict[str, Timing] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    traffic: dict[str, RankTraffic] = field(default_factory=dict)
    tensors: int = 1
    shared_gpu: bool = False

    @property
    def times(self) -> tuple[str, ...]:
        """The times that were measured: of consumer rows those of single refits."""
        return tuple(time for time in TIMES if all(getattr(timing, time) for timing in self.timings.values()))

    @property
    def base(self) -> str:
        """The contender that ratios are taken to."""
        return next((name for name in BASES if name in self.timings), BASES[0])

    def ratio(self, name: str, time: str) -> Spread | None:
        """Return the spread of a contender's time over that of the base; None without the base, or the time."""
        if self.base not in self.timings or time not in self.times:
            return None
        return self.timings[name].ratio(self.timings[self.base], time)

    @property
    def title(self) -> str:
        """The row with its size, and what its times are worth."""
        count = f"{self.tensors:,} tensors, " if self.tensors > 1 else ""
        note = "; shared GPU: its times say nothing" if self.shared_gpu else ""
        return f"{self.row}: {count}{self.size_bytes:,} bytes{note}"

    def gb_per_s(self, name: str) -> float:
        """Return global bytes over the GPU's time, or over that of a whole refit."""
        time = "gpu_us" if "gpu_us" in self.times else "wall_us"
        return self.size_bytes / self.timings[name].spread(time).median / 1e3

    def host_us_per_tensor(self, name: str) -> float:
        """Return the median of the host's time, for each tensor."""
        return self.timings[name].spread("host_us").median / self.tensors


def slowest_rank_us(ranks: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the longest time of any rank, repeat by repeat, in microseconds of seconds."""
    return tuple(1e6 * max(times) for times in zip(*ranks, strict=True))


def table(result: Result) -> Table:
    """Return one row's contenders: medians, with the ratio to raw and its 10th and 90th percentile."""
    drawn = Table(title=result.title, title_justify="left", caption_justify="left")
    drawn.add_column("contender")
    if result.tensors > 1:
        drawn.add_column("host us a tensor", justify="right")
    for time in result.times:
        drawn.add_column(HEADS[time][0], justify="right")
        drawn.add_column(f"x {result.base}", justify="right")
    for head in ("GB/s", "wrong bytes", "extra MB"):
        drawn.add_column(head, justify="right")
    for name in result.timings:
        drawn.add_row(name, *_cells(name, result))
    drawn.caption = "\n".join(
        [*traffic_lines(result), *(f"{name}: {reason}" for name, reason in result.not_run.items())]
    )
    return drawn


def _cells(name: str, result: Result) -> list[str]:
    timing = result.timings[name]
    cells = [f"{result.host_us_per_tensor(name):.3g}"] if result.tensors > 1 else []
    for time in result.times:
        ratio = result.ratio(name, time)
        cells += [f"{timing.spread(time).median * HEADS[time][1]:.3g}", "" if ratio is None else ratio.text]
    return [*cells, f"{result.gb_per_s(name):.4g}", f"{timing.wrong_bytes:,}", f"{timing.extra_bytes / 1e6:.1f}"]


def traffic_lines(result: Result) -> list[str]:
    """Return what crosses from rank to rank before replicas share it, a line a path; nothing where there are no replicas."""
    return [
        f"crosses before replicas share, {name}: {traffic.total:,} bytes, {traffic.busiest:,} at most into one rank"
        for name, traffic in result.traffic.items()
    ]
