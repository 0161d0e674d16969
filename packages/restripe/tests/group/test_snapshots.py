"""Snapshots: what tells tensors, meshes and placements apart, and that it keeps no tensor."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from restripe import Layout, Mesh, Segmented
from restripe.group import snapshots as module
from restripe.group.inputs import OF_LAYOUT
from restripe.group.snapshots import (
    PlacementWatch,
    RankWatch,
    Watch,
    layout_key,
    mesh_key,
    placements_key,
    tensor_guard,
    tensor_snapshot,
    watches,
)

from ..helpers.meshes import MESH_KINDS

COMPLEX = torch.zeros(4, 6, dtype=torch.complex64)
DIFFERENT = [  # in sizes, strides, dtype, device, and lazy conjugation or negation
    torch.zeros(4, 6),
    torch.zeros(4, 7),
    torch.zeros(4),
    torch.zeros(6, 4).t(),
    torch.zeros(1, 6).expand(4, 6),
    torch.zeros(4, 6, dtype=torch.int32),
    torch.zeros(4, 6, device="meta"),
    torch._neg_view(torch.zeros(4, 6)),
    COMPLEX,
    COMPLEX.conj(),
]


def test_snapshots_are_equal_where_only_addresses_differ() -> None:
    assert tensor_snapshot(DIFFERENT[0]) == tensor_snapshot(torch.ones(4, 6)) == tensor_snapshot(torch.zeros(9, 6)[5:])
    assert len({tensor_snapshot(tensor) for tensor in DIFFERENT}) == len(DIFFERENT)


def test_a_guard_passes_tensors_of_equal_snapshots_and_no_others() -> None:
    for tensor in DIFFERENT:
        guard = tensor_guard([tensor, torch.zeros(3)])
        assert guard is not None
        assert [guard(other, torch.ones(3)) for other in DIFFERENT] == [other is tensor for other in DIFFERENT]
        assert not guard(tensor, torch.zeros(4))
    guard = tensor_guard([DIFFERENT[0]])
    assert guard is not None
    assert guard(torch.zeros(9, 6)[5:])


def test_there_is_no_guard_where_it_would_crash_or_take_one_tensor_for_two() -> None:
    tensor = torch.zeros(3)
    assert tensor_guard([weakref.proxy(tensor)]) is None
    assert tensor_guard([tensor, tensor]) is None
    assert tensor_guard([]) is None


def test_there_is_no_guard_for_a_torch_whose_guards_were_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TensorGuards", None)
    assert tensor_guard([torch.zeros(3)]) is None


def test_a_guard_keeps_no_tensor() -> None:
    tensor = torch.zeros(3)
    guard, reference = tensor_guard([tensor]), weakref.ref(tensor)
    del tensor
    assert reference() is None
    assert guard is not None
    assert guard(torch.zeros(3))


@pytest.mark.parametrize("kind", MESH_KINDS)
def test_meshes_of_equal_ranks_have_equal_keys_and_others_have_not(kind: str) -> None:
    make = MESH_KINDS[kind]
    key = mesh_key(make([2, 0, 1]))
    assert key is not None
    assert mesh_key(make([2, 0, 1])) == key
    assert hash(mesh_key(make([2, 0, 1]))) == hash(key)
    keys: list[Hashable] = [key, *(mesh_key(make(ranks)) for ranks in ([0, 2, 1], [2, 0], [2, 0, 1, 3], [2, 0, 257]))]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("make", [torch.tensor, np.array, list], ids=["tensor", "array", "lists"])
def test_meshes_of_other_shapes_have_other_keys(make: Callable[[Any], Any]) -> None:
    grids = [[0, 1, 2, 3], [[0, 1], [2, 3]], [[0, 1, 2, 3]], [[0], [1], [2], [3]], [[[0, 1], [2, 3]]]]
    assert len({mesh_key(make(grid)) for grid in grids}) == len(grids)


def test_a_mesh_of_equal_bytes_and_another_dtype_has_another_key() -> None:
    ranks = np.array([0, 1])
    for reals in (ranks.view(np.float64), ranks.view(np.uint64)):
        assert reals.tobytes() == ranks.tobytes()
        assert mesh_key(reals) != mesh_key(ranks)
        assert mesh_key(torch.from_numpy(reals)) != mesh_key(torch.from_numpy(ranks))


def test_a_mesh_with_hosts_has_another_key() -> None:
    assert mesh_key(Mesh((2,), (0, 1), ("a", "b"))) != mesh_key(Mesh((2,), (0, 1)))
    assert mesh_key(Mesh((2,), (0, 1), ("a", "b"))) == mesh_key(Mesh((2,), (0, 1), ("a", "b")))


@pytest.mark.parametrize(
    "mesh",
    [
        "ranks",
        None,
        [0.5, 1.0],
        [True, False],
        [torch.tensor(0), torch.tensor(1)],
        SimpleNamespace(mesh="ranks"),
        SimpleNamespace(mesh=SimpleNamespace(mesh=torch.tensor([0, 1]))),
        torch.zeros(2, dtype=torch.int64, device="meta"),
        torch.tensor([0, 1]).to_sparse(),
    ],
    ids=str,
)
def test_a_mesh_that_cannot_be_told_apart_by_a_key_has_none(mesh: Any) -> None:
    assert mesh_key(mesh) is None


def test_placements_in_a_list_and_in_a_tuple_have_one_key() -> None:
    placements = Shard(1), Replicate(), _StridedShard(0, split_factor=2), Segmented(0, (3, 1))
    key = placements_key(placements)
    assert key is not None
    assert placements_key(list(placements)) == key
    assert placements_key((Shard(1), Replicate(), _StridedShard(0, split_factor=2), Segmented(0, (3, 1)))) == key


def test_different_placements_have_different_keys() -> None:
    kinds = [
        (Shard(0),),
        (Shard(1),),
        (Shard(-1),),
        (Replicate(),),
        (_StridedShard(0, split_factor=2),),
        (_StridedShard(0, split_factor=3),),
        (_StridedShard(1, split_factor=2),),
        (Segmented(0, (3, 1)),),
        (Segmented(0, (1, 3)),),
        (Segmented(1, (3, 1)),),
        (Shard(0), Replicate()),
        (Replicate(), Shard(0)),
        (),
    ]
    assert len({placements_key(kind) for kind in kinds}) == len(kinds)


class LookAlike(Shard):
    """A subclass of a placement that is equal to it."""


@pytest.mark.parametrize(
    "placements",
    [(LookAlike(0),), (Partial(),), ("S(0)",), Shard(0), None, "S", ([0],), iter((Shard(0),)), {0: Shard(0)}],
    ids=["look-alike", "partial", "text", "no sequence", "none", "string", "list", "iterator", "dict"],
)
def test_placements_of_kinds_that_may_change_or_that_are_refused_have_no_key(placements: Any) -> None:
    assert placements_key(placements) is None


def test_a_side_has_a_key_where_its_mesh_and_its_placements_have() -> None:
    mesh, layout = Mesh((2,), (0, 1)), Layout(Mesh((2,), (0, 1)), (Shard(0),))
    assert layout_key(mesh, (Shard(0),)) == layout_key(Mesh((2,), (0, 1)), [Shard(0)]) is not None
    assert layout_key(layout, OF_LAYOUT) == layout_key(Layout(mesh, (Shard(0),)), OF_LAYOUT) is not None
    for other, placements in ((mesh, (Partial(),)), ("ranks", (Shard(0),)), (mesh, OF_LAYOUT), ("layout", OF_LAYOUT)):
        assert layout_key(other, placements) is None


def test_what_can_change_is_watched() -> None:
    mesh, placements = Mesh((2,), (0, 1)), (Shard(0),)
    assert watches(mesh, placements) == []
    assert watches(Layout(mesh, placements), OF_LAYOUT) == []
    assert [type(watch) for watch in watches(mesh, [*placements]) or ()] == [PlacementWatch]
    assert [type(watch) for watch in watches(MESH_KINDS[".mesh tensor"]([0, 1]), placements) or ()] == [RankWatch]
    for kind in ("tensor", "array", "lists", "tuples"):
        assert watches(MESH_KINDS[kind]([0, 1]), placements) is None


def only_watch(mesh: Any, placements: Any) -> Watch:
    watching = watches(mesh, placements)
    assert watching is not None
    (watch,) = watching
    return watch


class OwnMesh:
    """A mesh of the caller's own class."""

    def __init__(self, ranks: list[Any]) -> None:
        self.mesh = torch.tensor(ranks)


