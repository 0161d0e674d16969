"""Looks for a script of steps that an implementation fails, and makes it small.

A `Property` draws scripts and plays them on a `Bench`. hypothesis drives the drawing and the shrinking; the seed decides
everything that is drawn.
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
from reshard_conformance.cases import Batch, Case, Destroy, Flow, Step
from reshard_conformance.contract import Implementation, Level, Profile
from reshard_conformance.coverage import Coverage
from reshard_conformance.generator import Space
from reshard_conformance.playing import Outcome, cases_of
from reshard_conformance.trace import Event, balance
from reshard_conformance.worlds import Session, World

__all__ = [
    "SHRINKS",
    "Bench",
    "Drawn",
    "Finding",
    "Halt",
    "Property",
    "Script",
    "limits",
    "open_groups",
    "search",
    "world_size",
]

Script: TypeAlias = tuple[Step, ...]

#: How often a failing script may be tried again to make it smaller.
SHRINKS = 500
#: A class of layouts lags below this many times its floor; a round aims at so many of those that lag.
MARGIN, AIMS = 1.3, 5


class Finding(Exception):  # noqa: N818 - what a search is for, no error of ours
    """A script that the implementation fails; `faults` say how, one sentence each."""

    def __init__(self, script: Iterable[Step], verdict: str, faults: Sequence[str]) -> None:
        self.script, self.verdict, self.faults = tuple(script), verdict, tuple(faults)
        self.again = True  # whether it fails each time that it is played
        self.advisory = False  # whether it is against a SHOULD only
        self.past: Script = ()  # what was played before on the same groups
        super().__init__(f"{verdict}: {'; '.join(self.faults)}")


class Halt(BaseException):
    """Ends a search at once, past hypothesis, with what was found."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(str(finding))


@dataclass
class Bench:
    """Where scripts are played: sessions of one world for one implementation, and an account of what was played.

    After a finding the account stays as it is: what is played then only makes the finding smaller.
    renew: makes a new implementation for each script, so that none of them meets what another has left behind.
    keep: groups outlast a script, with all that was made from them, until `leave`; so it is where communicators are dear.
    most: how often a failing script may be tried again to make it smaller. beat: called at every step.
    """

    world: World
    implementation: str | Implementation
    space: Space
    traced: bool = True
    renew: Callable[[], Implementation] | None = None
    keep: bool = False
    most: int = SHRINKS
    beat: Callable[[Bench], None] | None = None
    found: Finding | None = None
    shrinks: int = 0
    scripts: int = 0
    layouts: set[bytes] = field(default_factory=set)
    beside: set[bytes] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.session: tuple[int, Session] | None = None
        self.past = Past()
        self.coverage = Coverage(self.space.level, self.space.sizes)

    @property
    def loaded(self) -> Implementation:
        """The implementation itself, to look up its hooks."""
        return registry.load(self.implementation) if isinstance(self.implementation, str) else self.implementation

    def play(self, script: Script, **options: Any) -> list[Outcome]:
        """Play the steps in order, then destroy their groups (unless they are kept); Finding at the first that does not pass."""
        self.begin()
        kept = self.keep and self.found is None
        outcomes: list[Outcome] = []
        whole = script if kept else (*script, *(Destroy(group) for group in open_groups(script)))
        for place, step in enumerate(whole):
            outcomes.append(self.step(whole[:place], step, world_size(script), **options))
        if kept:
            self.past.add(script, outcomes)
        self.count(script, beside=bool(options.get("lockstep")))
        return outcomes

    def begin(self) -> None:
        """Begin another script; Halt when it has been tried often enough to make a finding smaller."""
        self.shrinks += self.found is not None
        if self.found is not None and self.shrinks > self.most:
            raise Halt(self.found)
        if self.renew is not None:
            self.close()
            self.implementation = self.renew()

    def step(self, before: Script, step: Step, size: int, **options: Any) -> Outcome:
        """Play one step after others; Finding when it does not pass."""
        outcome = self.opened(size).play(step, **options)
        self.tick()
        if outcome.verdict != "pass":
            self.report((*before, step), outcome.verdict, outcome.faults)
        return outcome

    def tick(self) -> None:
        """Tell that something was played."""
        if self.beat is not None:
            self.beat(self)

    def opened(self, size: int) -> Session:
        """The session of so many ranks; one is open at a time."""
        if self.session is None or self.session[0] != size:
            self.leave()
            self.close()
            self.session = size, self.world.open(size, self.implementation, traced=self.traced)
        return self.session[1]

    def leave(self) -> None:
        """End the groups that were kept: all that was made from them goes, and goes alike on all ranks; else Finding."""
        past, self.past = self.past, Past()
        ends = tuple(Destroy(group) for group in open_groups(past.script))
        whole = (*past.script, *ends)
        for place, step in enumerate(ends, len(past.script)):
            outcome = self.step(whole[:place], step, world_size(past.script))
            past.add((), [outcome])
            alive = [
                f"rank {r.rank}: {r.live} communicators are alive after the group was cleared"
                for r in outcome.reports
                if r.live
            ]
            if alive:
                self.report(whole[: place + 1], "fail", alive)
        faults = balance(past.events)
        if faults:
            self.report(whole, "fail", faults)

    def report(self, script: Script, verdict: str, faults: Sequence[str], *, advisory: bool = False) -> NoReturn:
        """Raise a finding, past hypothesis where a hang makes it too dear to be played again."""
        finding = Finding(script, verdict, faults)
        finding.advisory = advisory
        if self.found is None:  # the groups of earlier scripts end here, and may have had a part in it
            finding.past, self.past = self.past.script, Past()
        self.found = finding  # hypothesis goes from larger to smaller ones
        if verdict == "hang" and self.world.name != "sim":
            raise Halt(after_past(finding))
        raise finding

    def count(self, script: Script, *, beside: bool = False) -> None:
        """Take the script into the account; beside: golden played along."""
        if self.found is not None:
            return
        self.scripts += 1
        for case in (case for step in script for case in cases_of(step) if case.expect == "equal"):
            layout = hashlib.blake2b(repr(case.layout).encode(), digest_size=8).digest()
            self.layouts.add(layout)
            self.dtypes.add(case.dtype)
            if beside:
                self.beside.add(layout)
            self.coverage.add(case)

    def close(self) -> None:
        """End the session."""
        if self.session is not None:
            self.session[1].close()
            self.session = None


