"""Every contender is checked, those that refuse are left out with the reason, and the others are timed in turn."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gpu_bench.clock import Burst, Clock, SingleCall
from gpu_bench.moves import Call, Contender, PreparedMove, UnsupportedRowError, do_nothing
from gpu_bench.rows import ConsumerRow, RowTensors
from gpu_bench.timing import WARM_CALLS, RankContext, burst_calls, first_line, play_row
from restripe.bench.transfers import Row

from .conftest import Group, Worlds, gather

CPU = torch.device("cpu")
ROW = replace(gather(2, [("a", (8, 4))]), repeats=6)


class SimContext(RankContext):
    """The context of a simulated rank, which gathers through its communicator."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.communicator.size, CPU, HashStore(), Path())
        self._communicator = group.communicator
        self.deadlines = 0

    def all_gather(self, value: Any) -> list[Any]:
        return [pickle.loads(record) for record in self._communicator.exchange(pickle.dumps(value))]  # noqa: S301

    def set_deadline(self, seconds: float | None = None) -> None:
        assert seconds is None or seconds > 0
        self.deadlines += 1


@dataclass
class Player:
    """A contender that knows the expected values, and writes all of them but `missing`, in its first or in its last calls."""

    name: str
    missing: int = 0
    refusing_ranks: frozenset[int] = frozenset()
    in_finish: bool = False
    wrong_from: int = 0
    refreshes: list[int] = field(default_factory=list)  # by rank
    addresses: set[int] = field(default_factory=set)

    def prepare(self, tensors: RowTensors) -> PreparedMove:
        if tensors.rank in self.refusing_ranks:
            raise UnsupportedRowError(f"not on rank {tensors.rank}")
        calls = count()

        def refresh() -> None:
            self.refreshes.append(tensors.rank)

        def write() -> None:
            self.addresses.update(tensor.data_ptr() for tensor in tensors.destinations.values())
            ((name, tensor),) = tensors.destinations.items()
            start = self.missing if next(calls) >= self.wrong_from else 0
            tensor.view(-1)[start:] = tensors.expected(name).view(-1)[start:]

        return PreparedMove(do_nothing, write) if self.in_finish else PreparedMove(write, refresh=refresh)


class FakeClock(Clock):
    """A clock whose times follow from the rank."""

    def __init__(self, rank: int) -> None:
        self.rank, self.log = rank, list[Call]()
        self.leads: list[float] = []

    def time_single(self, call: Call) -> SingleCall:
        self.log.append(call)
        return SingleCall((1 + self.rank) * 1e-6, (3 - self.rank) * 1e-6)

    def time_refit(self, move: PreparedMove, *, pause: bool) -> SingleCall:
        assert not pause
        self.log.append(move.call)
        move.call()
        return SingleCall((1 + self.rank) * 1e-6, (3 - self.rank) * 1e-6)

    def time_burst(self, call: Call, count: int, lead: float) -> Burst:
        assert count == burst_calls(ROW)
        assert call is self.log[-1]
        self.leads.append(lead)
        return Burst((9 - self.rank) * 1e-6, (5 + self.rank) * 1e-6)


@dataclass
class Played:
    result: Any
    clock: FakeClock
    context: SimContext = field(repr=False)


def played(worlds: Worlds, *contenders: Contender, row: Row = ROW) -> list[Played]:
    def body(group: Group) -> Played:
        clock, context = FakeClock(group.rank), SimContext(group)
        return Played(play_row(row, contenders, clock, context), clock, context)

    return worlds(2).run(body)


@pytest.mark.usefixtures("gpu")
def test_the_slowest_rank_s_times_come_to_all(worlds: Worlds) -> None:
    for rank in played(worlds, Player("right")):
        timing = rank.result.timings["right"]
        assert timing.host_us == pytest.approx([2] * ROW.repeats)
        assert timing.wall_us == pytest.approx([3] * ROW.repeats)
        assert timing.loop_us == pytest.approx([9] * ROW.repeats)
        assert timing.gpu_us == pytest.approx([6] * ROW.repeats)
        assert not rank.result.not_run


def consumer_row(*, fresh: bool) -> ConsumerRow:
    return ConsumerRow(ROW.name, ROW.tensors, ROW.repeats, fresh=fresh)


@pytest.mark.usefixtures("gpu")
def test_a_consumer_s_refits_are_timed_alone(worlds: Worlds) -> None:
    for rank in played(worlds, Player("a"), Player("b"), row=consumer_row(fresh=False)):
        assert rank.result.times == ("host_us", "wall_us")
        assert (rank.result.tensors, rank.result.shared_gpu) == (1, False)
        for timing in rank.result.timings.values():
            assert timing.host_us == pytest.approx([2] * ROW.repeats)
            assert timing.wall_us == pytest.approx([3] * ROW.repeats)
        turns = rounds(rank.clock.log, 2)
        assert len(turns) == ROW.repeats
        assert all(sorted(turn) == [0, 1] for turn in turns)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("fresh", [False, True])
