"""A run as a page of Markdown and as JSON: where its numbers come from, a table a row, and the outcome of the targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpu_bench.provenance import summary
from gpu_bench.results import TIMES, Result, Spread, Timing, traffic_lines
from gpu_bench.targets import Verdict, tally

FORMAT = 1  # of report.json
RATIO_KEY = "raw"  # of consumer rows: raw with a group for each tensor
HEADS = {
    "host_us": "host, one call, us",
    "loop_us": "host, calls in a row, us",
    "wall_us": "call to completion, ms",
    "gpu_us": "GPU, ms",
}


def page(
    origin: dict[str, Any],
    results: Sequence[Result],
    peer_copies: dict[str, Spread],
    verdicts: Sequence[Verdict],
    note: str,
) -> str:
    """Return the whole page; `note` stands above all where there is one."""
    lines = [f"{note}.", ""] if note else []
    lines += [f"{summary(origin)}.", "", *versions(origin), "", "```text", *origin["topology"], "```", ""]
    wrong = sum(timing.wrong_bytes for result in results for timing in result.timings.values())
    lines += [f"{wrong:,} wrong bytes in all destinations of all contenders.", ""]
    for result in results:
        lines += [f"## {result.row}", "", f"{_size(result)}.", *_copy_line(peer_copies.get(result.row)), ""]
        lines += [*table(result), ""]
        absent = (f"{name} did not run: {reason}" for name, reason in result.not_run.items())
        lines += _bullets([*traffic_lines(result), *absent])
    return "\n".join([*lines, *target_lines(verdicts)])


def versions(origin: dict[str, Any]) -> list[str]:
    """Return a line with every version, and one with the settings of NCCL."""
    numbers = {"NCCL": origin["nccl"], "CUDA": origin["cuda"], "driver": ", ".join(origin["driver"])}
    numbers |= {"Python": origin["python"], **origin["packages"]}
    settings = ", ".join(f"{name}={value}" for name, value in origin["environment"].items())
    return [
        "Versions: " + ", ".join(f"{name} {version}" for name, version in numbers.items() if version) + ".",
        f"Environment: {settings or 'none'}.",
    ]


def table(result: Result) -> Iterator[str]:
    """Yield a row's contenders: each time's median, with the median of its ratios to raw and their 10th and 90th percentile."""
    many = result.tensors > 1 and "loop_us" not in result.times
    heads = ["contender", *["host, us a tensor"] * many]
    heads += [head for time in result.times for head in (HEADS[time], f"times {result.base}")]
    yield f"| {' | '.join(heads)} |"
    yield f"| {' | '.join('---' for _ in heads)} |"
    for name, timing in result.timings.items():
        cells = [f"{result.host_us_per_tensor(name):.3g}"] * many
        for time in result.times:
            cells += [median_text(timing, time), ratio_text(result.ratio(name, time))]
        yield f"| {name} | {' | '.join(cells)} |"


def median_text(timing: Timing, time: str) -> str:
    """Return a median: microseconds of the host, milliseconds of the others."""
    median = timing.spread(time).median
    if time in {"wall_us", "gpu_us"}:
        return f"{median / 1e3:.4g}"
    return f"{median:.0f}" if median >= 10 else f"{median:.2g}"


def ratio_text(ratio: Spread | None) -> str:
    """Return the ratios to raw; empty without raw."""
    return "" if ratio is None else f"{ratio.median:.2f} ({ratio.p10:.2f} to {ratio.p90:.2f})"


def target_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the tally, and every target that does not hold."""
    if not verdicts:
        return []
    failed = [verdict.text for verdict in verdicts if not verdict.holds]
    return ["## Targets", "", f"{tally(verdicts)}.", "", *_bullets(failed)]


def _size(result: Result) -> str:
    """Return the bytes, and of consumer rows the tensors."""
    return result.title.removeprefix(f"{result.row}: ")


def _copy_line(peer_copy: Spread | None) -> list[str]:
    if peer_copy is None:
        return []
    return [f"A copy of what one GPU sends, without NCCL: {peer_copy.median / 1e3:.4g} ms."]


def _bullets(texts: Sequence[str]) -> list[str]:
    return [*(f"- {text}" for text in texts), ""] if texts else []


def run_json(
    origin: dict[str, Any], results: Sequence[Result], peer_copies: dict[str, Spread], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """Return all that is known of a run, for JSON."""
    return {
        "format": FORMAT,
        "provenance": origin,
        "rows": [row_json(result, peer_copies.get(result.row)) for result in results],
        "targets": [verdict.to_json() for verdict in verdicts],
    }


def row_json(result: Result, peer_copy: Spread | None) -> dict[str, Any]:
    """Return one row for JSON, every key with its unit; the peer copy is None where there is none."""
    return {
        "row": result.row,
        "size_bytes": result.size_bytes,
        "tensors": result.tensors,
        "shared_gpu": result.shared_gpu,
        "peer_copy_gpu_us": None if peer_copy is None else peer_copy._asdict(),
        "contenders": {name: contender_json(name, result) for name in result.timings},
        "not_run": dict(result.not_run),
        "crossing_bytes": {name: traffic._asdict() for name, traffic in result.traffic.items()},
    }


def contender_json(name: str, result: Result) -> dict[str, Any]:
    """Return one contender's times with each repeat, ratios to raw, rate, wrong bytes and memory; None for no time."""
    timing = result.timings[name]
    entry: dict[str, Any] = {time: timing.spread(time)._asdict() if time in result.times else None for time in TIMES}
    for time in TIMES:
        ratio = result.ratio(name, time)
        entry[f"{time.removesuffix('_us')}_times_{RATIO_KEY}"] = None if ratio is None else ratio._asdict()
    return entry | {
        "host_per_tensor_us": result.host_us_per_tensor(name),
        "rate_gb_per_s": result.gb_per_s(name),
        "wrong_bytes": timing.wrong_bytes,
        "extra_bytes": timing.extra_bytes,
        "repeats": {time: list(getattr(timing, time)) for time in TIMES},
    }
