"""Every way of moving a row gives its bytes, on two, four and eight ranks."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from gpu_bench import contenders as restripe_calls
from gpu_bench import raw
from gpu_bench.contenders import DropInCalls, RefitGraph, raw_and_restripe
from gpu_bench.moves import Contender, UnsupportedRowError
from gpu_bench.rows import RowTensors, between_meshes
from restripe import Resharder
from restripe.bench.transfers import Row
from restripe.group.registry import state_of
from restripe.xferdtensor_python import xferdtensor_python_impl

from ..helpers.transports import CommunicatorTransport
from .conftest import Group, Record, Worlds, exchange, gather, point

CPU = torch.device("cpu")
ONE = (("a", (8, 12)),)
MANY = (("a", (8, 12)), ("b", (4, 8)), ("c", (16,)))
ALWAYS = {"raw", "raw graph", "drop-in", "reshard", "refit", "refit graph"}


@pytest.fixture(autouse=True)
def no_gpu(gpu: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that would be recorded in a graph is made."""
    for module in (raw, restripe_calls):
        monkeypatch.setattr(module, "record_graph", lambda call: call)


def contenders(group: Group, size: int) -> list[Contender]:
    transport, graph_group = CommunicatorTransport(group.communicator), Group(group.communicator)
    assert group.communicator.size == size
    return raw_and_restripe(Resharder(group), RefitGraph(graph_group, ExitStack()), [transport] * 3, size)


def moved(worlds: Worlds, size: int, row: Row) -> set[str]:
    """Return who moves the row, each twice, and leaves no wrong byte."""

    def body(group: Group) -> dict[str, list[int]]:
        tensors = RowTensors(row, group.rank, size, CPU)
        wrong: dict[str, list[int]] = {}
        for contender in contenders(group, size):
            try:
                move = contender.prepare(tensors)
            except UnsupportedRowError:
                continue
            wrong[contender.name] = []
            for _ in range(2):
                tensors.fill_wrong()
                move.call()
                move.finish()
                wrong[contender.name].append(tensors.wrong_bytes())
        return wrong

    wrong, *others = worlds(size).run(body)
    assert wrong == {name: [0, 0] for name in wrong}
    assert others == [wrong] * (size - 1)
    return set(wrong)


@pytest.mark.parametrize("size", [2, 4])
def test_every_contender_moves_every_byte_again_and_again(worlds: Worlds, size: int) -> None:
    for row in (point(size, ONE), exchange(size, ONE)):
        assert moved(worlds, size, row) == ALWAYS
    assert moved(worlds, size, gather(size, ONE)) == ALWAYS | ({"representative"} if size == 4 else set())
    assert moved(worlds, size, point(size, MANY)) == {*ALWAYS, "raw each"}


def small(row: Row) -> Row:
    """Return the row with fewer elements, of which replicas still get stripes: an even shape and an odd one, or a layer."""
    if len(row.tensors) == 1:
        shapes = {"even": (192, 96), "odd": (203, 91)}
        return replace(row, tensors=tuple(replace(row.tensors[0], name=name, shape=shapes[name]) for name in shapes))
    layer = row.tensors[:11]
    return replace(row, tensors=tuple(replace(move, shape=tuple(size // 16 for size in move.shape)) for move in layer))


SMALL = [(size, small(row)) for size in (4, 8) for row in between_meshes(size) if "MB" not in row.name]


@pytest.mark.parametrize(("size", "row"), SMALL, ids=[row.name for _, row in SMALL])
def test_every_contender_moves_between_meshes_of_several_ranks(worlds: Worlds, size: int, row: Row) -> None:
    replicated = "S(0) to R" in row.name
    assert moved(worlds, size, row) == {*ALWAYS, "raw each"} | ({"representative"} if replicated else set())


def test_the_communicators_of_a_row_s_graph_end_with_the_next_row(worlds: Worlds) -> None:
    def body(group: Group) -> list[int]:
        contender, live = RefitGraph(group, ExitStack()), []
        for row in (point(4, ONE), gather(4, ONE), point(4, ONE)):
            contender.prepare(RowTensors(row, group.rank, 4, CPU)).call()
            live.append(state_of(group).live)
        contender.last_session.close()
        return [*live, state_of(group).live]

    assert worlds(4).run(body) == [[1, 2, 1, 0]] * 4


def test_what_takes_too_long_is_left_out() -> None:
    tensors = RowTensors(point(2, ONE), 0, 2, CPU)
    with pytest.raises(UnsupportedRowError, match="beyond 95 elements"):
        DropInCalls("slow", xferdtensor_python_impl, None, max_numel=95).prepare(tensors)
    DropInCalls("slow", xferdtensor_python_impl, None, max_numel=96).prepare(tensors)
