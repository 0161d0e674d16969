"""A hand-written move enqueues groups of messages, copies beside them, and what replicas share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import pytest
import torch

from gpu_bench.moves import Call, UnsupportedRowError
from gpu_bench.raw import Messages, RawMove
from gpu_bench.routes import ReplicaStrategy
from gpu_bench.rows import RowTensors
from restripe.bench.transfers import Row

from ..helpers.transports import CommunicatorTransport
from .conftest import Group, Record, Worlds, exchange, gather, point, row

CPU = torch.device("cpu")
ONE = (("a", (64, 96)),)
MANY = (("a", (8, 12)), ("b", (4, 8)), ("c", (16,)))
STRIPED = (("a", (64, 96)), ("b", (64, 128)))


class CountingTransport:
    """A raw transport that keeps a record of what is called."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.log: list[str] = [] if log is None else log

    def p2p_group(self, sends: Messages, receives: Messages) -> Call:
        return lambda: self.log.append(f"{len(sends)} sends, {len(receives)} receives")

    def all_gather(self, output: torch.Tensor, part: torch.Tensor) -> Call:
        offset = part.data_ptr() - output.data_ptr()
        origin = f"part {offset // part.numel()}" if 0 <= offset < output.numel() else "elsewhere"
        return lambda: self.log.append(f"gather {output.numel()} from {origin}")

    def broadcast(self, buffer: torch.Tensor, root: int) -> Call:
        return lambda: self.log.append(f"broadcast {buffer.numel()} from {root}")

    def collective_group(self, calls: Sequence[Call]) -> Call:
        def call() -> None:
            self.log.append("grouped")
            for collective in calls:
                collective()

        return call

    def split(self, color: int, key: int) -> Self:
        self.log.append(f"split {color} {key}")
        return type(self)(self.log)


def called(
    row: Row, rank: int, size: int, strategy: ReplicaStrategy = ReplicaStrategy.STRIPES, *, one_by_one: bool = False
) -> list[str]:
    """Return what preparing the row, and one call, ask of the transport."""
    transport = CountingTransport()
    RawMove(transport, one_by_one=one_by_one, strategy=strategy).prepare(RowTensors(row, rank, size, CPU)).call()
    return transport.log


@pytest.mark.parametrize(("one_by_one", "groups"), [(False, 1), (True, 3)])
def test_raw_sends_many_tensors_in_one_group_or_one_by_one(groups: int, *, one_by_one: bool) -> None:
    assert called(point(2, MANY), 0, 2, one_by_one=one_by_one) == [f"{3 // groups} sends, 0 receives"] * groups


def test_replicas_gather_their_stripes_in_place_and_together() -> None:
    striped = row("2:S(0)", "2:R", 2, STRIPED)
    assert called(striped, 0, 4) == ["split 1 0", "2 sends, 0 receives"]
    gathers = ["grouped", "gather 12288 from part 1", "gather 16384 from part 1"]
    assert called(striped, 3, 4) == ["split 0 1", "0 sends, 2 receives", *gathers]


def test_every_replica_group_has_a_transport_of_its_own_that_is_made_once() -> None:
    tensors = RowTensors(row("4:S(0)", "2x2:R,S(0)", 4, (("a", (128, 96)),)), 7, 8, CPU)
    transport = CountingTransport()
    raw = RawMove(transport)
    for _ in range(2):
        raw.prepare(tensors)
    assert transport.log == ["split 1 1"]


def test_uneven_stripes_are_broadcast() -> None:
    log = called(row("2:S(0)", "2:R", 2, (("a", (65, 96)),)), 2, 4)
    assert log == ["split 0 0", "0 sends, 1 receives", "grouped", "broadcast 6336 from 0", "broadcast 6144 from 1"]


def test_a_representative_receives_all_and_broadcasts_it() -> None:
    replicas = row("2:S(0)", "2:R", 2, ONE)
    assert called(replicas, 2, 4, ReplicaStrategy.REPRESENTATIVE) == [
        "split 0 0",
        "0 sends, 2 receives",
        "broadcast 12288 from 0",
    ]
    assert called(replicas, 3, 4, ReplicaStrategy.REPRESENTATIVE) == ["split 0 1", "broadcast 12288 from 0"]
    with pytest.raises(UnsupportedRowError, match="replicas"):
        called(point(4, ONE), 0, 4, ReplicaStrategy.REPRESENTATIVE)


def test_small_replicas_are_sent_whole() -> None:
    assert called(row("2:R", "2:R", 2, MANY), 3, 4) == ["0 sends, 3 receives"]


def test_a_gather_over_all_ranks_takes_every_stripe_from_its_source() -> None:
    assert called(gather(2, ONE), 1, 2) == ["gather 12288 from elsewhere"]


def test_the_hand_written_exchange_overlaps_its_local_copy_and_waits_for_it(worlds: Worlds, gpu: Record) -> None:
    moved = exchange(2, ONE)

    def body(group: Group) -> None:
        RawMove(CommunicatorTransport(group.communicator)).prepare(RowTensors(moved, group.rank, 2, CPU)).call()

    worlds(2).run(body)
    main, *sides = gpu.streams
    assert [side.waited for side in sides] == [[main], [main]]
    assert set(main.waited) == set(sides)
    assert not gpu


def test_one_tensor_has_no_groups_of_its_own() -> None:
    with pytest.raises(UnsupportedRowError, match="the same as raw"):
        called(point(2, ONE), 0, 2, one_by_one=True)
