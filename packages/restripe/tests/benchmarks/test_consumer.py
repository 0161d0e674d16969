"""Refits as consumers make them: every byte comes over, and the function is given what they give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from gpu_bench.consumer import (
    FOREIGN_MESH,
    OWN_MESH,
    RAW_EACH,
    ConsumerCalls,
    ConsumerRaw,
    ForeignMesh,
    check_upstream,
    foreign_side,
    own_side,
    upstream_names,
)
from gpu_bench.moves import Contender, UnsupportedRowError
from gpu_bench.rows import ConsumerRow, Ranks, RowTensors, consumer_rows, shrink
from restripe import Mesh
from restripe.bench.transfers import BenchError
from restripe.xferdtensor_python import clear_xferdtensor_python_caches, xferdtensor_python_impl

from ..helpers.transports import CommunicatorTransport
from .conftest import Group, Worlds, point

CPU = torch.device("cpu")
NAMES = xferdtensor_python_impl, clear_xferdtensor_python_caches


def small_rows(ranks: int) -> list[ConsumerRow]:
    """Return the rows with a few tensors of a few elements."""
    few = [replace(row, tensors=row.tensors[-24:]) for row in consumer_rows(ranks) if row.name != "consumer stages"]
    return [shrink(row, 64) for row in (*few, *(row for row in consumer_rows(ranks) if row.name == "consumer stages"))]


def contenders(group: Group, row: ConsumerRow) -> list[Contender]:
    """Return every contender over communicators that are split for the row's groups; collective."""
    communicators: dict[Ranks, list[Any]] = {}
    for members in row.groups:
        inside = group.rank in members
        key = members.index(group.rank) if inside else group.rank
        communicators[members] = [group.communicator.split(int(inside), key) for _ in range(3)]

    def connect(number: int) -> Callable[[str, Ranks], Group]:
        return lambda _, members: Group(communicators[members][number])

    return [
        ConsumerRaw(lambda _, members: CommunicatorTransport(communicators[members][0])),
        ConsumerCalls(FOREIGN_MESH, *NAMES, connect(1), foreign_side),
        ConsumerCalls(OWN_MESH, *NAMES, connect(2), own_side),
    ]


CASES = [(ranks, row) for ranks in (2, 8) for row in small_rows(ranks)]


@pytest.mark.parametrize(("ranks", "row"), CASES, ids=[f"{row.name} on {ranks}" for ranks, row in CASES])
def test_every_contender_moves_every_byte_in_every_refit(worlds: Worlds, ranks: int, row: ConsumerRow) -> None:
    def body(group: Group) -> dict[str, list[int]]:
        tensors = RowTensors(row, group.rank, ranks, CPU)
        wrong: dict[str, list[int]] = {}
        for contender in contenders(group, row):
            move = contender.prepare(tensors)
            for _ in range(3):
                if row.fresh:
                    tensors.renew()
                    move.refresh()
                tensors.fill_wrong()
                for step in move.steps:
                    step()
                wrong.setdefault(contender.name, []).append(tensors.wrong_bytes())
        return wrong

    assert worlds(ranks).run(body) == [{name: [0] * 3 for name in (RAW_EACH, FOREIGN_MESH, OWN_MESH)}] * ranks


@dataclass
class Recorder:
    """A function with the drop-in's signature, and its clear, that keep what they are given."""

    calls: list[tuple[Any, ...]]
    cleared: list[Any]

    def function(self, *arguments: Any) -> None:
        self.calls.append(arguments)


def recorded(row: ConsumerRow, rank: int, side: Any) -> tuple[Recorder, RowTensors]:
    """Return the calls of two refits of one rank."""
    recorder, tensors = Recorder([], []), RowTensors(row, rank, 8, CPU)
    contender = ConsumerCalls("name", recorder.function, recorder.cleared.append, lambda *group: group, side)
    move = contender.prepare(tensors)
    move.call()
    move.call()
    contender.prepare(tensors)
    assert recorder.cleared == [("name", members) for members in row.groups if rank in members]
    return recorder, tensors


