"""Profile agreement: calls in which one rank is at fault, or in which ranks disagree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from reshard_conformance.case.files import Case, Clear, Step
from reshard_conformance.contract import Profile
from reshard_conformance.generate.cases import Drawing, Space
from reshard_conformance.generate.defects import (
    ARGUMENT_FAULTS,
    LAYOUT_DEFECTS,
    argument_fault_scripts,
    diverging_layout_scripts,
    layout_defect_scripts,
)
from reshard_conformance.judge.outcomes import Outcome
from reshard_conformance.search.bench import Bench, Drawn, Property, Script

__all__ = ["PROPERTIES"]


def several(space: Space) -> Space:
    """Return the space with world sizes of at least two ranks, if it has any."""
    return replace(space, sizes=tuple(size for size in space.sizes if size > 1) or space.sizes)


def judge_always(bench: Bench, script: Script) -> None:
    """Play the script with check="always"."""
    bench.play(script, check="always")


@st.composite
def repeated(draw: Callable[..., Any], space: Space) -> Script:
    """Draw a call made twice, a clear, and the call again."""
    case = Drawing(draw, space).case()
    return case, case, Clear(), case


def exchanges(outcome: Outcome) -> list[int]:
    """Return the number of exchanges of each rank."""
    return [sum(event.op == "exchange" for event in report.events) for report in outcome.reports]


def judge_first(bench: Bench, script: Script) -> None:
    """Judge check="first": ranks exchange records at the first call of a kind and again after a clear, not in between."""
    agreed: set[Step] = set()
    for place, (step, outcome) in enumerate(zip(script, bench.play(script, check="first"), strict=False)):
        if not isinstance(step, Case):
            agreed.clear()
            continue
        wrong = [rank for rank, number in enumerate(exchanges(outcome)) if (number > 0) != (step not in agreed)]
        if wrong:
            expected = "no exchange" if step in agreed else "an exchange"
            bench.report(script[: place + 1], "fail", [f"ranks {wrong}: expected {expected} of records in this call"])
        agreed.add(step)


def judge_off(bench: Bench, script: Script) -> None:
    """Judge check="off": no call exchanges a record."""
    for place, (step, outcome) in enumerate(zip(script, bench.play(script, check="off"), strict=False)):
        if isinstance(step, Case) and any(exchanges(outcome)):
            bench.report(script[: place + 1], "fail", ["records are exchanged in spite of check='off'"])


def calls(space: Space) -> st.SearchStrategy[Script]:
    """Return a strategy of valid calls, and of calls with a defect that every rank sees by itself."""
    return st.one_of(repeated(space), layout_defect_scripts(space, tuple(LAYOUT_DEFECTS)))


PROPERTIES: tuple[Property, ...] = (
    Drawn(
        "faults",
        Profile.AGREEMENT,
        {"RS-AGREE-1": (), "RS-AGREE-3": (), "RS-ERROR-11": ()},
        lambda space, _: argument_fault_scripts(several(space), tuple(ARGUMENT_FAULTS), everywhere=False),
        judge_always,
    ),
    Drawn(
        "disagreements",
        Profile.AGREEMENT,
        {"RS-AGREE-2": (), "RS-AGREE-3": ()},
        lambda space, _: diverging_layout_scripts(several(space)),
        judge_always,
    ),
    Drawn("agrees-first", Profile.AGREEMENT, {"RS-AGREE-4": ()}, lambda space, _: repeated(space), judge_first),
    Drawn("agrees-never", Profile.AGREEMENT, {"RS-AGREE-5": ()}, lambda space, _: calls(space), judge_off),
)
