"""The search for a script of steps that an implementation fails, and for the smallest such script.

A `Property` draws scripts and plays them on a `Bench`. hypothesis draws and shrinks them; the seed decides everything that
is drawn.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TypeAlias

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from reshard_conformance import registry
from reshard_conformance.case.files import Destroy, Step
from reshard_conformance.contract import Implementation, Level, Profile
from reshard_conformance.generate.cases import Space
from reshard_conformance.generate.coverage import Coverage
from reshard_conformance.judge.outcomes import Outcome, RankReport
from reshard_conformance.judge.trace import Event, release_faults
from reshard_conformance.worlds import Session, World

__all__ = [
    "SHRINKS",
    "Bench",
    "Drawn",
    "Finding",
    "Property",
    "Script",
    "SearchHalted",
    "open_groups",
    "search",
    "search_settings",
    "world_size",
]

Script: TypeAlias = tuple[Step, ...]

#: The number of tries to make a failing script smaller.
SHRINKS = 500
#: A class of layouts lags below this many times its floor; a round aims at no more than so many lagging classes.
LAG_MARGIN, MAX_GOALS = 1.3, 5


class Finding(Exception):  # noqa: N818 - what a search is for, no error of ours
    """A script that the implementation fails, with one sentence a fault.

    repeats: it fails each time that it is played. advisory: it violates a SHOULD only.
    past: the steps that were played before on the same groups.
    """

    def __init__(self, script: Iterable[Step], verdict: str, faults: Sequence[str]) -> None:
        self.script, self.verdict, self.faults = tuple(script), verdict, tuple(faults)
        self.repeats = True
        self.advisory = False
        self.past: Script = ()
        super().__init__(f"{verdict}: {'; '.join(self.faults)}")


class SearchHalted(BaseException):
    """Ends a search at once with a finding; hypothesis does not catch it."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(str(finding))


@dataclass
class Bench:
    """Plays scripts in sessions of one world for one implementation, and counts what was played.

    Nothing is counted after a finding: scripts played then only make the finding smaller.
    make_implementation: makes a new implementation for each script, so that no script sees the state of another.
    keep_groups: groups and their communicators outlast a script until `end_groups`, for worlds where they are expensive.
    max_shrinks: the number of tries to make a failing script smaller. on_step: called at every step.
    in_lockstep: the layouts that golden played too.
    """

    world: World
    implementation: str | Implementation
    space: Space
    traced: bool = True
    make_implementation: Callable[[], Implementation] | None = None
    keep_groups: bool = False
    max_shrinks: int = SHRINKS
    on_step: Callable[[Bench], None] | None = None
    finding: Finding | None = None
    shrinks: int = 0
    scripts: int = 0
    layouts: set[bytes] = field(default_factory=set)
    in_lockstep: set[bytes] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.session: tuple[int, Session] | None = None
        self.history = GroupHistory()
        self.coverage = Coverage(self.space.level, self.space.sizes)

    @property
    def loaded(self) -> Implementation:
        """The implementation object, whose hooks can be looked up."""
        return registry.load(self.implementation) if isinstance(self.implementation, str) else self.implementation

    def play(self, script: Script, **options: Any) -> list[Outcome]:
        """Play the steps in order, then destroy their groups unless they are kept.

        Raises Finding at the first step that does not pass.
        """
        self.begin()
        kept = self.keep_groups and self.finding is None
        outcomes: list[Outcome] = []
        steps = script if kept else (*script, *(Destroy(group) for group in open_groups(script)))
        for number, step in enumerate(steps):
            outcomes.append(self.step(steps[:number], step, world_size(script), **options))
        if kept:
            self.history.add(script, outcomes)
        self.count(script, in_lockstep=bool(options.get("lockstep")))
        return outcomes

    def begin(self) -> None:
        """Begin another script; raise SearchHalted after enough tries to make a finding smaller."""
        self.shrinks += self.finding is not None
        if self.finding is not None and self.shrinks > self.max_shrinks:
            raise SearchHalted(self.finding)
        if self.make_implementation is not None:
            self.close()
            self.implementation = self.make_implementation()

    def step(self, before: Script, step: Step, size: int, **options: Any) -> Outcome:
        """Play one step after others; raise Finding when it does not pass."""
        outcome = self.open_session(size).play(step, **options)
        self.tick()
        if outcome.verdict != "pass":
            self.report((*before, step), outcome.verdict, outcome.faults)
        return outcome

    def tick(self) -> None:
        """Report progress: a step was played."""
        if self.on_step is not None:
            self.on_step(self)

    def open_session(self, size: int) -> Session:
        """Return the session of so many ranks; only one is open at a time."""
        if self.session is None or self.session[0] != size:
            self.end_groups()
            self.close()
            self.session = size, self.world.open(size, self.implementation, traced=self.traced)
        return self.session[1]

    def end_groups(self) -> None:
        """End the groups that were kept; raise Finding where a rank does not release all communicators made from them."""
        history, self.history = self.history, GroupHistory()
        ends = tuple(Destroy(group) for group in open_groups(history.script))
        steps = (*history.script, *ends)
        for number, step in enumerate(ends, len(history.script)):
            outcome = self.step(steps[:number], step, world_size(history.script))
            history.add((), [outcome])
            faults = [fault for report in outcome.reports for fault in live_faults(report)]
            if faults:
                self.report(steps[: number + 1], "fail", faults)
        faults = release_faults(history.events)
        if faults:
            self.report(steps, "fail", faults)

    def report(self, script: Script, verdict: str, faults: Sequence[str], *, advisory: bool = False) -> NoReturn:
        """Raise a finding; SearchHalted for a hang, which takes too long to be played again outside sim."""
        finding = Finding(script, verdict, faults)
        finding.advisory = advisory
        if self.finding is None:  # the groups of earlier scripts end here, and may have had a part in it
            finding.past, self.history = self.history.script, GroupHistory()
        self.finding = finding  # hypothesis goes from larger to smaller ones
        if verdict == "hang" and self.world.name != "sim":
            raise SearchHalted(with_past(finding))
        raise finding

    def count(self, script: Script, *, in_lockstep: bool = False) -> None:
        """Count the script; in_lockstep: golden played it too."""
        if self.finding is not None:
            return
        self.scripts += 1
        for case in (case for step in script for case in step.cases if case.expect == "equal"):
            layout = hashlib.blake2b(repr(case.layout).encode(), digest_size=8).digest()
            self.layouts.add(layout)
            self.dtypes.add(case.dtype)
            if in_lockstep:
                self.in_lockstep.add(layout)
            self.coverage.add(case)

    def close(self) -> None:
        """End the session."""
        if self.session is not None:
            self.session[1].close()
            self.session = None


