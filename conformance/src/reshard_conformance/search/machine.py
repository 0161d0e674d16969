"""A stateful machine that mixes reshards, refusals and clears, and makes and ends groups.

Its rules write a script; at its end the script is played and judged, so that a failure is a case file.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from reshard_conformance.case.files import Case, Clear, Destroy, Step
from reshard_conformance.generate.cases import Drawing
from reshard_conformance.generate.defects import LAYOUT_DEFECTS, with_layout_defect
from reshard_conformance.judge.outcomes import Outcome
from reshard_conformance.judge.trace import Event, release_faults
from reshard_conformance.search.bench import Bench, Script, live_faults, open_groups, search_settings

__all__ = ["Machine", "judge_history", "run_machine"]

GROUPS = st.integers(0, 2)
STEPS = 12  # of one script


class Machine(RuleBasedStateMachine):
    """Ranks of one world, with up to three groups over all of them."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench, self.space = bench, bench.space
        self.script: list[Step] = []

    @property
    def cases(self) -> list[Case]:
        """The calls so far that are expected to succeed."""
        return [step for step in self.script if isinstance(step, Case) and step.expect == "equal"]

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Make the first call, which decides the world size."""
        self.script.append(Drawing(data.draw, self.space).case())
        self.space = self.space.at(self.cases[0].world_size)

    @rule(data=st.data(), group=GROUPS)
    def reshard(self, data: st.DataObject, group: int) -> None:
        """Make a new call."""
        self.script.append(replace(Drawing(data.draw, self.space).case(), group=group))

    @rule(data=st.data(), group=GROUPS)
    def again(self, data: st.DataObject, group: int) -> None:
        """Repeat an earlier call, perhaps on another group."""
        self.script.append(replace(data.draw(st.sampled_from(self.cases)), group=group))

    @rule(data=st.data(), group=GROUPS)
    def refuse(self, data: st.DataObject, group: int) -> None:
        """Make a call that every rank refuses."""
        drawing = Drawing(data.draw, self.space)
        good = data.draw(st.sampled_from(self.cases))
        self.script.append(
            replace(with_layout_defect(drawing, good, drawing.choose(tuple(LAYOUT_DEFECTS))), group=group)
        )

    @rule(group=GROUPS, times=st.integers(1, 2))
    def clear(self, group: int, times: int) -> None:
        """Clear a group, used or not, once or twice."""
        self.script += [Clear(group=group)] * times

    @rule()
    def clear_all(self) -> None:
        """Clear all groups."""
        self.script.append(Clear(all_groups=True))

    @precondition(lambda self: bool(open_groups(self.script)))
    @rule(data=st.data())
    def destroy(self, data: st.DataObject) -> None:
        """End a group; a later call with its number gets a new one."""
        self.script.append(Destroy(data.draw(st.sampled_from(open_groups(self.script)))))

    def teardown(self) -> None:
        """Play the script that the rules wrote."""
        if self.script:
            judge_history(self.bench, tuple(self.script))


def run_machine(bench: Bench, number: int, examples: int) -> None:
    """Run the machine so many times under the seed; raise Finding or SearchHalted when a script fails."""

    class BenchMachine(Machine):
        def __init__(self) -> None:
            super().__init__(bench)

    run_state_machine_as_test(seed(number)(BenchMachine), settings=search_settings(examples, stateful_step_count=STEPS))


def judge_history(bench: Bench, script: Script) -> list[Outcome]:
    """Play the script and end its groups; then every communicator from a split must have been released once."""
    outcomes = bench.play(script)
    steps = (*script, *(Destroy(group) for group in open_groups(script)))
    events: dict[int, list[Event]] = defaultdict(list)
    for number, (step, outcome) in enumerate(zip(steps, outcomes, strict=True)):
        for report in outcome.reports:
            events[report.rank] += report.events
            faults = [] if isinstance(step, Case) else live_faults(report)
            if faults:
                bench.report(steps[: number + 1], "fail", faults)
    faults = release_faults(events)
    if faults:
        bench.report(steps, "fail", faults)
    return outcomes
