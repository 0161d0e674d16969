"""Searching, counting and shrinking, over implementations that fail in known ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from reshard_conformance import registry
from reshard_conformance.cases import Case, Clear, Destroy, Flow, Side
from reshard_conformance.contract import Group, Level, Profile
from reshard_conformance.generator import Space, scripts
from reshard_conformance.implementations.golden import Golden
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.playing import Outcome
from reshard_conformance.search import Bench, Drawn, Finding, Halt, Script, open_groups, search, world_size
from reshard_conformance.worlds.sim import SimWorld

CASE = Case(2, (3,), "int32", Side((0, 1), ("S(0)",)), Side((1, 0), ("R",)))
OTHER = Case(2, (4,), "int32", Side((0, 1), ("S(0)",)), Side((1, 0), ("R",)), group=1)
PLAYS = Drawn("plays", Profile.CORE, {"RS-EXACT-1": ()}, scripts, Bench.play, steered=True)


class Uneven(Golden):
    """Golden, but it does nothing to a dim that does not divide by 2."""

    def reshard(self, *arguments: Any, **options: Any) -> None:
        tensor = arguments[3] if arguments[0] is None else arguments[0]
        if not any(size % 2 for size in tensor.shape):
            super().reshard(*arguments, **options)


class Moody(Golden):
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
    with closing(Bench(sim, Golden(), Space())) as found:
        yield found


def test_nothing_is_found_where_nothing_is_wrong(bench: Bench) -> None:
    assert search(PLAYS, bench, 3, 2, 20) is None
    assert bench.scripts == 40
    assert bench.coverage.total >= 40
    assert 20 < len(bench.layouts) <= bench.coverage.total


def test_one_seed_plays_the_same_layouts_and_another_does_not(sim: SimWorld) -> None:
    found = []
    for number in (1, 1, 2):
        with closing(Bench(sim, Golden(), Space())) as bench:
            search(PLAYS, bench, number, 2, 20)
            found.append(bench.layouts)
    assert found[0] == found[1] != found[2]


def test_a_finding_is_small_and_fails_again(sim: SimWorld) -> None:
    with closing(Bench(sim, Uneven(), Space())) as bench:
        finding = search(PLAYS, bench, 1, 1, 60)
        assert finding is not None
        assert finding.verdict == "fail"
        assert finding.again
        (case,) = finding.script
        assert isinstance(case, Case)
        assert [size % 2 for size in case.shape] == [1]
        assert case.world_size <= 2
        with pytest.raises(Finding):
            PLAYS.judge(bench, finding.script)


def test_what_is_played_to_shrink_is_not_counted(sim: SimWorld) -> None:
    with closing(Bench(sim, Uneven(), Space())) as bench:
        search(PLAYS, bench, 1, 1, 60)
        assert bench.scripts < 60
        counted = bench.scripts, len(bench.layouts), bench.coverage.total
        bench.play((OTHER,))
        assert (bench.scripts, len(bench.layouts), bench.coverage.total) == counted


def test_shrinking_ends_after_so_many_tries(sim: SimWorld) -> None:
    with closing(Bench(sim, Uneven(), Space(), most=3)) as bench:
        finding = search(PLAYS, bench, 1, 1, 60)
        assert finding is not None
        assert bench.shrinks == 4


def test_a_failure_that_does_not_come_again_is_kept_and_marked(sim: SimWorld) -> None:
    with closing(Bench(sim, Moody(), Space())) as bench:
        finding = search(PLAYS, bench, 1, 1, 60)
    assert finding is not None
    assert not finding.again
    assert "not today" in finding.faults[0]


def test_a_maker_gives_each_script_an_implementation_of_its_own(sim: SimWorld) -> None:
    with closing(Bench(sim, Moody(), Space(), renew=Moody)) as bench:
        for _ in range(8):
            bench.play((CASE,))  # two calls each: ten would fail


def test_groups_are_destroyed_after_each_script(bench: Bench) -> None:
    outcomes = bench.play((CASE, OTHER, Clear(all_groups=True), Destroy(1), OTHER))
    assert len(outcomes) == 7
    assert all(outcome.verdict == "pass" for outcome in outcomes)


@pytest.mark.requirement("RS-CACHE-6")
def test_kept_groups_serve_the_scripts_after_them(sim: SimWorld) -> None:
    with closing(Bench(sim, Plain(), Space(), keep=True)) as bench:
        first, second = (bench.play((CASE,)) for _ in range(2))
        assert [splits(outcomes) for outcomes in (first, second)] == [1, 0]
        bench.play((OTHER,))
        bench.leave()
        assert splits(bench.play((CASE,))) == 1


@pytest.mark.requirement("RS-CACHE-7")
@pytest.mark.parametrize("scripts", [((CASE,),), ((CASE, OTHER), (CASE,))])
def test_what_is_left_of_kept_groups_is_found_at_their_end(sim: SimWorld, scripts: tuple[Script, ...]) -> None:
    with closing(Bench(sim, Hoarder(), Space(), keep=True)) as bench:
        for script in scripts:
            bench.play(script)
        with pytest.raises(Finding, match="1 communicators are alive after the group was cleared") as found:
            bench.leave()
    assert found.value.script == (*(step for script in scripts for step in script), Destroy(0))


def test_a_failure_that_needs_what_was_played_before_is_told_with_it(sim: SimWorld) -> None:
    with closing(Bench(sim, Moody(), Space(), keep=True)) as bench:
        finding = search(PLAYS, bench, 1, 1, 60)
    assert finding is not None
    assert not finding.again
    alone = bench.found.script if bench.found is not None else ()
    assert len(finding.script) > len(alone) > 0
    assert finding.script[-len(alone) :] == alone


class Hoarder(Plain):
    """Clears nothing of group 0."""

    def clear_caches(self, group: Group) -> None:
        if group.communicator.name != "0":  # type: ignore[attr-defined]  # a tracer's
            super().clear_caches(group)


def splits(outcomes: Sequence[Outcome]) -> int:
    """How many splits rank 0 made."""
    return sum(event.op == "split" for outcome in outcomes for event in outcome.reports[0].events)


class StuckSession:
    def play(self, step: object, **_: object) -> Outcome:
        return Outcome("hang", ("rank 0 waits",))

    def close(self) -> None:
        pass


class StuckWorld:
    max_size = 8

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, *_: object, **__: object) -> StuckSession:
        return StuckSession()


@pytest.mark.parametrize(("name", "shrunk"), [("gloo", False), ("sim", True)])
def test_a_hang_is_shrunk_only_where_it_is_seen_at_once(name: str, shrunk: bool) -> None:
    bench = Bench(StuckWorld(name), "golden", Space())  # type: ignore[arg-type]  # a world that only hangs
    finding = search(PLAYS, bench, 1, 1, 20)
    assert finding is not None
    assert finding.verdict == "hang"
    assert (bench.shrinks > 0) == shrunk


def test_a_hang_on_kept_groups_is_told_with_what_was_played_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(StuckWorld("nccl"), "golden", Space(), keep=True)  # type: ignore[arg-type]  # as above
    with monkeypatch.context() as patch:
        patch.setattr(StuckSession, "play", lambda *_, **__: Outcome("pass"))
        bench.play((CASE,))
    with pytest.raises(Halt) as halt:
        bench.play((OTHER,))
    assert halt.value.finding.script == (CASE, OTHER)
    assert halt.value.finding.verdict == "hang"


def test_a_halt_passes_everything_that_catches_exceptions() -> None:
    assert not issubclass(Halt, Exception)


def test_the_groups_that_a_script_leaves_open() -> None:
    assert open_groups((CASE, OTHER, Destroy(0))) == [1]
    assert open_groups((OTHER, CASE)) == [1, 0]
    assert open_groups((CASE, Destroy(0, clear=False), CASE)) == [0]
    assert open_groups((Flow((OTHER, CASE), (1, 2), "given"), Destroy(1))) == [0]
    assert world_size((Clear(), OTHER)) == 2


def test_hooks_are_looked_up_on_the_implementation_itself(sim: SimWorld) -> None:
    golden = Golden()
    assert Bench(sim, golden, Space()).loaded is golden
    assert Bench(sim, "golden", Space(level=Level.L3)).loaded is registry.load("golden")