@dataclass
class GroupHistory:
    """The steps played on the groups that are kept, and every rank's splits and releases."""

    script: Script = ()
    events: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))

    def add(self, script: Script, outcomes: Iterable[Outcome]) -> None:
        """Add a script and its outcomes."""
        self.script += script
        for report in (report for outcome in outcomes for report in outcome.reports):
            self.events[report.rank] += [
                event for event in report.events if event.made is not None or event.op in {"destroy", "abort"}
            ]


class Property(Protocol):
    """A law that an implementation of a profile must always keep.

    requirements: the ids that it shows, each with the coverage classes that it must have drawn to show it.
    steered: its draws have to reach the floors of the coverage classes.
    traced: it judges the trace, so that everything has to go through the suite's communicators.
    least: the lowest level of core at which it can be played.
    """

    @property
    def name(self) -> str: ...
    @property
    def profile(self) -> Profile: ...
    @property
    def requirements(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def steered(self) -> bool: ...
    @property
    def traced(self) -> bool: ...
    @property
    def least(self) -> Level: ...

    def search(self, bench: Bench, number: int, examples: int, wanted: Sequence[str]) -> None:
        """Draw and judge this many scripts under the seed `number`; raise Finding or SearchHalted when one fails."""

    def judge(self, bench: Bench, script: Script, /) -> object:
        """Play one script; raise Finding when it fails."""


@dataclass(frozen=True)
class Drawn:
    """A property whose scripts come from a strategy; `judge` plays one on a bench and reports its faults there."""

    name: str
    profile: Profile
    requirements: Mapping[str, tuple[str, ...]]
    draws: Callable[[Space, Sequence[str]], st.SearchStrategy[Script]]
    judge: Callable[[Bench, Script], object]
    steered: bool = False
    traced: bool = True
    least: Level = Level.L0

    def search(self, bench: Bench, number: int, examples: int, wanted: Sequence[str]) -> None:
        """See `Property`."""

        @seed(number)
        @search_settings(examples)
        @given(self.draws(bench.space, wanted))
        def test(script: Script) -> None:
            self.judge(bench, script)

        test()


def search_settings(examples: int, **more: Any) -> settings:
    """Return hypothesis's settings for a run of the suite: nothing is read from or left on disk, and nothing is timed."""
    return settings(
        max_examples=examples,
        phases=(Phase.generate, Phase.shrink),
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        **more,
    )


def search(prop: Property, bench: Bench, number: int, rounds: int, examples: int) -> Finding | None:
    """Search in rounds, then end the groups that were kept; return the finding, if there is one."""
    try:
        play_rounds(prop, bench, number, rounds, examples)
        bench.end_groups()
    except Finding as finding:
        return finding
    except SearchHalted as halt:
        return halt.finding
    except Flaky:  # it failed once; state outside the groups of the script must have had a part in it
        if bench.finding is None:
            raise
        whole = with_past(bench.finding)
        whole.repeats = False
        return whole
    return None


def play_rounds(prop: Property, bench: Bench, number: int, rounds: int, examples: int) -> None:
    """Each round of a steered property aims at the coverage classes that lag after those before it."""
    for round_number in range(rounds):
        steers = prop.steered and round_number > 0
        wanted = bench.coverage.lagging(LAG_MARGIN, prop.profile)[:MAX_GOALS] if steers else ()
        prop.search(bench, number * rounds + round_number, examples, wanted)


def with_past(finding: Finding) -> Finding:
    """Return the finding with the steps before it on the same groups, for one that needs them to fail."""
    whole = Finding((*finding.past, *finding.script), finding.verdict, finding.faults)
    whole.advisory = finding.advisory
    return whole


def live_faults(report: RankReport) -> list[str]:
    """Return a sentence where communicators are alive after their group was cleared."""
    return (
        [f"rank {report.rank}: {report.live} communicators are alive after the group was cleared"]
        if report.live
        else []
    )


def world_size(script: Script) -> int:
    return next(case.world_size for step in script for case in step.cases)


def open_groups(script: Sequence[Step]) -> list[int]:
    """Return the groups that are alive after the script, in order of creation."""
    groups: dict[int, None] = {}
    for step in script:
        groups |= dict.fromkeys(step.groups)
        if isinstance(step, Destroy):
            del groups[step.group]
    return list(groups)
