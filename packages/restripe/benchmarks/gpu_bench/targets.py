"""Targets that restripe must reach, held against the results of one run: one line a target and row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpu_bench.consumer import FOREIGN_MESH, OWN_MESH, RAW_EACH
from gpu_bench.results import Result, Spread
from gpu_bench.rows import between_meshes, consumer_rows

ALLOCATOR_BYTES = 512  # torch's allocator rounds each buffer up to a multiple of these


@dataclass(frozen=True)
class Bound:
    """One contender's time in one row may be at most `most` times another's.

    Args:
        target: its number; 7 is to be ahead of other libraries, 8 to be fast for what consumers pass.
        time: one of gpu_bench.results.TIMES.
    """

    target: int
    row: str
    contender: str
    base: str
    time: str
    most: float


WORDS = {"host_us": "host", "loop_us": "host (loop)", "wall_us": "wall", "gpu_us": "GPU"}
CALLS = ("drop-in", "reshard", "refit")
SINGLE = ("point 16 KiB", "point 34 MB", "point 262 MB", "point 1 GiB")
EXCHANGES = ("exchange 16 KiB", "exchange 262 MB")
FASTER = 1 / 2.15
AHEAD = math.nextafter(1.0, 0.0)  # any less than the other's time
MANY_VERDICTS = 100  # lines that a reader of the terminal looks through
LIBRARIES = ("nccl.m2n", "upstream")
CONSUMER_TARGET = 8
GROWTH, GROWTH_ROWS = 1.2, ("consumer 396", "consumer 18867")
#: The names of the rows between disjoint meshes of several ranks.
BETWEEN = tuple(row.name for ranks in (4, 8) for row in between_meshes(ranks))


CONSUMER = tuple(row.name for row in consumer_rows(8))


def _consumer_bounds(row: str) -> Iterator[Bound]:
    """Yield bounds on a refit tensor by tensor: beside upstream where it is given, raw, and restripe's own mesh class."""
    yield Bound(CONSUMER_TARGET, row, FOREIGN_MESH, "upstream", "host_us", 0.5)
    yield Bound(CONSUMER_TARGET, row, FOREIGN_MESH, "upstream", "wall_us", 0.7)
    for time in ("host_us", "wall_us"):
        yield Bound(CONSUMER_TARGET, row, FOREIGN_MESH, RAW_EACH, time, 1.3)
    yield Bound(CONSUMER_TARGET, row, FOREIGN_MESH, OWN_MESH, "host_us", 1.3)


def _bounds_between(row: str) -> Iterator[Bound]:
    """Yield bounds on the GPU time: beside the hand-written move, and ahead of the libraries."""
    one_tensor = not row.startswith("model")
    turned = "S(0) to S(1)" in row or "S(1) to S(0)" in row
    target, most = (3, 1.1) if turned else (1 if one_tensor else 2, 1.05)
    calls = CALLS if one_tensor else ("refit",)
    for call in calls:
        yield Bound(target, row, call, "raw", "gpu_us", most)
    yield Bound(target, row, "refit graph", "raw graph", "gpu_us", most)
    for library in LIBRARIES:
        for call in calls:
            yield Bound(7, row, call, library, "gpu_us", AHEAD)


BOUNDS = (
    *(Bound(1, row, call, "raw", time, 1.3) for time in ("host_us", "loop_us") for row in SINGLE for call in CALLS),
    *(Bound(1, row, call, "raw", "gpu_us", 1.05) for row in SINGLE for call in CALLS),
    *(Bound(2, "model 4B", "refit", "raw", time, 1.05) for time in ("wall_us", "gpu_us")),
    Bound(2, "model 4B", "refit", "upstream", "wall_us", FASTER),
    Bound(2, "model 4B", "refit graph", "raw graph", "gpu_us", 1.02),
    Bound(2, "model 4B", "refit graph", "raw graph", "host_us", 1.2),
    *(Bound(3, row, call, "raw", time, 1.1) for row in EXCHANGES for call in CALLS for time in ("wall_us", "gpu_us")),
    Bound(3, "exchange 262 MB", "refit graph", "raw graph", "gpu_us", 1.1),
    *(bound for row in BETWEEN for bound in _bounds_between(row)),
    *(bound for row in CONSUMER for bound in _consumer_bounds(row)),
)


