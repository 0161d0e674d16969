"""The suite is tested by implementations that are wrong on purpose: each is killed by what it breaks, and its case replays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from reshard_conformance.case.files import parse
from reshard_conformance.contract import Implementation, Level
from reshard_conformance.generate.cases import Space
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.mutants.sim_hunt import MUTANTS, hunt
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.run.plan import playable_properties, properties_shown_in
from reshard_conformance.search.bench import Bench, Finding
from reshard_conformance.verdict.requirements import requirements
from reshard_conformance.verdict.results import Failure
from reshard_conformance.worlds.sim import SimWorld

IDS = {entry.id: entry for entry in requirements()}


def judge(world: SimWorld, implementation: Implementation, failure: Failure) -> None:
    script = tuple(parse(line) for line in failure.script)
    with closing(Bench(world, implementation, Space())) as bench:
        PROPERTIES[failure.prop].judge(bench, script)


def subclasses(kind: type[Plain]) -> Iterator[type[Plain]]:
    for found in kind.__subclasses__():
        yield found
        yield from subclasses(found)


@pytest.mark.law
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed_by_what_it_breaks_with_a_case_that_replays(name: str, sim: SimWorld) -> None:
    kind = MUTANTS[name]
    kill = hunt(kind)
    assert kill.failure is not None
    assert kind.breaks in kill.shown_requirements
    assert kill.failure.again
    with pytest.raises(Finding):
        judge(sim, kind(), kill.failure)
    judge(sim, Plain(), kill.failure)


def test_there_are_enough_of_them_and_each_says_what_is_wrong_with_it() -> None:
    assert len(MUTANTS) >= 24
    for kind in MUTANTS.values():
        assert kind.breaks in IDS
        assert kind.__doc__
        assert not IDS[kind.breaks].planned
    assert len({kind.__doc__ for kind in MUTANTS.values()}) == len(MUTANTS)
    modules = {kind.__module__ for kind in MUTANTS.values()}
    assert set(MUTANTS.values()) == {kind for kind in subclasses(Plain) if kind.__module__ in modules}  # no name twice


def test_every_profile_of_the_cpu_has_a_mutant() -> None:
    broken = {IDS[kind.breaks].profile for kind in MUTANTS.values()}
    assert broken == Plain.claims.profiles


@pytest.mark.parametrize(
    "name",
    [prop.name for prop in properties_shown_in("sim", playable_properties(tuple(Plain.claims.profiles), Level.L3))],
)
def test_what_they_break_is_sound(name: str, sim: SimWorld) -> None:
    with closing(Bench(sim, Plain(), Space())) as bench:
        PROPERTIES[name].search(bench, 3, 30, ())
        assert bench.scripts
        assert bench.finding is None


def test_a_hunt_that_finds_nothing_says_how_much_it_played(monkeypatch: pytest.MonkeyPatch) -> None:
    few: dict[str, Any] = dict.fromkeys(PROPERTIES, (0, 0, 0)) | {"wrapped": (1, 1, 5)}
    monkeypatch.setattr("reshard_conformance.run.plan.AMOUNTS", {"sim": few})
    kill = hunt(Plain)
    assert (kill.failure, kill.scripts, kill.shown_requirements) == (None, 5, frozenset())
