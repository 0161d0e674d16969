"""Traffic and memory, judged on reports that are made up."""

from __future__ import annotations

import pytest

from reshard_conformance.case.files import Case, Side
from reshard_conformance.judge.outcomes import RankReport
from reshard_conformance.judge.trace import Event
from reshard_conformance.profiles.efficient import staging, traffic

ROWS, COLUMNS = Side((0, 1), ("S(0)",)), Side((0, 1), ("S(1)",))
PAIR = Side((2, 3), ("R",))
CASE = Case(4, (4, 6), "int16", ROWS, PAIR)  # 48 bytes; each source shard 24
CROSS = Case(4, (4, 6), "int16", COLUMNS, Side((1, 2), ("S(0)",)))  # boxes of 2 x 3, 12 bytes each


def report(rank: int, *moves: tuple[str, int, int], peak: int | None = None) -> RankReport:
    events = tuple(Event(op, "0", 4, rank, number, peer, nbytes) for number, (op, peer, nbytes) in enumerate(moves))
    return RankReport(rank, events=events, peak=peak)


def test_a_replica_group_may_receive_its_shard_once() -> None:
    striped = [report(2, ("recv", 0, 12), ("recv", 1, 12)), report(3, ("recv", 0, 12), ("recv", 1, 12))]
    assert traffic(CASE, striped) == []
    assert traffic(CASE, [report(2, ("recv", 0, 24), ("recv", 1, 24)), report(3)]) == []


def test_a_replica_group_that_receives_more_is_named() -> None:
    both = [report(rank, ("recv", 0, 24), ("recv", 1, 24)) for rank in (2, 3)]
    assert traffic(CASE, both) == ["replicas on ranks [2, 3]: received 96 bytes in messages, but share 48"]


def test_a_rank_that_receives_what_it_holds_is_named() -> None:
    served = [report(1, ("recv", 0, 12)), report(2, ("recv", 0, 12), ("recv", 1, 12))]
    assert traffic(CROSS, served) == []
    greedy = [report(1, ("recv", 0, 12), ("recv", 1, 12)), report(2)]
    assert traffic(CROSS, greedy) == ["rank 1: received 24 bytes, but only 12 of its shard are not in its source"]


def test_a_rank_outside_the_destination_receives_nothing() -> None:
    assert traffic(CASE, [report(0, ("recv", 1, 2))]) == [
        "rank 0: received 2 bytes, but only 0 of its shard are not in its source"
    ]


def test_what_collective_calls_move_is_the_fan_out() -> None:
    gathered = RankReport(2, events=(Event("all_gather", "0/0.0", 2, 0, 0, None, 24),))
    assert traffic(CASE, [gathered]) == []


@pytest.mark.parametrize(
    ("case", "moves", "allowed"),
    [
        (CASE, (("recv", 0, 24), ("recv", 1, 24)), 0),  # whole rows land in place
        (Case(4, (4, 6), "int16", COLUMNS, PAIR), (("recv", 0, 24), ("recv", 1, 24)), 48),  # columns are staged
        (Case(4, (4, 6), "int16", ROWS, Side((2, 3), ("R",), "transposed")), (("recv", 0, 24),), 24 + 48),
    ],
)
def test_what_a_receiver_may_allocate(case: Case, moves: tuple[tuple[str, int, int], ...], allowed: int) -> None:
    assert staging(case, [report(2, *moves, peak=allowed)]) == []
    assert staging(case, [report(2, *moves, peak=allowed + 1)]) == [
        f"rank 2: allocated {allowed + 1} bytes at its peak, but stages at most {allowed}"
    ]


def test_what_a_sender_may_allocate() -> None:
    sent = (("send", 1, 12), ("send", 2, 12))
    assert staging(CROSS, [report(0, *sent, peak=0)]) == []  # two rows of its three columns are one stretch of memory
    narrow = Case(4, (4, 6), "int16", ROWS, Side((2, 3), ("S(1)",)))
    assert staging(narrow, [report(0, ("send", 2, 12), peak=12)]) == []
    assert staging(narrow, [report(0, ("send", 2, 12), peak=13)]) != []


def test_messages_on_other_communicators_may_be_staged() -> None:
    event = Event("recv", "0/1.0", 2, 1, 0, 0, 24)
    assert staging(CASE, [RankReport(2, events=(event,), peak=24)]) == []
