"""Searching, counting and shrinking, with implementations that have one known fault each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from reshard_conformance import registry
from reshard_conformance.case.files import Case, Clear, Destroy, Side, StreamScenario
from reshard_conformance.contract import Group, Level, Profile
from reshard_conformance.generate.cases import Space, scripts
from reshard_conformance.implementations.golden import Golden
from reshard_conformance.judge.outcomes import Outcome
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.search.bench import (
    Bench,
    Drawn,
    Finding,
    Script,
    SearchHalted,
    open_groups,
    search,
    world_size,
)
from reshard_conformance.worlds.sim import SimWorld

CASE = Case(2, (3,), "int32", Side((0, 1), ("S(0)",)), Side((1, 0), ("R",)))
OTHER = Case(2, (4,), "int32", Side((0, 1), ("S(0)",)), Side((1, 0), ("R",)), group=1)
PLAYS = Drawn("plays", Profile.CORE, {"RS-EXACT-1": ()}, scripts, Bench.play, steered=True)


class SkippingOdd(Golden):
    """Golden, but it does nothing for a tensor with an odd dim."""

    def reshard(self, *arguments: Any, **options: Any) -> None:
        tensor = arguments[3] if arguments[0] is None else arguments[0]
        if not any(size % 2 for size in tensor.shape):
            super().reshard(*arguments, **options)


class FailingTenth(Golden):
    """Golden, but its tenth call fails."""

    def __init__(self) -> None:
        self.calls = 0

    def reshard(self, *arguments: Any, **options: Any) -> None:
        self.calls += 1
        if self.calls == 10:
            raise RuntimeError("not today")
        super().reshard(*arguments, **options)


@pytest.fixture
def bench(sim: SimWorld) -> Iterator[Bench]:
    with closing(Bench(sim, Golden(), Space())) as golden_bench:
        yield golden_bench


def test_nothing_is_found_where_nothing_is_wrong(bench: Bench) -> None:
    assert search(PLAYS, bench, 3, 2, 20) is None
    assert bench.scripts == 40
    assert bench.coverage.total >= 40
    assert 20 < len(bench.layouts) <= bench.coverage.total


def test_one_seed_plays_the_same_layouts_and_another_does_not(sim: SimWorld) -> None:
    layouts = []
    for number in (1, 1, 2):
        with closing(Bench(sim, Golden(), Space())) as bench:
            search(PLAYS, bench, number, 2, 20)
            layouts.append(bench.layouts)
    assert layouts[0] == layouts[1] != layouts[2]


def test_a_finding_is_small_and_fails_again(sim: SimWorld) -> None:
    with closing(Bench(sim, SkippingOdd(), Space())) as bench:
        finding = search(PLAYS, bench, 1, 1, 60)
        assert finding is not None
        assert finding.verdict == "fail"
        assert finding.repeats
        (case,) = finding.script
        assert isinstance(case, Case)
        assert [size % 2 for size in case.shape] == [1]
        assert case.world_size <= 2
        with pytest.raises(Finding):
            PLAYS.judge(bench, finding.script)


def test_scripts_played_to_shrink_are_not_counted(sim: SimWorld) -> None:
    with closing(Bench(sim, SkippingOdd(), Space())) as bench:
        search(PLAYS, bench, 1, 1, 60)
        assert bench.scripts < 60
        counted = bench.scripts, len(bench.layouts), bench.coverage.total
        bench.play((OTHER,))
        assert (bench.scripts, len(bench.layouts), bench.coverage.total) == counted


def test_shrinking_ends_after_so_many_tries(sim: SimWorld) -> None:
    with closing(Bench(sim, SkippingOdd(), Space(), max_shrinks=3)) as bench:
        finding = search(PLAYS, bench, 1, 1, 60)
        assert finding is not None
        assert bench.shrinks == 4


def test_a_failure_that_does_not_repeat_is_kept_and_marked(sim: SimWorld) -> None:
    with closing(Bench(sim, FailingTenth(), Space())) as bench:
        finding = search(PLAYS, bench, 1, 1, 60)
    assert finding is not None
    assert not finding.repeats
    assert "not today" in finding.faults[0]


def test_make_implementation_gives_each_script_its_own(sim: SimWorld) -> None:
    with closing(Bench(sim, FailingTenth(), Space(), make_implementation=FailingTenth)) as bench:
        for _ in range(8):
            bench.play((CASE,))  # two calls each: ten would fail


def test_groups_are_destroyed_after_each_script(bench: Bench) -> None:
    outcomes = bench.play((CASE, OTHER, Clear(all_groups=True), Destroy(1), OTHER))
    assert len(outcomes) == 7
    assert all(outcome.verdict == "pass" for outcome in outcomes)


@pytest.mark.requirement("RS-CACHE-6")
def test_kept_groups_serve_the_scripts_after_them(sim: SimWorld) -> None:
    with closing(Bench(sim, Plain(), Space(), keep_groups=True)) as bench:
        assert [splits(bench.play((CASE,))) for _ in range(2)] == [1, 0]
        bench.play((OTHER,))
        bench.end_groups()
        assert splits(bench.play((CASE,))) == 1


@pytest.mark.requirement("RS-CACHE-7")
@pytest.mark.parametrize("scripts", [((CASE,),), ((CASE, OTHER), (CASE,))])
def test_communicators_left_of_kept_groups_are_found_at_their_end(sim: SimWorld, scripts: tuple[Script, ...]) -> None:
    with closing(Bench(sim, KeepingGroupZero(), Space(), keep_groups=True)) as bench:
        for script in scripts:
            bench.play(script)
        with pytest.raises(Finding, match="1 communicators are alive after the group was cleared") as found:
            bench.end_groups()
    assert found.value.script == (*(step for script in scripts for step in script), Destroy(0))


def test_a_failure_that_needs_earlier_scripts_is_reported_with_them(sim: SimWorld) -> None:
    with closing(Bench(sim, FailingTenth(), Space(), keep_groups=True)) as bench:
        finding = search(PLAYS, bench, 1, 1, 60)
    assert finding is not None
    assert not finding.repeats
    alone = bench.finding.script if bench.finding is not None else ()
    assert len(finding.script) > len(alone) > 0
    assert finding.script[-len(alone) :] == alone


class KeepingGroupZero(Plain):
    """The plain implementation, but a clear of group 0 releases nothing."""

    def clear_caches(self, group: Group) -> None:
        if group.communicator.name != "0":  # type: ignore[attr-defined]  # a tracer's
            super().clear_caches(group)


def splits(outcomes: Sequence[Outcome]) -> int:
    """Return the number of splits that rank 0 made."""
    return sum(event.op == "split" for outcome in outcomes for event in outcome.reports[0].events)


class HangingSession:
    def play(self, step: object, **_: object) -> Outcome:
        return Outcome("hang", ("rank 0 waits",))

    def close(self) -> None:
        pass


class HangingWorld:
    max_size = 8

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, *_: object, **__: object) -> HangingSession:
        return HangingSession()


@pytest.mark.parametrize(("name", "shrunk"), [("gloo", False), ("sim", True)])
def test_a_hang_is_shrunk_only_in_sim(name: str, shrunk: bool) -> None:
    bench = Bench(HangingWorld(name), "golden", Space())  # type: ignore[arg-type]  # a world that only hangs
    finding = search(PLAYS, bench, 1, 1, 20)
    assert finding is not None
    assert finding.verdict == "hang"
    assert (bench.shrinks > 0) == shrunk


def test_a_hang_on_kept_groups_is_reported_with_earlier_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(HangingWorld("nccl"), "golden", Space(), keep_groups=True)  # type: ignore[arg-type]  # as above
    with monkeypatch.context() as patch:
        patch.setattr(HangingSession, "play", lambda *_, **__: Outcome("pass"))
        bench.play((CASE,))
    with pytest.raises(SearchHalted) as halt:
        bench.play((OTHER,))
    assert halt.value.finding.script == (CASE, OTHER)
    assert halt.value.finding.verdict == "hang"


def test_a_halted_search_is_no_exception_that_hypothesis_catches() -> None:
    assert not issubclass(SearchHalted, Exception)


def test_the_groups_that_a_script_leaves_open() -> None:
    assert open_groups((CASE, OTHER, Destroy(0))) == [1]
    assert open_groups((OTHER, CASE)) == [1, 0]
    assert open_groups((CASE, Destroy(0, clear=False), CASE)) == [0]
    assert open_groups((StreamScenario((OTHER, CASE), (1, 2), "given"), Destroy(1))) == [0]
    assert world_size((Clear(), OTHER)) == 2


def test_hooks_are_looked_up_on_the_implementation_itself(sim: SimWorld) -> None:
    golden = Golden()
    assert Bench(sim, golden, Space()).loaded is golden
    assert Bench(sim, "golden", Space(level=Level.L3)).loaded is registry.load("golden")
