"""Meshes and layouts refuse bad values at birth."""

import copy
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from restripe.errors import InvalidPlacementError, LayoutError, ReshardError, UnsupportedPlacementError
from restripe.layout.mesh import Layout, Mesh, replica_groups, with_positive_dims
from restripe.layout.segmented import Segmented


class OwnShard(Shard):
    """A subclass, which may mean anything."""


class Other:
    """Another library's segmented shard."""

    def __init__(self, dim: int, sizes: Sequence[int]) -> None:
        self.dim, self.sizes = dim, sizes


@pytest.mark.requirement("RS-LAYOUT-1", "RS-ERROR-3", "RS-ERROR-13")
@pytest.mark.parametrize(
    ("shape", "ranks", "named"),
    [
        ((2, 2), (0, 1, 2), "(2, 2)"),
        ((2,), (0, 1, 2), "3"),
        ((0,), (), "at least one"),
        ((3,), (0, 1, 0), "(0)"),
        ((2,), (-1, 0), "-1"),
        ((-1, -1), (0,), "1 or more"),
        ((2,), (0, 1.5), "whole numbers"),
    ],
)
def test_a_mesh_needs_distinct_ranks_that_fill_its_shape(
    shape: tuple[int, ...], ranks: tuple[Any, ...], named: str
) -> None:
    with pytest.raises(LayoutError) as caught:
        Mesh(shape, ranks)
    assert named in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ReshardError)


@pytest.mark.requirement("RS-LAYOUT-1", "RS-ERROR-3")
@pytest.mark.parametrize("hosts", [("a",), ("a", "b", "c"), ("a", None), (0, 1.5), ()])
def test_a_mesh_knows_the_host_of_every_rank_or_of_none(hosts: Any) -> None:
    with pytest.raises(LayoutError, match="2 ranks"):
        Mesh((2,), (0, 1), hosts)


def test_meshes_on_other_hosts_are_other_keys_of_one_grid() -> None:
    bare, placed, moved = (Mesh((3,), (5, 2, 0), hosts) for hosts in (None, ("a", 1, "a"), ("a", 1, 1)))
    assert len({bare, placed, moved, Mesh((3,), (5, 2, 0), ("a", 1, "a"))}) == 3
    assert bare.is_grid_of(placed)
    assert not bare.is_grid_of(Mesh((3,), (2, 5, 0)))
    assert placed.by_host == {"a": (5, 0), 1: (2,)}
    assert [placed.host(rank) for rank in (0, 2, 5)] == ["a", 1, "a"]
    assert bare.by_host == {}
    assert bare.host(0) is None


@pytest.mark.requirement("RS-LAYOUT-1")
def test_a_mesh_takes_ranks_in_any_order_and_gives_each_its_coordinates() -> None:
    mesh = Mesh((2, 3), (7, 0, 4, 9, 2, 5))
    assert [mesh.coordinates(rank) for rank in mesh.ranks] == list(product(range(2), range(3)))
    assert mesh.coordinates(1) is None
    assert 9 in mesh
    assert 1 not in mesh


class Reference:
    """A mesh as the drop-in's callers pass it."""

    def __init__(self, ranks: torch.Tensor) -> None:
        self._mesh = ranks
        self.ndim = ranks.ndim


@pytest.mark.requirement("RS-UPSTREAM-2")
@pytest.mark.parametrize(
    "mesh", [[[3, 1], [0, 2]], torch.tensor([[3, 1], [0, 2]]), Reference(torch.tensor([[3, 1], [0, 2]]))]
)
def test_a_mesh_is_read_from_lists_tensors_and_objects(mesh: Any) -> None:
    assert Mesh.of(mesh) == Mesh((2, 2), (3, 1, 0, 2))
    assert torch.equal(Mesh.of(mesh).mesh, torch.tensor([[3, 1], [0, 2]]))


@pytest.mark.requirement("RS-ERROR-3")
@pytest.mark.parametrize("mesh", [[[0, 1], [2]], [0.0, 1.0], torch.tensor([True, False]), "mesh", None])
def test_anything_but_a_grid_of_ranks_is_a_layout_error(mesh: Any) -> None:
    with pytest.raises(LayoutError):
        Mesh.of(mesh)


