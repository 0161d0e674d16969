"""What restripe must reach, held against the results of one run: one line a target and row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from restripe.bench.results import Result, Spread
from restripe.bench.rows import between
from restripe.bench.table import brief

ALLOCATOR_BYTES = 512  # torch's allocator rounds each buffer up to a multiple of these


@dataclass(frozen=True)
class Bound:
    """One contender's time in one row may be at most `most` times another's.

    Args:
        target: its number; 7 is to be ahead of other libraries.
        time: one of restripe.bench.results.TIMES.
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
MANY = 100  # lines that a reader of the terminal looks through
LIBRARIES = ("nccl.m2n", "upstream")
#: The names of the rows between disjoint meshes of several ranks.
BETWEEN = tuple(row.name for ranks in (4, 8) for row in between(ranks))


def _between(row: str) -> Iterator[Bound]:
    """GPU time beside the hand-written move, and ahead of the libraries."""
    one = not row.startswith("model")
    turned = "S(0) to S(1)" in row or "S(1) to S(0)" in row
    target, most = (3, 1.1) if turned else (1 if one else 2, 1.05)
    for call in CALLS if one else ("refit",):
        yield Bound(target, row, call, "raw", "gpu_us", most)
    yield Bound(target, row, "refit graph", "raw graph", "gpu_us", most)
    for library in LIBRARIES:
        for call in CALLS if one else ("refit",):
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
    *(bound for row in BETWEEN for bound in _between(row)),
)


@dataclass(frozen=True)
class Verdict:
    """What became of one bound; `holds` is None where it was not measured."""

    text: str
    holds: bool | None
    spread: Spread | None = None

    def told(self) -> dict[str, Any]:
        """The verdict for JSON."""
        return asdict(self) | {"spread": None if self.spread is None else self.spread._asdict()}


def verdicts(results: Sequence[Result]) -> Iterator[Verdict]:
    """Every bound held against the results, then the memory of restripe's calls; a library that took no part sets no bound."""
    by_name = {result.row: result for result in results}
    for bound in BOUNDS:
        found = by_name.get(bound.row)
        if found is not None and (bound.most != AHEAD or bound.base in found.timings):
            yield judge(bound, found)
    yield from memories(results)


def memories(results: Sequence[Result]) -> Iterator[Verdict]:
    """The memory of restripe's calls."""
    for result in results:
        for call in CALLS:
            if call in result.timings:
                yield memory(call, result)


def judge(bound: Bound, result: Result) -> Verdict:
    """One bound, by the median of the ratios; the spread tells how sure that is."""
    most = f"{bound.most:.3g}x {bound.base}"
    what = f"target {bound.target} {WORDS[bound.time]} {most}, {bound.row}, {bound.contender}"
    for name in (bound.contender, bound.base):
        if name not in result.timings:
            return Verdict(f"{what}: not measured ({name}: {result.unfit.get(name, 'took no part')})", None)
    spread = result.timings[bound.contender].ratio(result.timings[bound.base], bound.time)
    holds = spread.median <= bound.most
    return Verdict(f"{what}: {brief(spread)} {_word(holds)}", holds, spread)


def memory(call: str, result: Result) -> Verdict:
    """Target 5: what a call allocates beyond the caller's tensors."""
    taken, bound = result.timings[call].extra_bytes, result.staging_bytes
    holds = taken <= (bound and bound + ALLOCATOR_BYTES)
    return Verdict(f"target 5 memory {bound:,} bytes, {result.row}, {call}: {taken:,} bytes {_word(holds)}", holds)


def tally(judged: Sequence[Verdict]) -> str:
    """How many bounds hold, fail, and were not measured."""
    held, failed, open_ = ([verdict.holds for verdict in judged].count(holds) for holds in (True, False, None))
    return f"targets: {held} hold, {failed} fail, {open_} not measured"


def shown(judged: Sequence[Verdict]) -> list[Verdict]:
    """What a terminal shows: all, or of many those that do not hold."""
    return list(judged) if len(judged) <= MANY else [verdict for verdict in judged if not verdict.holds]


def _word(holds: bool) -> str:
    return "holds" if holds else "FAILS"
