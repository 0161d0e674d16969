"""What was measured, and its medians and ratios; times in microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from restripe.bench.crossing import Crossing

TIMES = ("host_us", "loop_us", "wall_us", "gpu_us")


class Spread(NamedTuple):
    """A median with the values that a tenth lies below and above."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)])


@dataclass(frozen=True)
class Timing:
    """One contender in one row; the slowest rank counts, repeat by repeat.

    Args:
        host_us: until one call returned, on an idle GPU.
        wall_us: until the GPU was done with it.
        loop_us: a call's share of a burst on the host, which is ahead of the GPU.
        gpu_us: the same on the GPU.
        wrong_bytes: bytes of the destinations, on all ranks, that were not as they have to be.
        extra_bytes: the most that torch had allocated on any rank during a warm call, beyond what there was before the
            contender was made ready.
    """

    host_us: tuple[float, ...]
    loop_us: tuple[float, ...]
    wall_us: tuple[float, ...]
    gpu_us: tuple[float, ...]
    wrong_bytes: int
    extra_bytes: int

    def spread(self, time: str) -> Spread:
        """The spread of one of TIMES."""
        return Spread.of(getattr(self, time))

    def ratio(self, other: Timing, time: str) -> Spread:
        """The spread of this time over the other's, repeat by repeat."""
        pairs = zip(getattr(self, time), getattr(other, time), strict=True)
        return Spread.of([mine / theirs for mine, theirs in pairs])


@dataclass(frozen=True)
class Result:
    """One row: what was timed, why the other contenders were not, and for rows with replicas what crosses on which path."""

    row: str
    size_bytes: int
    staging_bytes: int
    timings: dict[str, Timing] = field(default_factory=dict)
    unfit: dict[str, str] = field(default_factory=dict)
    crossing: dict[str, Crossing] = field(default_factory=dict)


def slowest(ranks: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Repeat by repeat, the longest time of any rank, in microseconds of seconds."""
    return tuple(1e6 * max(times) for times in zip(*ranks, strict=True))
