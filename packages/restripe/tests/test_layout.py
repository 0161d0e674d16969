"""Meshes and layouts refuse bad values at birth, and ownership is torch's."""

from itertools import product
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from restripe.cuts import lengths
from restripe.errors import InvalidPlacementError, LayoutError, ReshardError, UnsupportedPlacementError
from restripe.layout import Layout, Mesh, Partition, replica_groups, shard_dims

SIZES = [12, 8, 1, 0, 2, 3, 5, 7, 13]


class OwnShard(Shard):
    """A subclass may mean anything."""


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


@pytest.mark.requirement("RS-LAYOUT-1")
def test_a_mesh_takes_ranks_in_any_order_and_gives_each_its_coordinates() -> None:
    mesh = Mesh((2, 3), (7, 0, 4, 9, 2, 5))
    assert [mesh.coordinates(rank) for rank in mesh.ranks] == list(product(range(2), range(3)))
    assert mesh.coordinates(1) is None
    assert 9 in mesh
    assert 1 not in mesh


class Reference:
    """What the drop-in's callers pass as a mesh."""

    def __init__(self, ranks: torch.Tensor) -> None:
        self._mesh = ranks
        self.ndim = ranks.ndim


@pytest.mark.requirement("RS-UPSTREAM-2")
@pytest.mark.parametrize(
    "mesh", [[[3, 1], [0, 2]], torch.tensor([[3, 1], [0, 2]]), Reference(torch.tensor([[3, 1], [0, 2]]))]
)
def test_a_mesh_is_read_from_what_callers_have(mesh: Any) -> None:
    assert Mesh.of(mesh) == Mesh((2, 2), (3, 1, 0, 2))
    assert torch.equal(Mesh.of(mesh).mesh, torch.tensor([[3, 1], [0, 2]]))


@pytest.mark.requirement("RS-ERROR-3")
@pytest.mark.parametrize("mesh", [[[0, 1], [2]], [0.0, 1.0], torch.tensor([True, False]), "mesh", None])
def test_what_is_no_grid_of_ranks_is_a_layout_error(mesh: Any) -> None:
    with pytest.raises(LayoutError):
        Mesh.of(mesh)


def test_equal_meshes_are_one_key_and_order_matters() -> None:
    assert {Mesh((2,), (0, 1)): "here"}[Mesh((2,), (0, 1))] == "here"
    assert len({Mesh((2,), (0, 1)), Mesh((2,), (1, 0)), Mesh((2, 1), (0, 1)), Mesh((1, 2), (0, 1))}) == 4


@pytest.mark.requirement("RS-LAYOUT-4", "RS-ERROR-1", "RS-ERROR-9", "RS-ERROR-13")
@pytest.mark.parametrize("placement", [Partial(), _StridedShard(0, split_factor=2), OwnShard(0), None, "S(0)", 0])
@pytest.mark.parametrize("others", [(), (Replicate(),)])
def test_a_layout_takes_shard_and_replicate_only(placement: Any, others: tuple[Placement, ...]) -> None:
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


@pytest.mark.requirement("RS-ERROR-2", "RS-ERROR-13")
@pytest.mark.parametrize(("dim", "shape"), [(2, (4, 4)), (-3, (4, 4)), (0, ()), (-1, ())])
def test_a_shard_dim_that_the_tensor_lacks_is_an_invalid_placement(dim: int, shape: tuple[int, ...]) -> None:
    layout = Layout(Mesh((2,), (0, 1)), (Shard(dim),))
    with pytest.raises(InvalidPlacementError) as caught:
        Partition(layout, shape)
    assert isinstance(caught.value, ValueError)
    assert not isinstance(caught.value, LayoutError)
    assert f"tensor dim {dim}" in str(caught.value)


