"""NCCL's call log, in the forms that its releases write, read as the events of a rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from reshard_conformance.judge.trace import Event, EventLog, release_faults, symmetry_faults
from reshard_conformance.worlds.call_log import CallLog

HEAD = "host:41:53 [1] NCCL INFO "
#: The same, with what NCCL_DEBUG_TIMESTAMP_LEVELS adds.
TIMED = "[2026-11-29 20:13:04] host:41:53 [1] NCCL INFO "
OWN, CHILD = 0x55D0A0, 0x7F3310


def called(name: str, count: int, kind: int, root: int, comm: int, head: str = HEAD) -> str:
    return (
        f"{head}{name}: opCount 1f sendbuff (nil) recvbuff 0x7fd0 count {count} datatype {kind} op 0 root {root} "
        f"comm {comm:#x} [nranks=4] stream 0x5581\n"
    )


def split(comm: int, parent: int, rank: int, members: int, count: int, color: int, end: str) -> str:
    return (
        f"{HEAD}ncclCommSplit comm {comm:#x} rank {rank} nranks {members} cudaDev 1 nvmlDev 1 busId 5d000 "
        f"parent {parent:#x} splitCount {count} color {color} key 2 - Init {end}\n"
    )


def ended(comm: int, how: str) -> str:
    return f"{HEAD}comm {comm:#x} rank 0 nranks 2 cudaDev 1 busId 5d000 - {how} COMPLETE\n"


class Rank:
    """One rank's log file with its reader; its group's own communicator has `own` as its address."""

    def __init__(self, path: Path, rank: int, own: int = OWN) -> None:
        self.path, self.log, self.reader = path, EventLog(), CallLog(path)
        self.reader.watch(own, "0", rank, 4, self.log)

    def write(self, *lines: str) -> tuple[Event, ...]:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(lines)
        self.reader.read()
        return self.log.take()


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path / "log", 1)


@pytest.mark.parametrize("head", [HEAD, TIMED])
def test_calls_are_told_with_their_peer_and_their_bytes(rank: Rank, head: str) -> None:
    events = rank.write(
        called("Send", 1000, 9, 3, OWN, head),
        called("Recv", 7, 1, 2, OWN, head),
        called("Broadcast", 5, 8, 0, OWN, head),
    )
    assert events == (
        Event("send", "0", 4, 1, 0, 3, 2000),
        Event("recv", "0", 4, 1, 1, 2, 7),
        Event("broadcast", "0", 4, 1, 2, 0, 40),
    )


def test_an_all_gather_over_the_whole_group_is_an_exchange(rank: Rank) -> None:
    events = rank.write(
        split(CHILD, OWN, 0, 2, 1, 0, "COMPLETE"),
        called("AllGather", 24, 1, 0, OWN),
        called("AllGather", 24, 1, 0, CHILD),
    )
    assert [event.op for event in events] == ["split", "exchange", "all_gather"]
    assert events[1].peer is None


def test_a_split_names_what_it_made_and_its_end_is_told(rank: Rank) -> None:
    events = rank.write(
        split(CHILD, OWN, 0, 2, 3, 7, "START"),
        split(CHILD, OWN, 0, 2, 3, 7, "COMPLETE"),
        called("Send", 1, 1, 1, CHILD),
        f"{HEAD}comm {CHILD:#x} rank 0 nRanks 2 cudaDev 1 busId 5d000 - Abort START\n",
        ended(CHILD, "Abort"),
        called("Send", 1, 1, 1, CHILD),
    )
    assert [(event.op, event.communicator, event.made) for event in events] == [
        ("split", "0", "0/3.7"),
        ("send", "0/3.7", None),
        ("abort", "0/3.7", None),
    ]
    assert (events[1].members, events[1].rank) == (2, 0)


def test_the_start_line_of_older_releases_and_other_lines_say_nothing(rank: Rank) -> None:
    assert not rank.write(
        split(CHILD, OWN, 0, 2, 1, 0, "START").replace("2 - Init", "2- Init"),
        f"{HEAD}ncclCommInitRank comm 0x9 rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 5d000 commId 0xab - Init COMPLETE\n",
        f"{HEAD}Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM\n",
        "\n",
    )


def test_a_communicator_that_nobody_named_and_its_children_are_left_out(rank: Rank) -> None:
    assert not rank.write(
        called("Send", 1, 1, 1, 0x999), split(CHILD, 0x999, 0, 2, 1, 0, "COMPLETE"), called("Send", 1, 1, 1, CHILD)
    )


def test_an_address_that_is_used_again_is_another_communicator(rank: Rank) -> None:
    events = rank.write(
        split(CHILD, OWN, 0, 2, 1, 0, "COMPLETE"),
        ended(CHILD, "Destroy"),
        split(CHILD, OWN, 1, 3, 2, 1, "COMPLETE"),
        called("Send", 1, 1, 0, CHILD),
        ended(CHILD, "Destroy"),
    )
    assert [event.communicator for event in events] == ["0", "0/1.0", "0", "0/2.1", "0/2.1"]
    assert not release_faults({1: events})


def test_a_communicator_with_a_new_name_leaves_its_old_calls_behind(rank: Rank) -> None:
    rank.write()
    later = EventLog()
    with rank.path.open("a", encoding="utf-8") as file:
        file.write(called("Send", 1, 1, 0, OWN))
    rank.reader.watch(OWN, "5", 1, 4, later)
    assert [event.communicator for event in rank.log.take()] == ["0"]
    assert not rank.write(called("Send", 1, 1, 0, OWN))
    assert [(event.communicator, event.number) for event in later.take()] == [("5", 0)]


def test_a_line_may_come_in_two_parts(rank: Rank) -> None:
    line = called("Send", 4, 7, 2, OWN)
    assert rank.write(line[:60]) == ()
    assert [event.nbytes for event in rank.write(line[60:])] == [16]


@pytest.mark.requirement("RS-CACHE-2")
def test_ids_are_equal_on_all_ranks_though_addresses_are_not(tmp_path: Path) -> None:
    ranks = {number: Rank(tmp_path / str(number), number, OWN + 64 * number) for number in range(4)}
    logs = {}
    for number, rank in ranks.items():
        own, child, place = OWN + 64 * number, CHILD + 128 * number, number % 2
        lines = [split(child, own, place, 2, 1, number // 2, "COMPLETE"), called("AllGather", 3, 1, 0, child)]
        if number != 2:  # what rank 2 forgets, the others see
            lines.append(ended(child, "Destroy"))
        logs[number] = rank.write(*lines)
    faults = symmetry_faults(logs)
    assert len(faults) == 1
    assert "communicator 0/1.1" in faults[0]
    assert "destroy" in faults[0]
