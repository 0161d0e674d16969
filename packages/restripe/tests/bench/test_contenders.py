"""Every way of moving a row gives its bytes, on two and on four ranks."""

from __future__ import annotations

import pytest
import torch

from restripe.api import Resharder
from restripe.bench.case import Case
from restripe.bench.contenders import Call, Contender, Messages, ModuleWire, OneByOne, Raw, Unfit, own
from restripe.bench.rows import Move, Row
from restripe.xferdtensor_python import xferdtensor_python_impl

from .conftest import Group, Record, Worlds

CPU = torch.device("cpu")
ONE = (("a", (8, 12)),)
MANY = (("a", (8, 12)), ("b", (4, 8)), ("c", (16,)))


def contenders(group: Group, size: int) -> list[Contender]:
    wire = ModuleWire(group.communicator)
    assert group.communicator.size == size
    return [one for one in own(Resharder(group), [wire] * 3) if "graph" not in one.name]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("row", [Row(move, move, ONE) for move in Move] + [Row("many", Move.POINT, MANY)])
def test_every_contender_moves_every_byte_again_and_again(worlds: Worlds, size: int, row: Row) -> None:
    def body(group: Group) -> dict[str, list[int]]:
        case = Case(row, group.rank, size, CPU)
        wrong: dict[str, list[int]] = {}
        for contender in contenders(group, size):
            try:
                ready = contender.ready(case)
            except Unfit:
                continue
            wrong[contender.name] = []
            for _ in range(2):
                case.poison()
                ready.call()
                ready.land()
                wrong[contender.name].append(case.wrong())
        return wrong

    names = {"raw", "drop-in", "reshard", "refit"} | ({"raw each"} if len(row.tensors) > 1 else set())
    assert worlds(size).run(body) == [{name: [0, 0] for name in names}] * size


class Counting:
    """A wire that counts the messages of each group."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, int]] = []

    def messages(self, sends: Messages, receives: Messages) -> Call:
        return lambda: self.groups.append((len(sends), len(receives)))

    def gather(self, output: torch.Tensor, part: torch.Tensor) -> Call:
        raise NotImplementedError


@pytest.mark.parametrize(("each", "groups"), [(False, [(3, 0)]), (True, [(1, 0)] * 3)])
def test_raw_sends_many_tensors_in_one_group_or_one_by_one(groups: list[tuple[int, int]], *, each: bool) -> None:
    wire = Counting()
    Raw(wire, each=each).ready(Case(Row("many", Move.POINT, MANY), 0, 2, CPU)).call()
    assert wire.groups == groups


def test_the_hand_written_exchange_overlaps_its_local_copy_and_waits_for_it(worlds: Worlds, gpu: Record) -> None:
    row = Row("row", Move.EXCHANGE, ONE)
    worlds(2).run(lambda group: Raw(ModuleWire(group.communicator)).ready(Case(row, group.rank, 2, CPU)).call())
    main, *sides = gpu.streams
    assert [side.waited for side in sides] == [[main], [main]]
    assert set(main.waited) == set(sides)
    assert not gpu


def test_what_takes_too_long_is_left_out() -> None:
    case = Case(Row("row", Move.POINT, ONE), 0, 2, CPU)
    with pytest.raises(Unfit, match="beyond 95 elements"):
        OneByOne("slow", xferdtensor_python_impl, None, limit=95).ready(case)
    OneByOne("slow", xferdtensor_python_impl, None, limit=96).ready(case)
