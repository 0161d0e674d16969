"""Results to judge, with times that are easy to divide."""

from __future__ import annotations

from gpu_bench.results import Result, Timing


def timing(microseconds: float, *, wrong: int = 0, extra: int = 0) -> Timing:
    times = (microseconds,) * 3
    return Timing(times, times, times, times, wrong, extra)


def result(row: str, size: int = 1000, staging: int = 0, **contenders: float) -> Result:
    return Result(row, size, staging, {name.replace("_", " "): timing(times) for name, times in contenders.items()})
