"""What a hand-written move enqueues: groups of messages, copies beside them, and what replicas share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import pytest
import torch

from restripe.bench.calls import Call, Unfit
from restripe.bench.case import Case
from restripe.bench.pieces import Way
from restripe.bench.raw import Raw
from restripe.bench.rows import Row
from restripe.bench.wires import Messages, ModuleWire

from .conftest import Record, Worlds, exchange, gather, point, row

CPU = torch.device("cpu")
ONE = (("a", (64, 96)),)
MANY = (("a", (8, 12)), ("b", (4, 8)), ("c", (16,)))
STRIPED = (("a", (64, 96)), ("b", (64, 128)))


class Counting:
    """A wire that keeps a record of what is called."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.log: list[str] = [] if log is None else log

    def messages(self, sends: Messages, receives: Messages) -> Call:
        return lambda: self.log.append(f"{len(sends)} sends, {len(receives)} receives")

    def gather(self, output: torch.Tensor, part: torch.Tensor) -> Call:
        lies = part.data_ptr() - output.data_ptr()
        where = f"place {lies // part.numel()}" if 0 <= lies < output.numel() else "elsewhere"
        return lambda: self.log.append(f"gather {output.numel()} from {where}")

    def broadcast(self, buffer: torch.Tensor, root: int) -> Call:
        return lambda: self.log.append(f"broadcast {buffer.numel()} from {root}")

    def together(self, calls: Sequence[Call]) -> Call:
        def call() -> None:
            self.log.append("together")
            for one in calls:
                one()

        return call

    def split(self, color: int, key: int) -> Self:
        self.log.append(f"split {color} {key}")
        return type(self)(self.log)


def called(row: Row, rank: int, size: int, way: Way = Way.STRIPES, *, each: bool = False) -> list[str]:
    """What one call asks of the wire, and what making it ready did."""
    wire = Counting()
    Raw(wire, each=each, way=way).ready(Case(row, rank, size, CPU)).call()
    return wire.log


@pytest.mark.parametrize(("each", "groups"), [(False, 1), (True, 3)])
def test_raw_sends_many_tensors_in_one_group_or_one_by_one(groups: int, *, each: bool) -> None:
    assert called(point(2, MANY), 0, 2, each=each) == [f"{3 // groups} sends, 0 receives"] * groups


def test_replicas_gather_their_stripes_in_place_and_together() -> None:
    striped = row("2:S(0)", "2:R", 2, STRIPED)
    assert called(striped, 0, 4) == ["split 1 0", "2 sends, 0 receives"]
    gathers = ["together", "gather 12288 from place 1", "gather 16384 from place 1"]
    assert called(striped, 3, 4) == ["split 0 1", "0 sends, 2 receives", *gathers]


def test_every_replica_group_has_a_wire_of_its_own_that_is_made_once() -> None:
    case, wire = Case(row("4:S(0)", "2x2:R,S(0)", 4, (("a", (128, 96)),)), 7, 8, CPU), Counting()
    raw = Raw(wire)
    for _ in range(2):
        raw.ready(case)
    assert wire.log == ["split 1 1"]


def test_uneven_stripes_are_broadcast() -> None:
    log = called(row("2:S(0)", "2:R", 2, (("a", (65, 96)),)), 2, 4)
    assert log == ["split 0 0", "0 sends, 1 receives", "together", "broadcast 6336 from 0", "broadcast 6144 from 1"]


def test_a_representative_receives_all_and_broadcasts_it() -> None:
    replicas = row("2:S(0)", "2:R", 2, ONE)
    assert called(replicas, 2, 4, Way.REPRESENTATIVE) == ["split 0 0", "0 sends, 2 receives", "broadcast 12288 from 0"]
    assert called(replicas, 3, 4, Way.REPRESENTATIVE) == ["split 0 1", "broadcast 12288 from 0"]
    with pytest.raises(Unfit, match="replicas"):
        called(point(4, ONE), 0, 4, Way.REPRESENTATIVE)


def test_small_replicas_are_sent_whole() -> None:
    assert called(row("2:R", "2:R", 2, MANY), 3, 4) == ["0 sends, 3 receives"]


def test_a_gather_over_all_ranks_takes_every_stripe_from_where_it_lies() -> None:
    assert called(gather(2, ONE), 1, 2) == ["gather 12288 from elsewhere"]


def test_the_hand_written_exchange_overlaps_its_local_copy_and_waits_for_it(worlds: Worlds, gpu: Record) -> None:
    moved = exchange(2, ONE)
    worlds(2).run(lambda group: Raw(ModuleWire(group.communicator)).ready(Case(moved, group.rank, 2, CPU)).call())
    main, *sides = gpu.streams
    assert [side.waited for side in sides] == [[main], [main]]
    assert set(main.waited) == set(sides)
    assert not gpu


def test_one_tensor_has_no_groups_of_its_own() -> None:
    with pytest.raises(Unfit, match="the same as raw"):
        called(point(2, ONE), 0, 2, each=True)
