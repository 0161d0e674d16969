"""A run as a page of Markdown: where its numbers come from, a table a row, and what became of the targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpu_bench.provenance import summary
from gpu_bench.targets import Verdict, tally
from restripe.bench.results import TIMES, Result, Spread, Timing
from restripe.bench.table import BASE, crossings

HEADS = {
    "host_us": "host, one call, us",
    "loop_us": "host, calls in a row, us",
    "wall_us": "call to completion, ms",
    "gpu_us": "GPU, ms",
}


def page(
    origin: dict[str, Any], results: Sequence[Result], limits: dict[str, Spread], verdicts: Sequence[Verdict], note: str
) -> str:
    """The whole page; `note` comes first where it says anything."""
    lines = [f"{note}.", ""] if note else []
    lines += [f"{summary(origin)}.", "", *versions(origin), "", "```text", *origin["topology"], "```", ""]
    wrong = sum(timing.wrong_bytes for result in results for timing in result.timings.values())
    lines += [f"{wrong:,} wrong bytes in all destinations of all contenders.", ""]
    for result in results:
        lines += [f"## {result.row}", "", f"{result.size_bytes:,} bytes.", *_limit(limits.get(result.row)), ""]
        lines += [*table(result), ""]
        lines += _listed([*crossings(result), *(f"{name} did not run: {why}" for name, why in result.unfit.items())])
    return "\n".join([*lines, *targets(verdicts)])


def versions(origin: dict[str, Any]) -> list[str]:
    """Every version, and the settings of NCCL."""
    found = {"NCCL": origin["nccl"], "CUDA": origin["cuda"], "driver": ", ".join(origin["driver"])}
    found |= {"Python": origin["python"], **origin["packages"]}
    return [
        "Versions: " + ", ".join(f"{name} {version}" for name, version in found.items() if version) + ".",
        "Environment: "
        + (", ".join(f"{name}={value}" for name, value in origin["environment"].items()) or "none")
        + ".",
    ]


def table(result: Result) -> Iterator[str]:
    """A row's contenders: each time's median, with the median of its ratios to raw and their 10th and 90th percentile."""
    heads = ["contender", *(head for time in TIMES for head in (HEADS[time], f"times {BASE}"))]
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    base = result.timings.get(BASE)
    for name, timing in result.timings.items():
        cells = [text for time in TIMES for text in (median(timing, time), ratio(timing, base, time))]
        yield f"| {name} | {' | '.join(cells)} |"


def median(timing: Timing, time: str) -> str:
    """A median: microseconds of the host, milliseconds of the others."""
    found = timing.spread(time).median
    if time in {"wall_us", "gpu_us"}:
        return f"{found / 1e3:.4g}"
    return f"{found:.0f}" if found >= 10 else f"{found:.2g}"


def ratio(timing: Timing, base: Timing | None, time: str) -> str:
    """The ratios to raw."""
    if base is None:
        return ""
    middle, low, high = timing.ratio(base, time)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def targets(verdicts: Sequence[Verdict]) -> list[str]:
    """The tally, and every target that does not hold."""
    if not verdicts:
        return []
    return ["## Targets", "", f"{tally(verdicts)}.", "", *_listed([one.text for one in verdicts if not one.holds])]


def _limit(limit: Spread | None) -> list[str]:
    return [] if limit is None else [f"A copy of what one GPU sends, without NCCL: {limit.median / 1e3:.4g} ms."]


def _listed(texts: Sequence[str]) -> list[str]:
    return [*(f"- {text}" for text in texts), ""] if texts else []
