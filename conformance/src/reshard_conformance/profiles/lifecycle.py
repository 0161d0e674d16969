"""Profile lifecycle: caches, clears, and groups that are made and destroyed; traces are symmetric and balanced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from reshard_conformance.case.files import Case, Clear, Destroy
from reshard_conformance.contract import Agreeing, Level, Profile
from reshard_conformance.generate.cases import Drawing, Space, sampled
from reshard_conformance.judge.outcomes import Outcome
from reshard_conformance.search.bench import Bench, Drawn, Property, Script, world_size
from reshard_conformance.search.machine import judge_history, run_machine

__all__ = ["PROPERTIES"]


@dataclass(frozen=True)
class Lives:
    """Scripts of the stateful machine, whose traces must be symmetric and balanced."""

    name: str = "lives"
    profile: Profile = Profile.LIFECYCLE
    requirements: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            **dict.fromkeys(("RS-CACHE-1", "RS-CACHE-3", "RS-CACHE-4", "RS-CACHE-6", "RS-CACHE-9"), ()),
            **dict.fromkeys(("RS-CACHE-2", "RS-CACHE-5", "RS-CACHE-7"), ("destination replicated",)),
        }
    )
    steered: bool = False
    traced: bool = True
    least: Level = Level.L0

    def search(self, bench: Bench, number: int, examples: int, wanted: Sequence[str]) -> None:
        """See `Property`."""
        del wanted
        run_machine(bench, number, examples)

    def judge(self, bench: Bench, script: Script) -> object:
        """See `Property`."""
        return judge_history(bench, script)


@st.composite
def cleared(draw: Callable[..., Any], space: Space) -> Script:
    """Draw a call made twice and again after its group was cleared; mostly with replicas."""
    case = Drawing(draw, space, draw(sampled((("destination replicated",), ())))).case()
    return case, case, Clear(), case


def judge_cleared(bench: Bench, script: Script) -> None:
    """Judge that after a clear each rank splits as in a cold call."""
    outcomes = judge_history(bench, script)
    after = script.index(Clear()) + 1 if Clear() in script else len(script)
    if after == len(script):  # a script that shrinking has cut short
        return
    cold, again = splits(outcomes[0]), splits(outcomes[after])
    faults = [
        f"rank {rank}: {again[rank]} splits after the clear, {cold[rank]} at the first call"
        for rank in cold
        if cold[rank] != again[rank]
    ]
    if faults:
        bench.report(script, "fail", faults)


def splits(outcome: Outcome) -> dict[int, int]:
    """Return the number of splits of each rank."""
    return {report.rank: sum(event.op == "split" for event in report.events) for report in outcome.reports}


@st.composite
def dropped(draw: Callable[..., Any], space: Space) -> Script:
    """Draw groups of one number that are dropped without a clear, one after another."""
    case = Drawing(draw, space, draw(sampled((("destination replicated",), ())))).case()
    times = draw(sampled((1, 2, 3)))
    return (*((case, Destroy(0, clear=False)) * times), case)


@st.composite
def partly_cleared(draw: Callable[..., Any], space: Space) -> Script:
    """Draw a call, a clear on some ranks only, the call again, which must be refused, and a clear on all ranks."""
    case = Drawing(draw, space, ("destination replicated",)).case()
    size = case.world_size
    start = draw(sampled(tuple(range(size))))
    ranks = tuple(sorted({(start + step) % size for step in range(draw(sampled((1, 1, 2))))}))[: size - 1]
    return case, Clear(ranks=ranks), replace(case, expect="error:agreement"), Clear(), case


def judge_partly_cleared(bench: Bench, script: Script) -> None:
    """Judge that check="always" refuses the call after the partial clear; without that mode it may also succeed."""
    if isinstance(bench.loaded, Agreeing):
        bench.play(script, check="always")
        return
    bench.begin()
    session = bench.open_session(world_size(script))
    for place, step in enumerate(script):
        doubtful = isinstance(step, Case) and step.expect != "equal"
        outcome = session.play(replace(step, expect="equal") if isinstance(step, Case) else step)
        refused = bool(outcome.reports) and all(report.error and not report.wrong for report in outcome.reports)
        if outcome.verdict != "pass" and not (doubtful and refused):
            bench.report(script[: place + 1], outcome.verdict, outcome.faults)
    session.play(Destroy(0))
    bench.count(script)


def several(space: Space) -> Space:
    """Return the space with world sizes of at least two ranks, if it has any."""
    sizes = tuple(size for size in space.sizes if size > 1)
    return replace(space, sizes=sizes) if sizes else space


PROPERTIES: tuple[Property, ...] = (
    Lives(),
    Drawn(
        "cleared",
        Profile.LIFECYCLE,
        {"RS-CACHE-5": ("destination replicated",)},
        lambda space, _: cleared(space),
        judge_cleared,
    ),
    Drawn(
        "dropped",
        Profile.LIFECYCLE,
        {"RS-CACHE-8": ("destination replicated",), "RS-CACHE-9": ("destination replicated",)},
        lambda space, _: dropped(space),
        Bench.play,
    ),
    Drawn(
        "partly-cleared",
        Profile.LIFECYCLE,
        {"RS-CACHE-10": ()},
        lambda space, _: partly_cleared(several(space)),
        judge_partly_cleared,
    ),
)