@dataclass
class Past:
    """What was played on the groups that are kept: its steps, and every rank's splits and releases."""

    script: Script = ()
    events: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))

    def add(self, script: Script, outcomes: Iterable[Outcome]) -> None:
        """Take in what a script has left."""
        self.script += script
        for report in (report for outcome in outcomes for report in outcome.reports):
            self.events[report.rank] += [e for e in report.events if e.made is not None or e.op in {"destroy", "abort"}]


class Property(Protocol):
    """Something that an implementation of a profile must always do.

    requirements: the ids that it shows, each with the coverage classes that it must have drawn to show it.
    steered: whether the floors of the coverage classes hold for what it draws.
    traced: whether it judges the trace, so that everything has to go through the suite's communicators.
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
        """Draw and judge this many scripts under the seed `number`; Finding or Halt when one fails."""

    def judge(self, bench: Bench, script: Script, /) -> object:
        """Play one script; Finding when it fails."""


@dataclass(frozen=True)
class Drawn:
    """A property of the scripts that a strategy draws: `judge` plays one on a bench, and reports there what is wrong."""

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
        @limits(examples)
        @given(self.draws(bench.space, wanted))
        def test(script: Script) -> None:
            self.judge(bench, script)

        test()


def limits(examples: int, **more: Any) -> settings:
    """hypothesis within a run of the suite: nothing is read from or left on disk, and nothing is timed."""
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
    """Search in rounds, then end what was kept; see `Bench.leave`."""
    try:
        play_rounds(prop, bench, number, rounds, examples)
        bench.leave()
    except Finding as finding:
        return finding
    except Halt as halt:
        return halt.finding
    except Flaky:  # it failed once; state outside the groups of the script must have had a part in it
        if bench.found is None:
            raise
        found = after_past(bench.found)
        found.again = False
        return found
    return None


def play_rounds(prop: Property, bench: Bench, number: int, rounds: int, examples: int) -> None:
    """Each round of a steered property aims at the coverage classes that lag after those before it."""
    for place in range(rounds):
        wanted = bench.coverage.lagging(MARGIN, prop.profile)[:AIMS] if prop.steered and place else ()
        prop.search(bench, number * rounds + place, examples, wanted)


def after_past(found: Finding) -> Finding:
    """A finding that cannot be had by itself: with what was played before it on the same groups."""
    finding = Finding((*found.past, *found.script), found.verdict, found.faults)
    finding.advisory = found.advisory
    return finding


def world_size(script: Script) -> int:
    return next(step.world_size for step in script if isinstance(step, Case | Batch | Flow))


def open_groups(script: Sequence[Step]) -> list[int]:
    """The groups that are alive after the script, in order of creation."""
    groups: dict[int, None] = {}
    for step in script:
        if isinstance(step, Destroy):
            groups.pop(step.group, None)
        else:
            groups |= dict.fromkeys(step.groups if isinstance(step, Flow) else (step.group,))
    return list(groups)
