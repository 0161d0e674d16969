"""The outcome as JSON: every key with its unit, medians with spreads, and each repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_bench.targets import Verdict
from restripe.bench.results import TIMES, Result, Spread, Timing
from restripe.bench.table import BASE

FORMAT = 1


def report(
    origin: dict[str, Any], results: Sequence[Result], limits: dict[str, Spread], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """All that is known of a run."""
    return {
        "format": FORMAT,
        "provenance": origin,
        "rows": [row(result, limits.get(result.row)) for result in results],
        "targets": [verdict.told() for verdict in verdicts],
    }


def row(result: Result, limit: Spread | None) -> dict[str, Any]:
    """One row; the peer copy is None where there is none."""
    base = result.timings.get(BASE)
    return {
        "row": result.row,
        "size_bytes": result.size_bytes,
        "peer_copy_gpu_us": None if limit is None else limit._asdict(),
        "contenders": {name: contender(timing, base, result.size_bytes) for name, timing in result.timings.items()},
        "not_run": dict(result.unfit),
        "crossing_bytes": {name: found._asdict() for name, found in result.crossing.items()},
    }


def contender(timing: Timing, base: Timing | None, size: int) -> dict[str, Any]:
    """One contender's times, ratios to raw, rate, wrong bytes and memory."""
    told: dict[str, Any] = {time: timing.spread(time)._asdict() for time in TIMES}
    for time in TIMES:
        told[f"{time.removesuffix('_us')}_times_{BASE}"] = None if base is None else timing.ratio(base, time)._asdict()
    return told | {
        "rate_gb_per_s": size / timing.spread("gpu_us").median / 1e3,
        "wrong_bytes": timing.wrong_bytes,
        "extra_bytes": timing.extra_bytes,
        "repeats": {time: list(getattr(timing, time)) for time in TIMES},
    }
