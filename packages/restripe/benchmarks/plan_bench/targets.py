"""Targets 4 and 6 held against what was measured: one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from restripe.analysis.totals import Totals
from restripe.bench.planning import Measured

FASTER, JUDGED = 200, 2048  # times faster than the quadratic planner, at so many ranks
NOISE = 1.5  # what two times may differ by on a busy machine and still count as the same
BALANCE = 1.1


@dataclass(frozen=True)
class Verdict:
    """What became of one bound."""

    text: str
    holds: bool

    @classmethod
    def of(cls, what: str, *, holds: bool) -> Verdict:
        """The bound and the figure, then the word."""
        return cls(f"{what} {'holds' if holds else 'FAILS'}", holds)


def planning(found: Sequence[Measured], quadratic_ms: Mapping[int, Mapping[str, float]]) -> Iterator[Verdict]:
    """Target 4.

    Args:
        quadratic_ms: by ranks and move, the quadratic planner's time.
    """
    for one in found:
        for move, time in quadratic_ms.get(one.ranks, {}).items():
            ratio = time / one.plan_ms[move]
            what = f"{move}, {one.ranks:,} ranks: {ratio:,.0f} times faster than the quadratic planner"
            if one.ranks == JUDGED:
                yield Verdict.of(f"target 4 at least {FASTER}: {what}", holds=ratio >= FASTER)
    first, last = found[0], found[-1]
    by_ranks = {one.ranks: one for one in found}
    if JUDGED in by_ranks and last.ranks > JUDGED:
        for move in (move for move, count in last.messages.items() if count == by_ranks[JUDGED].messages[move]):
            times = last.plan_ms[move] / by_ranks[JUDGED].plan_ms[move]
            what = (
                f"target 4 no dearer: {move}, a plan at {last.ranks:,} ranks takes {times:.2f} times that at {JUDGED:,}"
            )
            yield Verdict.of(what, holds=times <= NOISE)
    for kind, time in last.lookup_us.items():
        what = f"target 4 the same: a look-up by {kind} takes {first.lookup_us[kind]:.3g} us at {first.ranks:,} ranks"
        yield Verdict.of(f"{what}, {time:.3g} us at {last.ranks:,}", holds=time <= NOISE * first.lookup_us[kind])


def balance(name: str, totals: Totals) -> Iterator[Verdict]:
    """Target 6 for one mapping."""
    found = totals.balance()
    for who, ratio in (("sender", found.sending), ("receiver", found.receiving)):
        yield Verdict.of(f"target 6 at most {BALANCE}: {name}, busiest {who} {ratio:.3f}", holds=ratio <= BALANCE)
