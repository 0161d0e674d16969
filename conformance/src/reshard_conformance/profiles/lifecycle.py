"""Profile lifecycle: caches, clears and groups that come and go; the ranks' calls are the same and balance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from reshard_conformance.cases import Case, Clear, Destroy
from reshard_conformance.contract import Agreeing, Level, Profile
from reshard_conformance.generator import Drawing, Space, one_of
from reshard_conformance.machine import judge_history, run_machine
from reshard_conformance.playing import Outcome
from reshard_conformance.search import Bench, Drawn, Property, Script, world_size

__all__ = ["PROPERTIES"]


@dataclass(frozen=True)
class Lives:
    """Scripts of the stateful machine; the trace of each is symmetric and balances."""

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
    """A call, cold and warm, and the same once more after its group was cleared; replicas most often."""
    case = Drawing(draw, space, draw(one_of((("destination replicated",), ())))).case()
    return case, case, Clear(), case


def judge_cleared(bench: Bench, script: Script) -> None:
    """After a clear each rank makes the splits of a cold call again."""
    outcomes = judge_history(bench, script)
    after = script.index(Clear()) + 1 if Clear() in script else len(script)
    if after == len(script):  # what was left of a script that failed before
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
    """How many splits each rank made."""
    return {report.rank: sum(event.op == "split" for event in report.events) for report in outcome.reports}


@st.composite
def dropped(draw: Callable[..., Any], space: Space) -> Script:
    """A group that is dropped without a clear, and new groups of the same number after it."""
    case = Drawing(draw, space, draw(one_of((("destination replicated",), ())))).case()
    times = draw(one_of((1, 2, 3)))
    return (*((case, Destroy(0, clear=False)) * times), case)


@st.composite
def partly_cleared(draw: Callable[..., Any], space: Space) -> Script:
    """A call, a clear on some ranks only, and the call again, which has to be refused; then all ranks clear."""
    case = Drawing(draw, space, ("destination replicated",)).case()
    size = case.world_size
    start = draw(one_of(tuple(range(size))))
    ranks = tuple(sorted({(start + step) % size for step in range(draw(one_of((1, 1, 2))))}))[: size - 1]
    return case, Clear(ranks=ranks), replace(case, expect="error:agreement"), Clear(), case


def judge_partly_cleared(bench: Bench, script: Script) -> None:
    """With check="always" the call after the partial clear is refused; without that mode it may also be right."""
    if isinstance(bench.loaded, Agreeing):
        bench.play(script, check="always")
        return
    bench.begin()
    session = bench.opened(world_size(script))
    for place, step in enumerate(script):
        doubtful = isinstance(step, Case) and step.expect != "equal"
        outcome = session.play(replace(step, expect="equal") if isinstance(step, Case) else step)
        refused = bool(outcome.reports) and all(report.error and not report.wrong for report in outcome.reports)
        if outcome.verdict != "pass" and not (doubtful and refused):
            bench.report(script[: place + 1], outcome.verdict, outcome.faults)
    session.play(Destroy(0))
    bench.count(script)


def several(space: Space) -> Space:
    """The worlds of at least two ranks."""
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