def test_a_foreign_caller_passes_its_own_mesh_lists_and_a_new_reference_a_call() -> None:
    row = small_rows(2)[0]
    recorder, tensors = recorded(row, 0, foreign_side)
    assert len(recorder.calls) == 2 * len(row.tensors)
    for move, (src, src_mesh, src_placements, dst, dst_mesh, dst_placements, group, stream) in zip(
        row.tensors * 2, recorder.calls, strict=True
    ):
        assert (src.shape, src.dtype, src.device) == (torch.Size(move.shape), torch.bfloat16, CPU)
        assert src._local_tensor is tensors.sources[move.name]
        assert dst is None
        assert type(src_mesh) is type(dst_mesh) is ForeignMesh
        assert (src_mesh.mesh.tolist(), dst_mesh._mesh.tolist(), src_mesh.ndim) == ([0], [1], 1)
        assert (src_placements, dst_placements) == (list(move.src.placements), list(move.dst.placements))
        assert (group, stream) == (("name", (0, 1)), None)
    assert len({id(arguments[0]) for arguments in recorder.calls}) == len(recorder.calls)
    assert len({id(arguments[1]) for arguments in recorder.calls}) == 1


def test_in_stages_every_tensor_has_its_meshes_in_ranks_of_its_stage_s_group() -> None:
    (row,) = (row for row in small_rows(8) if row.name == "consumer stages")
    recorder, tensors = recorded(row, 5, foreign_side)
    half = len(row.tensors)
    assert len(recorder.calls) == 2 * half
    for src, src_mesh, _, dst, dst_mesh, _, group, _ in recorder.calls:
        assert src is None
        assert any(dst._local_tensor is tensor for tensor in tensors.destinations.values())
        assert (src_mesh.mesh.tolist(), dst_mesh.mesh.tolist()) == ([0, 1], [2, 3, 4, 5])
        assert group[1] in row.groups
    assert len({id(arguments[1]) for arguments in recorder.calls}) == half
    recorder, _ = recorded(row, 2, own_side)
    assert len(recorder.calls) == 2 * len(row.stage_moves(1))
    for src, src_mesh, src_placements, dst, dst_mesh, _, group, _ in recorder.calls:
        assert (src is None, dst) == (False, None)
        assert (src_mesh, dst_mesh) == (Mesh((2,), (0, 1)), Mesh((4,), (2, 3, 4, 5)))
        assert type(src_placements) is tuple
        assert group == ("name", row.groups[1])


def test_a_long_refit_has_steps_and_a_rank_in_no_group_has_none() -> None:
    (row,) = (shrink(row, 64) for row in consumer_rows(2) if row.name == "consumer 9000")
    contender = ConsumerCalls("name", print, print, lambda *group: group, foreign_side)
    assert len(contender.prepare(RowTensors(row, 1, 2, CPU)).steps) == 1 + -(-9000 // 256) + 1
    assert len(contender.prepare(RowTensors(row, 2, 4, CPU)).steps) == 2


def test_other_rows_are_not_for_them() -> None:
    tensors = RowTensors(point(2), 0, 2, CPU)
    for contender in (ConsumerRaw(lambda *_: None), ConsumerCalls("name", *NAMES, print, foreign_side)):  # type: ignore[arg-type]
        with pytest.raises(UnsupportedRowError, match="consumer"):
            contender.prepare(tensors)


def test_upstream_is_a_module_with_both_names() -> None:
    check_upstream("restripe.xferdtensor_python")
    assert upstream_names("restripe.xferdtensor_python") == NAMES
    for name in ("no_such_package.module", "no_such_module", "restripe.nothing", ""):
        with pytest.raises(BenchError, match="as --upstream"):
            check_upstream(name)
    with pytest.raises(AttributeError):
        upstream_names("json")