def replace_ranks(mesh: OwnMesh) -> None:
    mesh.mesh = mesh.mesh.clone()


@pytest.mark.parametrize(
    "change",
    [
        lambda mesh: mesh.mesh.fill_(2),
        lambda mesh: mesh.mesh.t_(),
        lambda mesh: mesh.mesh.resize_(1, 4),
        lambda mesh: mesh.mesh.resize_(1, 2),
        lambda mesh: mesh.mesh.resize_(64, 64),
        lambda mesh: mesh.mesh.set_(torch.tensor([[0, 1], [2, 3]]).untyped_storage(), 0, (2, 2), (2, 1)),
        lambda mesh: mesh.mesh.data.__setitem__((0, 0), 3),
        lambda mesh: setattr(mesh.mesh, "data", mesh.mesh.view(torch.int32)[:, :2].contiguous()),
        lambda mesh: setattr(mesh.mesh, "data", mesh.mesh.view(torch.float64)),
        lambda mesh: delattr(mesh, "mesh"),
        replace_ranks,
    ],
)
def test_a_watch_sees_ranks_that_change(change: Callable[[OwnMesh], object]) -> None:
    mesh = OwnMesh([[0, 1], [2, 3]])
    watch = only_watch(mesh, ())
    assert watch.unchanged()
    assert watch.unchanged()
    change(mesh)
    assert not watch.unchanged()


@pytest.mark.parametrize("change", ["set_", ".data"])
def test_a_watch_sees_ranks_in_other_memory_while_the_earlier_memory_lives(change: str) -> None:
    mesh, other = OwnMesh([[0, 1], [2, 3]]), torch.tensor([[3, 1], [0, 2]])
    watch = only_watch(mesh, ())
    earlier = mesh.mesh.view(-1)
    if change == "set_":
        mesh.mesh.set_(other.untyped_storage(), 0, (2, 2), (2, 1))
    else:
        mesh.mesh.data = other
    assert earlier.tolist() == [0, 1, 2, 3]
    assert not watch.unchanged()


def test_a_watch_sees_placements_that_change() -> None:
    placements = [Shard(0), Replicate()]
    watch = only_watch(Mesh((2,), (0, 1)), placements)
    assert watch.unchanged()
    placements[1] = Shard(1)
    assert not watch.unchanged()
    placements[1:] = [Replicate(), Replicate()]
    assert not watch.unchanged()