@dataclass(frozen=True)
class Verdict:
    """The outcome of one bound; `holds` is None where it was not measured."""

    text: str
    holds: bool | None
    spread: Spread | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON's types."""
        return asdict(self) | {"spread": None if self.spread is None else self.spread._asdict()}


def all_verdicts(results: Sequence[Result]) -> Iterator[Verdict]:
    """Yield the verdict on every bound, on the growth with the number of tensors, and on the memory of restripe's calls."""
    by_name = {result.row: result for result in results}
    for bound in BOUNDS:
        result = by_name.get(bound.row)
        if result is not None and sets_bound(bound, result):
            yield check_bound(bound, result)
    few, many = (by_name.get(row) for row in GROWTH_ROWS)
    if few is not None and many is not None:
        yield from growth_verdicts(few, many)
    yield from memory_verdicts(results)


def sets_bound(bound: Bound, result: Result) -> bool:
    """Return whether a bound counts: a library sets none where it took no part, and a shared GPU's times say nothing."""
    if result.shared_gpu and (bound.target != CONSUMER_TARGET or bound.time != "host_us"):
        return False
    if bound.most == AHEAD:
        return bound.base in result.timings
    return bound.base != "upstream" or bound.base in result.timings or bound.base in result.not_run


def growth_verdicts(few: Result, many: Result) -> Iterator[Verdict]:
    """Yield verdicts on the host's time a tensor in a refit of many tensors over that in one of few."""
    for call in (FOREIGN_MESH, OWN_MESH):
        if call in few.timings and call in many.timings:
            pairs = zip(many.timings[call].host_us, few.timings[call].host_us, strict=False)
            spread = Spread.of([(of_many / many.tensors) / (of_few / few.tensors) for of_many, of_few in pairs])
            holds = spread.median <= GROWTH
            subject = f"target {CONSUMER_TARGET} host a tensor {GROWTH:.3g}x {few.row}, {many.row}, {call}"
            yield Verdict(f"{subject}{_shared(many)}: {spread.text} {_word(holds)}", holds, spread)


def memory_verdicts(results: Sequence[Result]) -> Iterator[Verdict]:
    """Yield the verdicts on the memory of restripe's calls."""
    for result in results:
        for call in (*CALLS, FOREIGN_MESH, OWN_MESH):
            if call in result.timings:
                yield check_memory(call, result)


def check_bound(bound: Bound, result: Result) -> Verdict:
    """Return the verdict on one bound, by the median of the ratios; the spread shows how sure that is."""
    most = f"{bound.most:.3g}x {bound.base}"
    subject = f"target {bound.target} {WORDS[bound.time]} {most}, {bound.row}, {bound.contender}{_shared(result)}"
    for name in (bound.contender, bound.base):
        if name not in result.timings:
            return Verdict(f"{subject}: not measured ({name}: {result.not_run.get(name, 'took no part')})", None)
    spread = result.timings[bound.contender].ratio(result.timings[bound.base], bound.time)
    holds = spread.median <= bound.most
    return Verdict(f"{subject}: {spread.text} {_word(holds)}", holds, spread)


def check_memory(call: str, result: Result) -> Verdict:
    """Return the verdict on target 5: what a call allocates beyond the caller's tensors."""
    extra, most = result.timings[call].extra_bytes, result.staging_bytes
    holds = extra <= (most and most + ALLOCATOR_BYTES)
    return Verdict(f"target 5 memory {most:,} bytes, {result.row}, {call}: {extra:,} bytes {_word(holds)}", holds)


def tally(verdicts: Sequence[Verdict]) -> str:
    """Return how many bounds hold, fail, and were not measured."""
    outcomes = [verdict.holds for verdict in verdicts]
    held, failed, unknown = (outcomes.count(holds) for holds in (True, False, None))
    return f"targets: {held} hold, {failed} fail, {unknown} not measured"


def terminal_verdicts(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return what a terminal shows: all, or of many those that do not hold."""
    return list(verdicts) if len(verdicts) <= MANY_VERDICTS else [verdict for verdict in verdicts if not verdict.holds]


def _shared(result: Result) -> str:
    return " (shared GPU)" if result.shared_gpu else ""


def _word(holds: bool) -> str:
    return "holds" if holds else "FAILS"
