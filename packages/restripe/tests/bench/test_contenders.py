"""Every way of moving a row gives its bytes, on two, four and eight ranks."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from restripe.api import Resharder
from restripe.bench import contenders as ours
from restripe.bench import raw
from restripe.bench.calls import Contender, Unfit
from restripe.bench.case import Case
from restripe.bench.contenders import GraphRefit, OneByOne, own
from restripe.bench.rows import Row, between
from restripe.bench.wires import ModuleWire
from restripe.group.registry import state
from restripe.xferdtensor_python import xferdtensor_python_impl

from .conftest import Group, Record, Worlds, exchange, gather, point

CPU = torch.device("cpu")
ONE = (("a", (8, 12)),)
MANY = (("a", (8, 12)), ("b", (4, 8)), ("c", (16,)))
ALWAYS = {"raw", "raw graph", "drop-in", "reshard", "refit", "refit graph"}


@pytest.fixture(autouse=True)
def no_gpu(gpu: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be recorded in a graph is called."""
    for module in (raw, ours):
        monkeypatch.setattr(module, "captured", lambda call: call)


def contenders(group: Group, size: int) -> list[Contender]:
    wire, alone = ModuleWire(group.communicator), Group(group.communicator)
    assert group.communicator.size == size
    return own(Resharder(group), GraphRefit(alone, ExitStack()), [wire] * 3, size)


def moved(worlds: Worlds, size: int, row: Row) -> set[str]:
    """Who moves the row, each twice, and leaves no wrong byte."""

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

    first, *others = worlds(size).run(body)
    assert first == {name: [0, 0] for name in first}
    assert others == [first] * (size - 1)
    return set(first)


@pytest.mark.parametrize("size", [2, 4])
def test_every_contender_moves_every_byte_again_and_again(worlds: Worlds, size: int) -> None:
    for row in (point(size, ONE), exchange(size, ONE)):
        assert moved(worlds, size, row) == ALWAYS
    assert moved(worlds, size, gather(size, ONE)) == ALWAYS | ({"representative"} if size == 4 else set())
    assert moved(worlds, size, point(size, MANY)) == {*ALWAYS, "raw each"}


def small(row: Row) -> Row:
    """The same layouts with fewer elements, of which replicas still get stripes: an even shape and an odd one, or a layer."""
    if len(row.tensors) == 1:
        shapes = {"even": (192, 96), "odd": (203, 91)}
        return replace(row, tensors=tuple(replace(row.tensors[0], name=name, shape=shapes[name]) for name in shapes))
    layer = row.tensors[:11]
    return replace(row, tensors=tuple(replace(one, shape=tuple(size // 16 for size in one.shape)) for one in layer))


SMALL = [(size, small(row)) for size in (4, 8) for row in between(size) if "MB" not in row.name]


@pytest.mark.parametrize(("size", "row"), SMALL, ids=[row.name for _, row in SMALL])
def test_every_contender_moves_between_meshes_of_several_ranks(worlds: Worlds, size: int, row: Row) -> None:
    replicated = "S(0) to R" in row.name
    assert moved(worlds, size, row) == {*ALWAYS, "raw each"} | ({"representative"} if replicated else set())


def test_the_communicators_of_a_row_s_graph_end_with_the_next_row(worlds: Worlds) -> None:
    def body(group: Group) -> list[int]:
        contender, live = GraphRefit(group, ExitStack()), []
        for row in (point(4, ONE), gather(4, ONE), point(4, ONE)):
            contender.ready(Case(row, group.rank, 4, CPU)).call()
            live.append(state(group).live)
        contender.closing.close()
        return [*live, state(group).live]

    assert worlds(4).run(body) == [[1, 2, 1, 0]] * 4


def test_what_takes_too_long_is_left_out() -> None:
    case = Case(point(2, ONE), 0, 2, CPU)
    with pytest.raises(Unfit, match="beyond 95 elements"):
        OneByOne("slow", xferdtensor_python_impl, None, limit=95).ready(case)
    OneByOne("slow", xferdtensor_python_impl, None, limit=96).ready(case)
