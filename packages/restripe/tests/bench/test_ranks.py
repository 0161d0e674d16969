"""Who is checked, who is left out and why, and in which order the others are timed."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from restripe.bench.calls import Call, Contender, Ready, Unfit, nothing
from restripe.bench.case import Case
from restripe.bench.clock import Alone, Burst, Clock
from restripe.bench.ranks import WARM, Seat, play, why

from .conftest import Group, Worlds, gather

CPU = torch.device("cpu")
ROW = replace(gather(2, [("a", (8, 4))]), repeats=6)


class Table(Seat):
    """A seat among simulated ranks, which tell each other through their communicator."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.communicator.size, CPU, HashStore(), Path())
        self._communicator = group.communicator
        self.alarms = 0

    def tell(self, value: Any) -> list[Any]:
        return [pickle.loads(record) for record in self._communicator.exchange(pickle.dumps(value))]  # noqa: S301

    def alarm(self, patience: float | None = None) -> None:
        assert patience is None or patience > 0
        self.alarms += 1


@dataclass
class Player:
    """A contender that knows the truth, and writes as many of its bytes as it likes."""

    name: str
    missing: int = 0
    refuses: frozenset[int] = frozenset()
    lands: bool = False

    def ready(self, case: Case) -> Ready:
        if case.rank in self.refuses:
            raise Unfit(f"not on rank {case.rank}")

        def write() -> None:
            ((name, tensor),) = case.destinations.items()
            truth = case.truth(name).view(-1)
            tensor.view(-1)[self.missing :] = truth[self.missing :]

        return Ready(nothing, write) if self.lands else Ready(write)


class Watch(Clock):
    """Tells times that follow from rank and place in line."""

    def __init__(self, rank: int) -> None:
        self.rank, self.log = rank, list[Call]()
        self.leads: list[float] = []

    def alone(self, call: Call) -> Alone:
        self.log.append(call)
        return Alone((1 + self.rank) * 1e-6, (3 - self.rank) * 1e-6)

    def burst(self, call: Call, count: int, lead: float) -> Burst:
        assert count == ROW.burst
        assert call is self.log[-1]
        self.leads.append(lead)
        return Burst((9 - self.rank) * 1e-6, (5 + self.rank) * 1e-6)


@dataclass
class Played:
    result: Any
    watch: Watch
    seat: Table = field(repr=False)


def played(worlds: Worlds, *contenders: Contender) -> list[Played]:
    def body(group: Group) -> Played:
        watch, seat = Watch(group.rank), Table(group)
        return Played(play(ROW, contenders, watch, seat), watch, seat)

    return worlds(2).run(body)


@pytest.mark.usefixtures("gpu")
def test_the_slowest_rank_s_times_come_to_all(worlds: Worlds) -> None:
    for one in played(worlds, Player("right")):
        timing = one.result.timings["right"]
        assert timing.host_us == pytest.approx([2] * ROW.repeats)
        assert timing.wall_us == pytest.approx([3] * ROW.repeats)
        assert timing.loop_us == pytest.approx([9] * ROW.repeats)
        assert timing.gpu_us == pytest.approx([6] * ROW.repeats)
        assert not one.result.unfit


@pytest.mark.usefixtures("gpu")
def test_wrong_bytes_are_counted_over_all_ranks(worlds: Worlds) -> None:
    for one in played(worlds, Player("right"), Player("wrong", missing=3), Player("lands", lands=True)):
        assert {name: timing.wrong_bytes for name, timing in one.result.timings.items()} == {
            "right": 0,
            "wrong": 2 * 3 * 2,
            "lands": 0,
        }


@pytest.mark.usefixtures("gpu")
def test_memory_is_the_most_that_any_rank_takes(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", iter([1000, 2000]).__next__)
    assert [one.result.timings["right"].extra_bytes for one in played(worlds, Player("right"))] == [2000, 2000]


@pytest.mark.usefixtures("gpu")
def test_who_refuses_on_one_rank_is_left_out_on_all(worlds: Worlds) -> None:
    for one in played(worlds, Player("right"), Player("half", refuses=frozenset({1})), Player("last")):
        assert one.result.unfit == {"half": "not on rank 1"}
        assert list(one.result.timings) == ["right", "last"]


@pytest.mark.usefixtures("gpu")
def test_with_nobody_left_there_are_no_times(worlds: Worlds) -> None:
    for one in played(worlds, Player("none", refuses=frozenset({0, 1}))):
        assert not one.result.timings
        assert not one.watch.log


@pytest.mark.usefixtures("gpu")
def test_contenders_take_turns_in_an_order_that_changes_and_is_the_same_on_all_ranks(worlds: Worlds) -> None:
    first, second = (rounds(one.watch.log[3 * WARM :]) for one in played(worlds, *map(Player, "abc")))
    assert first == second
    assert len(first) == ROW.repeats
    assert all(sorted(turn) == [0, 1, 2] for turn in first)
    assert len({tuple(turn) for turn in first}) > 2


def rounds(log: list[Call]) -> list[list[int]]:
    """The calls of each repeat, numbered by who they are."""
    numbers: dict[Call, int] = {}
    found = [numbers.setdefault(call, len(numbers)) for call in log]
    return [found[start : start + 3] for start in range(0, len(found), 3)]


@pytest.mark.usefixtures("gpu")
def test_the_gpu_waits_longer_than_the_host_takes_for_a_burst(worlds: Worlds) -> None:
    for one in played(worlds, Player("right")):
        assert min(one.watch.leads) > ROW.burst * (1 + one.watch.rank) * 1e-6


@pytest.mark.usefixtures("gpu")
def test_an_alarm_is_set_for_every_check_and_for_the_times(worlds: Worlds) -> None:
    assert [one.seat.alarms for one in played(worlds, *map(Player, "abc"))] == [4, 4]


def test_why() -> None:
    assert why(Unfit("two\nlines")) == "two"
    assert why(Unfit("")) == "Unfit"
    assert why(ValueError("bad")) == "ValueError: bad"


def test_seats_tell_each_other_through_the_store() -> None:
    store = HashStore()
    one, other = (Seat(rank, 2, CPU, store, Path()) for rank in range(2))
    for number in (1, 2):  # what one rank has said before the other asks
        store.set(f"told/{number}/0", pickle.dumps(number))  # type: ignore[arg-type]
    assert [other.tell("a"), other.tell("b")] == [[1, "a"], [2, "b"]]
    assert one.tell(1) == [1, "a"]