@pytest.mark.requirement("RS-LAYOUT-4")
def test_a_negative_shard_dim_counts_from_the_last() -> None:
    assert shard_dims((Shard(-1), Replicate(), Shard(-3), Shard(1)), 3) == (2, None, 0, 1)


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    shape = tuple(draw(st.lists(st.sampled_from(SIZES), max_size=4)))
    dims = st.sampled_from([None, *range(-len(shape), len(shape))])
    placements = tuple(Replicate() if dim is None else Shard(dim) for dim in (draw(dims) for _ in mesh))
    ranks = tuple(draw(st.permutations(range(prod(mesh)))))
    return Partition(Layout(Mesh(mesh, ranks), placements), shape)


def chunked(partition: Partition, coordinates: tuple[int, ...]) -> torch.Tensor:
    """The elements that a rank owns, by their global numbers: torch.chunk, mesh dims left to right."""
    local = torch.arange(prod(partition.shape)).reshape(partition.shape)
    for size, index, placement in zip(partition.mesh.shape, coordinates, partition.layout.placements, strict=True):
        if isinstance(placement, Shard):
            pieces = local.chunk(size, placement.dim)
            local = pieces[index] if index < len(pieces) else local.narrow(placement.dim, 0, 0)
    return local


@pytest.mark.requirement("RS-LAYOUT-5", "RS-LAYOUT-6", "RS-LAYOUT-7", "RS-LAYOUT-8")
@settings(max_examples=400, deadline=None, derandomize=True)
@given(partitions())
def test_a_rank_owns_what_sequential_chunks_leave_it(partition: Partition) -> None:
    whole = torch.arange(prod(partition.shape)).reshape(partition.shape)
    for rank in partition.mesh.ranks:
        region, coordinates = partition.region(rank), partition.mesh.coordinates(rank)
        assert region is not None
        assert coordinates is not None
        expected = chunked(partition, coordinates)
        assert lengths(region) == tuple(expected.shape)
        if expected.numel():
            box = tuple(slice(*interval) for (interval,) in region)
            assert torch.equal(whole[box], expected)


@pytest.mark.requirement("RS-LAYOUT-5", "RS-LAYOUT-6")
@settings(max_examples=400, deadline=None, derandomize=True)
@given(partitions())
def test_a_rank_owns_what_torch_says_it_owns(partition: Partition) -> None:
    """Nonempty shards only: torch gives the offset of an empty one another meaning in every release."""
    placements = [
        Shard(p.dim % len(partition.shape)) if isinstance(p, Shard) else p for p in partition.layout.placements
    ]
    for rank in partition.mesh.ranks:
        region, coordinates = partition.region(rank), partition.mesh.coordinates(rank)
        assert region is not None
        assert coordinates is not None
        sizes, offsets = _compute_local_shape_and_global_offset(
            partition.shape, partition.mesh.shape, list(coordinates), placements
        )
        assert lengths(region) == tuple(sizes)
        if prod(sizes):
            assert tuple(intervals[0][0] for intervals in region) == tuple(offsets)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(partitions())
def test_the_offsets_of_a_place_lead_back_to_its_rank(partition: Partition) -> None:
    for index, rank in enumerate(partition.mesh.ranks):
        place = partition.place(rank)
        assert place is not None
        assert partition.shard_offset(place.shard) + partition.replica_offset(place.replica) == index
    assert partition.place(len(partition.mesh.ranks)) is None
    assert partition.region(len(partition.mesh.ranks)) is None


@pytest.mark.requirement("RS-UPSTREAM-6", "RS-UPSTREAM-12")
@settings(max_examples=200, deadline=None, derandomize=True)
@given(partitions())
def test_a_replica_group_lists_the_ranks_of_one_shard_by_replica(partition: Partition) -> None:
    by_shard: dict[Any, list[int]] = {}
    for rank in partition.mesh.ranks:
        place = partition.place(rank)
        assert place is not None
        members = by_shard.setdefault(place.shard, [])
        assert place.replica == len(members)
        members.append(rank)
    groups = {members for members in map(tuple, by_shard.values()) if len(members) > 1}
    assert set(replica_groups(partition.layout)) == groups
