"""Sessions of the simulated world: what it hands out, how it fails, and that it fails the same way again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from reshard_conformance import registry
from reshard_conformance.case.files import Case, CaseError, Clear, Destroy, Fault, Side
from reshard_conformance.contract import Claims, Group, Level, Profile
from reshard_conformance.judge.outcomes import Outcome
from reshard_conformance.worlds.sim import SimWorld
from reshard_golden import reshard

CASE = Case(3, (7, 2), "int16", Side((0, 1, 2), ("S(0)",), "sliced"), Side((2, 0), ("S(1)",), "transposed"))


class Golden:
    """Golden, with something done before its call and in a clear."""

    name = "golden and more"
    version = "0"
    claims = Claims(Level.L3, frozenset({Profile.CORE}))

    def __init__(
        self, first: Callable[[Any], None] = lambda group: None, clear: Callable[[Any], None] = lambda group: None
    ) -> None:
        self.first, self.clear = first, clear

    def reshard(self, *arguments: Any) -> None:
        self.first(arguments[6])
        reshard(*arguments)

    def clear_caches(self, group: Group) -> None:
        self.clear(group)

    def error_kind(self, exception: BaseException) -> str | None:
        return "agreement" if isinstance(exception, KeyError) else None


def row(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def play(world: SimWorld, first: Callable[[Any], None]) -> Outcome:
    with world.open(3, Golden(first)) as session:
        return session.play(CASE)


def test_the_transport_follows_the_protocol(sim: SimWorld, plugins: str) -> None:
    with sim.open(5, "strange:probe") as session:
        outcome = session.play(Case(5, (7, 2), "int16", CASE.src, CASE.dst))
    assert outcome.faults == ()
    assert {"split", "send", "recv", "all_gather", "exchange"} <= {event.op for event in outcome.reports[0].events}


def test_a_deadlock_says_what_each_rank_waits_for(sim: SimWorld) -> None:
    def first(group: Any) -> None:
        if group.rank == 0:
            group.communicator.recv(row(1, 2), 2)
        else:
            group.communicator.exchange(b"four")

    outcome = play(sim, first)
    assert outcome.verdict == "fail"
    assert len(outcome.faults) == 1
    assert outcome.faults[0] == (
        "ranks 0, 1, 2: raised SimError: deadlock: rank 0 waits for recv of 2 bytes from rank 2 (communicator 0), "
        "rank 1 waits for exchange of 4 bytes (communicator 0), rank 2 waits for exchange of 4 bytes (communicator 0)"
    )


def test_a_rank_that_raises_is_named_first_and_frees_the_others(sim: SimWorld) -> None:
    def first(group: Any) -> None:
        if group.rank == 2:
            raise ValueError("no more")

    outcome = play(sim, first)
    assert outcome.faults[0] == "rank 2: raised ValueError: no more"
    assert "ranks 0, 1: raised SimError: rank 2 failed (ValueError: no more): rank 0 waits for" in outcome.faults[1]
    assert "in first" in outcome.reports[2].details


def test_a_rank_that_returns_early_is_told_from_those_that_wait(sim: SimWorld) -> None:
    case = Case(3, (0,), "int8", Side((0,), ("R",)), Side((0,), ("R",)))

    def first(group: Any) -> None:
        if group.rank < 2:
            group.communicator.exchange(b"")

    with sim.open(3, Golden(first)) as session:
        assert "rank 2 has returned" in session.play(case).faults[0]


@pytest.mark.requirement("RS-CACHE-2")
def test_a_split_that_one_rank_leaves_out_is_found(sim: SimWorld) -> None:
    def first(group: Any) -> None:
        if group.rank != 1:
            group.communicator.split(0, 0)

    outcome = play(sim, first)
    assert outcome.verdict == "fail"
    assert "collective call 0 differs: rank 0 calls split, but rank 1 calls broadcast" in outcome.faults[0]


def test_a_child_is_traced_and_may_be_left(sim: SimWorld) -> None:
    def first(group: Any) -> None:
        child = group.communicator.split(group.rank % 2, 0)
        child.broadcast(row(1), 0)
        child.finalize()
        child.destroy()

    outcome = play(sim, first)
    assert outcome.faults == ()
    assert [event.communicator for event in outcome.reports[1].events[:4]] == ["0", "0/0.1", "0/0.1", "0/0.1"]


def test_a_rank_that_never_ends_is_a_hang_and_the_world_goes_on() -> None:
    def first(group: Any) -> None:
        while group.rank == 1:
            pass

    world = SimWorld(registry.load, limit=0.2)
    with world.open(3, Golden(first)) as session:
        outcome = session.play(CASE)
    with world.open(3, "golden") as session:
        after = session.play(CASE)
    world.close()
    assert outcome.verdict == "hang"
    assert "no end within 0.2 s: rank 0 waits for broadcast" in outcome.faults[0]
    assert after.verdict == "pass"


def test_every_step_of_a_run_is_the_same_again(sim: SimWorld) -> None:
    def run() -> list[Outcome]:
        with sim.open(3, registry.load("golden")) as session:
            return [session.play(step) for step in (CASE, Clear(), CASE)]

    assert run() == run()


def test_a_failure_leaves_nothing_behind(sim: SimWorld) -> None:
    seen: set[Any] = set()

    def first(group: Any) -> None:
        if group.rank == 0 and not seen:
            group.communicator.exchange(b"")
        seen.add(group)

    with sim.open(3, Golden(first)) as session:
        verdicts = [session.play(step).verdict for step in (CASE, CASE, CASE)]
    assert verdicts == ["fail", "pass", "pass"]


def test_groups_go_by_number_and_a_destroyed_one_comes_anew(sim: SimWorld) -> None:
    seen: list[weakref.ref[Any]] = []

    def first(group: Any) -> None:
        if group.rank == 0:
            seen.append(weakref.ref(group))

    other = Case(3, (2,), "int8", Side((0,), ("R",)), Side((1,), ("R",)), group=1)
    with sim.open(3, Golden(first)) as session:
        outcomes = [session.play(step) for step in (CASE, other, CASE, Destroy(1), other, CASE)]
        groups = [ref() for ref in seen]
    assert [outcome.verdict for outcome in outcomes] == ["pass"] * 6
    assert groups[0] is groups[2] is groups[4]
    assert groups[1] is None  # nothing keeps a destroyed group
    assert groups[3] is not None
    assert [outcome.reports[0].events[0].communicator for outcome in outcomes if outcome.reports[0].events] == [
        "0", "1", "0", "2", "0",
    ]  # fmt: skip


def test_a_clear_reaches_the_groups_that_it_names(sim: SimWorld) -> None:
    cleared: list[tuple[int, Any]] = []
    other = Case(3, (2,), "int8", Side((0,), ("R",)), Side((1,), ("R",)), group=1)
    with sim.open(3, Golden(clear=lambda group: cleared.append((group.rank, group)))) as session:
        session.play(CASE)
        session.play(other)
        session.play(Clear(group=1))
        assert [rank for rank, _ in cleared] == [0, 1, 2]
        one = dict(cleared)
        cleared.clear()
        session.play(Clear(all_groups=True))
    assert [rank for rank, _ in cleared] == [0, 0, 1, 1, 2, 2]
    assert all(cleared[2 * rank + 1][1] is one[rank] for rank in range(3))  # in order of creation


@pytest.mark.requirement("RS-CACHE-10")
def test_a_clear_by_some_ranks_runs_into_the_next_step(sim: SimWorld) -> None:
    def clear(group: Any) -> None:
        if group.communicator.exchange(b"clear").count(b"clear") != 3:
            raise KeyError("another call")

    def first(group: Any) -> None:
        if b"clear" in group.communicator.exchange(b"reshard"):
            raise KeyError("another call")

    refused = Case(3, (2, 2), "int8", CASE.src, CASE.dst, "error:agreement")
    with sim.open(3, Golden(first, clear)) as session:
        steps = (CASE, Clear((0, 1)), refused, Clear(), CASE)
        assert [session.play(step).verdict for step in steps] == ["pass"] * 5


def test_a_clear_that_fails_is_a_failure(sim: SimWorld) -> None:
    def clear(group: Any) -> None:
        raise KeyError(group.rank)

    with sim.open(2, Golden(clear=clear)) as session:
        assert session.play(Clear()).faults == ("rank 0: raised KeyError: 0", "rank 1: raised KeyError: 1")


def test_groups_can_be_told_apart_and_held_weakly(sim: SimWorld) -> None:
    seen: set[Any] = set()
    with sim.open(3, Golden(seen.add)) as session:
        session.play(CASE)
    assert len(seen) == 3
    assert all(weakref.ref(group)() is group for group in seen)
    assert {(group.rank, group.size, group.traced) for group in seen} == {(rank, 3, True) for rank in range(3)}


@pytest.mark.parametrize(
    ("step", "field"),
    [
        (Case(2, (2,), "int8", Side((0,), ("R",)), Side((1,), ("R",))), "world_size"),
        (Case(3, (2,), "int8", Side((0, 3), ("R",)), Side((1,), ("R",))), "expect"),
        (Case(3, (2,), "int8", Side((0,), ("R",)), Side((1,), ("S(1)",))), "expect"),
        (Clear((3,)), "ranks"),
        (
            Case(3, (2,), "int8", CASE.src, CASE.dst, "error:aliasing", fault=Fault("src", (1,), "alias")),
            "fault.ranks",
        ),
    ],
)
def test_a_step_that_cannot_be_played_is_refused(sim: SimWorld, step: Case | Clear, field: str) -> None:
    with sim.open(3, "golden") as session, pytest.raises(CaseError, match=f"field '{field}'"):
        session.play(step)


@pytest.mark.parametrize("size", [0, 65])
def test_a_session_has_a_size(sim: SimWorld, size: int) -> None:
    with pytest.raises(ValueError, match="1 to 64 ranks"):
        sim.open(size, "golden")
