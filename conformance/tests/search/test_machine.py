"""The stateful machine: the steps of its scripts, and its findings."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from reshard_conformance.case.files import Case, Clear, Destroy, Side, Step
from reshard_conformance.generate.cases import Space
from reshard_conformance.implementations.golden import Golden
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.search.bench import Bench, Finding, Script
from reshard_conformance.search.machine import judge_history, run_machine
from reshard_conformance.worlds.sim import SimWorld

CASE = Case(3, (4,), "int8", Side((0,), ("R",)), Side((1, 2), ("R",)))


class NeverReleasing(Plain):
    """The plain implementation, but a clear releases nothing."""

    def release(self, state: Any) -> None:
        pass


class Overcounting(Plain):
    """The plain implementation, but it counts one communicator too many."""

    def live_communicators(self, group: Any) -> int:
        return super().live_communicators(group) + 1


def written_scripts(world: SimWorld, number: int, monkeypatch: pytest.MonkeyPatch) -> list[Script]:
    scripts: list[Script] = []
    monkeypatch.setattr("reshard_conformance.search.machine.judge_history", lambda _, script: scripts.append(script))
    with closing(Bench(world, Golden(), Space())) as bench:
        run_machine(bench, number, 80)
    return scripts


def step_kind(step: Step) -> str:
    if isinstance(step, Case):
        return f"{type(step).__name__} {step.expect.split(':')[0]}"
    return type(step).__name__ + (" all" if isinstance(step, Clear) and step.all_groups else "")


def test_scripts_mix_every_kind_of_step(sim: SimWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = written_scripts(sim, 1, monkeypatch)
    steps = Counter(step_kind(step) for script in scripts for step in script)
    assert set(steps) == {"Case equal", "Case error", "Clear", "Clear all", "Destroy"}
    assert {step.group for script in scripts for step in script if isinstance(step, Case)} == {0, 1, 2}
    assert max(len(script) for script in scripts) > 6
    repeated = [
        step for script in scripts for step, times in Counter(script).items() if isinstance(step, Case) and times > 1
    ]
    assert repeated


def test_one_seed_writes_the_same_scripts(sim: SimWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    assert written_scripts(sim, 3, monkeypatch) == written_scripts(sim, 3, monkeypatch)
    assert written_scripts(sim, 3, monkeypatch) != written_scripts(sim, 4, monkeypatch)


def test_a_history_without_fault_passes(sim: SimWorld) -> None:
    with closing(Bench(sim, Plain(), Space())) as bench:
        outcomes = judge_history(bench, (CASE, CASE, Clear(), CASE, Destroy(0), CASE))
        assert len(outcomes) == 7
        assert bench.scripts == 1


def test_a_communicator_that_stays_alive_is_found_at_the_end(sim: SimWorld) -> None:
    with closing(Bench(sim, NeverReleasing(), Space())) as bench, pytest.raises(Finding, match="is still alive"):
        judge_history(bench, (CASE,))


def test_communicators_counted_after_a_clear_are_found(sim: SimWorld) -> None:
    with closing(Bench(sim, Overcounting(), Space())) as bench, pytest.raises(Finding) as caught:
        judge_history(bench, (CASE, Clear(), CASE))
    assert caught.value.script == (CASE, Clear())
    assert "rank 0: 1 communicators are alive after the group was cleared" in caught.value.faults


def test_the_machine_finds_and_shrinks(sim: SimWorld) -> None:
    with closing(Bench(sim, NeverReleasing(), Space())) as bench:
        with pytest.raises(Finding):
            run_machine(bench, 1, 60)
        assert bench.finding is not None
        assert len(bench.finding.script) <= 3