def test_fresh_tensors_are_elsewhere_in_every_refit(worlds: Worlds, *, fresh: bool) -> None:
    player = Player("writes", missing=0)
    for rank in played(worlds, player, row=consumer_row(fresh=fresh)):
        assert rank.result.timings["writes"].wrong_bytes == 0
    assert sorted(player.refreshes) == ([0] * (ROW.repeats + 1) + [1] * (ROW.repeats + 1)) * fresh
    assert (len(player.addresses) > 2) == fresh


@pytest.mark.usefixtures("gpu")
def test_wrong_bytes_are_counted_over_all_ranks(worlds: Worlds) -> None:
    for rank in played(worlds, Player("right"), Player("wrong", missing=3), Player("finish", in_finish=True)):
        assert {name: timing.wrong_bytes for name, timing in rank.result.timings.items()} == {
            "right": 0,
            "wrong": 2 * (2 * 3 * 2),
            "finish": 0,
        }


@pytest.mark.usefixtures("gpu")
def test_the_last_move_is_compared_too(worlds: Worlds) -> None:
    for rank in played(worlds, Player("tires", missing=1, wrong_from=2)):
        assert rank.result.timings["tires"].wrong_bytes == 2 * 2


@pytest.mark.usefixtures("gpu")
def test_memory_is_the_most_that_any_rank_takes(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", iter([1000, 2000]).__next__)
    assert [rank.result.timings["right"].extra_bytes for rank in played(worlds, Player("right"))] == [2000, 2000]


@pytest.mark.usefixtures("gpu")
def test_who_refuses_on_one_rank_is_left_out_on_all(worlds: Worlds) -> None:
    for rank in played(worlds, Player("right"), Player("half", refusing_ranks=frozenset({1})), Player("last")):
        assert rank.result.not_run == {"half": "not on rank 1"}
        assert list(rank.result.timings) == ["right", "last"]


@pytest.mark.usefixtures("gpu")
def test_with_nobody_left_there_are_no_times(worlds: Worlds) -> None:
    for rank in played(worlds, Player("none", refusing_ranks=frozenset({0, 1}))):
        assert not rank.result.timings
        assert not rank.clock.log


@pytest.mark.usefixtures("gpu")
def test_contenders_take_turns_in_an_order_that_changes_and_is_the_same_on_all_ranks(worlds: Worlds) -> None:
    order, other_rank = (rounds(rank.clock.log[3 * WARM_CALLS :]) for rank in played(worlds, *map(Player, "abc")))
    assert order == other_rank
    assert len(order) == ROW.repeats
    assert all(sorted(turn) == [0, 1, 2] for turn in order)
    assert len({tuple(turn) for turn in order}) > 2


def rounds(log: list[Call], contenders: int = 3) -> list[list[int]]:
    """Return the calls of each repeat, numbered by contender."""
    numbers: dict[Call, int] = {}
    in_order = [numbers.setdefault(call, len(numbers)) for call in log]
    return [in_order[start : start + contenders] for start in range(0, len(in_order), contenders)]


@pytest.mark.usefixtures("gpu")
def test_the_gpu_waits_longer_than_the_host_takes_for_a_burst(worlds: Worlds) -> None:
    for rank in played(worlds, Player("right")):
        assert min(rank.clock.leads) > burst_calls(ROW) * (1 + rank.clock.rank) * 1e-6


@pytest.mark.usefixtures("gpu")
def test_a_deadline_is_set_for_every_check_and_every_turn(worlds: Worlds) -> None:
    assert [rank.context.deadlines for rank in played(worlds, *map(Player, "abc"))] == [3 + 1 + 3 * ROW.repeats + 3] * 2


def test_the_reason_is_the_first_line() -> None:
    assert first_line(UnsupportedRowError("two\nlines")) == "two"
    assert first_line(UnsupportedRowError("")) == "UnsupportedRowError"
    assert first_line(ValueError("bad")) == "ValueError: bad"


def test_ranks_gather_through_the_store() -> None:
    store = HashStore()
    context, other = (RankContext(rank, 2, CPU, store, Path()) for rank in range(2))
    for number in (1, 2):  # rank 0 has set its values before rank 1 asks
        store.set(f"gather/{number}/0", pickle.dumps(number))  # type: ignore[arg-type]
    assert [other.all_gather("a"), other.all_gather("b")] == [[1, "a"], [2, "b"]]
    assert context.all_gather(1) == [1, "a"]
