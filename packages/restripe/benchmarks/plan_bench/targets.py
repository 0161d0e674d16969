"""Targets 4 and 6 held against what was measured: one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from restripe.analysis.totals import Totals
from restripe.bench.planning import PlanningTimes

FASTER, JUDGED_RANKS = 200, 2048  # times faster than the quadratic planner, at so many ranks
NOISE = 1.5  # the factor by which two times may differ on a busy machine and still count as the same
BALANCE = 1.1


@dataclass(frozen=True)
class Verdict:
    """The outcome of one bound."""

    text: str
    holds: bool

    @classmethod
    def of(cls, subject: str, *, holds: bool) -> Verdict:
        """Return the verdict: the bound and the figure, then the word."""
        return cls(f"{subject} {'holds' if holds else 'FAILS'}", holds)


def planning_verdicts(
    worlds: Sequence[PlanningTimes], quadratic_ms: Mapping[int, Mapping[str, float]]
) -> Iterator[Verdict]:
    """Yield the verdicts on target 4.

    Args:
        quadratic_ms: by ranks and move, the quadratic planner's time.
    """
    by_ranks = {world.ranks: world for world in worlds}
    if JUDGED_RANKS in by_ranks:
        for move, time in quadratic_ms.get(JUDGED_RANKS, {}).items():
            ratio = time / by_ranks[JUDGED_RANKS].plan_ms[move]
            subject = f"{move}, {JUDGED_RANKS:,} ranks: {ratio:,.0f} times faster than the quadratic planner"
            yield Verdict.of(f"target 4 at least {FASTER}: {subject}", holds=ratio >= FASTER)
    smallest, largest = worlds[0], worlds[-1]
    if JUDGED_RANKS in by_ranks and largest.ranks > JUDGED_RANKS:
        yield from _growth_verdicts(by_ranks[JUDGED_RANKS], largest)
    for call, time in largest.lookup_us.items():
        base = smallest.lookup_us[call]
        subject = f"target 4 the same: a look-up by {call} takes {base:.3g} us at {smallest.ranks:,} ranks"
        yield Verdict.of(f"{subject}, {time:.3g} us at {largest.ranks:,}", holds=time <= NOISE * base)


def _growth_verdicts(base: PlanningTimes, largest: PlanningTimes) -> Iterator[Verdict]:
    """Yield a verdict on each move of which a rank has as many messages in both worlds."""
    for move in (move for move, count in largest.messages.items() if count == base.messages[move]):
        ratio = largest.plan_ms[move] / base.plan_ms[move]
        subject = f"{move}, a plan at {largest.ranks:,} ranks takes {ratio:.2f} times that at {base.ranks:,}"
        yield Verdict.of(f"target 4 no dearer: {subject}", holds=ratio <= NOISE)


def balance_verdicts(name: str, totals: Totals) -> Iterator[Verdict]:
    """Yield the verdicts on target 6 for one mapping."""
    balance = totals.balance()
    for role, ratio in (("sender", balance.sending), ("receiver", balance.receiving)):
        yield Verdict.of(f"target 6 at most {BALANCE}: {name}, busiest {role} {ratio:.3f}", holds=ratio <= BALANCE)