def test_equal_meshes_are_one_key_and_order_matters() -> None:
    assert {Mesh((2,), (0, 1)): "here"}[Mesh((2,), (0, 1))] == "here"
    assert len({Mesh((2,), (0, 1)), Mesh((2,), (1, 0)), Mesh((2, 1), (0, 1)), Mesh((1, 2), (0, 1))}) == 4


@pytest.mark.requirement("RS-LAYOUT-4", "RS-ERROR-1", "RS-ERROR-9", "RS-ERROR-13")
@pytest.mark.parametrize("placement", [Partial(), OwnShard(0), None, "S(0)", 0])
@pytest.mark.parametrize("others", [(), (Replicate(),)])
def test_a_layout_takes_no_other_kind_of_placement(placement: Any, others: tuple[Placement, ...]) -> None:
    """Also where the number of placements is wrong: this fault stands first in the table of errors."""
    with pytest.raises(UnsupportedPlacementError) as caught:
        Layout(Mesh((2,), (0, 1)), (*others, placement))
    assert isinstance(caught.value, NotImplementedError)
    assert repr(placement) in str(caught.value)


@pytest.mark.requirement("RS-ERROR-3")
@pytest.mark.parametrize("placements", [(), (Shard(0),), (Shard(0), Replicate(), Replicate())])
def test_a_layout_has_one_placement_a_mesh_dim(placements: tuple[Placement, ...]) -> None:
    with pytest.raises(LayoutError) as caught:
        Layout(Mesh((2, 2), (0, 1, 2, 3)), placements)
    assert "(2, 2)" in str(caught.value)
    assert f"got {len(placements)}" in str(caught.value)


@pytest.mark.requirement("RS-LAYOUT-10", "RS-LAYOUT-11", "RS-ERROR-2")
@pytest.mark.parametrize("placement", [_StridedShard(0, split_factor=0), Other(0, ()), Other(0, (3, -1))])
def test_a_layout_refuses_pieces_and_segments_that_are_none(placement: Any) -> None:
    with pytest.raises(InvalidPlacementError):
        Layout(Mesh((2,), (0, 1)), (placement,))


@pytest.mark.requirement("RS-LAYOUT-11")
def test_a_segmented_shard_of_any_class_is_read_as_ours() -> None:
    ours = Layout(Mesh((2,), (0, 1)), (Segmented(0, (4, 2)),))
    theirs: Any = Other(0, [4, 2])
    other = Layout(Mesh((2,), (0, 1)), (theirs,))
    assert ours == other
    assert hash(ours) == hash(other)
    assert ours != Layout(Mesh((2,), (0, 1)), (Segmented(0, (2, 4)),))


@pytest.mark.requirement("RS-LAYOUT-4", "RS-LAYOUT-10", "RS-LAYOUT-11")
def test_layouts_that_count_from_either_end_are_one() -> None:
    mesh = Mesh((2, 2, 1, 1), (0, 1, 2, 3))
    last = Layout(mesh, (_StridedShard(-1, split_factor=2), Replicate(), Segmented(-2, (3, 1)), Shard(-1)))
    first = Layout(mesh, (_StridedShard(2, split_factor=2), Replicate(), Segmented(1, (3, 1)), Shard(2)))
    assert last != first
    assert with_positive_dims(last, 3) == first
    assert with_positive_dims(first, 3) is first
    with pytest.raises(InvalidPlacementError):
        with_positive_dims(last, 1)


def test_replica_groups_are_found_whatever_the_default_device() -> None:
    with torch.device("meta"):
        groups = replica_groups(Layout(Mesh((2, 2), (3, 1, 0, 2)), (Replicate(), Shard(0))))
    assert groups == ((3, 0), (1, 2))


def test_hashes_that_a_process_computed_do_not_go_to_another() -> None:
    """Hashes of None and of texts differ between processes; one that came along would make equal meshes unequal."""
    layout = Layout(Mesh((2,), (3, 1), hosts=("a", "b")), (Shard(0),))
    for value in (layout, layout.mesh):
        computed = hash(value)
        other = copy.copy(value)
        assert set(vars(other)) == {field.name for field in fields(value)}
        assert other == value
        assert hash(other) == computed
