"""Ownership is torch's: which rank holds what, for every kind of placement."""

from itertools import accumulate, pairwise
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from restripe.errors import InvalidPlacementError, LayoutError, ShapeError
from restripe.layout.chunked import ChunkedDim, lengths
from restripe.layout.mesh import Layout, Mesh, replica_groups
from restripe.layout.partition import Partition
from restripe.layout.segmented import Segmented

SIZES = [12, 8, 1, 0, 2, 3, 5, 7, 13]


@pytest.mark.requirement("RS-ERROR-2", "RS-ERROR-13")
@pytest.mark.parametrize(("dim", "shape"), [(2, (4, 4)), (-3, (4, 4)), (0, ()), (-1, ())])
def test_a_shard_dim_that_the_tensor_lacks_is_an_invalid_placement(dim: int, shape: tuple[int, ...]) -> None:
    layout = Layout(Mesh((2,), (0, 1)), (Shard(dim),))
    with pytest.raises(InvalidPlacementError) as caught:
        Partition(layout, shape)
    assert isinstance(caught.value, ValueError)
    assert not isinstance(caught.value, LayoutError)
    assert f"tensor dim {dim}" in str(caught.value)


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


def pieces(local: torch.Tensor, placement: Placement, dim: int) -> list[torch.Tensor]:
    """What is left of a tensor, as a placement divides it before its mesh dim cuts."""
    if isinstance(placement, Segmented):
        ends = accumulate(placement.sizes, initial=0)
        return [local.narrow(dim, lo, hi - lo) for lo, hi in pairwise(ends)]
    return list(local.chunk(int(placement.split_factor), dim)) if isinstance(placement, _StridedShard) else [local]


def woven(partition: Partition, coordinates: tuple[int, ...]) -> torch.Tensor:
    """The elements that a rank owns by their global numbers: of every piece its torch.chunk, one after another."""
    local = torch.arange(prod(partition.shape)).reshape(partition.shape)
    for size, index, placement in zip(partition.mesh.shape, coordinates, partition.layout.placements, strict=True):
        if not isinstance(placement, Replicate):
            dim = placement.dim  # type: ignore[attr-defined]
            chunks = [piece.chunk(size, dim) for piece in pieces(local, placement, dim)]
            local = torch.cat([each[index] if index < len(each) else each[0].narrow(dim, 0, 0) for each in chunks], dim)
    return local


@st.composite
def woven_partitions(draw: st.DrawFn) -> Partition:
    """Some tensor dim in segments first; every other mesh dim replicates, or shards plainly or strided."""
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    shape = draw(st.lists(st.sampled_from([12, 8, 1, 0, 3, 9, 16, 17]), min_size=1, max_size=3))
    dims = st.integers(-len(shape), len(shape) - 1)
    shards = [st.builds(Shard, dims), st.builds(_StridedShard, dims, split_factor=st.sampled_from([2, 1, 3, 4, 20]))]
    placements = [draw(st.one_of(st.just(Replicate()), *shards)) for _ in mesh]
    if draw(st.booleans()):
        segments = draw(st.lists(st.integers(0, 7), min_size=1, max_size=4))
        shape[0], placements[0] = sum(segments), Segmented(0, tuple(segments))
    ranks = tuple(draw(st.permutations(range(prod(mesh)))))
    return Partition(Layout(Mesh(mesh, ranks), tuple(placements)), tuple(shape))


FSDP = Layout(Mesh((4, 2), tuple(range(8))), (_StridedShard(0, split_factor=2), Shard(0)))


@pytest.mark.requirement("RS-LAYOUT-10", "RS-LAYOUT-11")
@settings(max_examples=400, deadline=None, derandomize=True)
@given(woven_partitions())
@example(Partition(FSDP, (9, 2)))
@example(Partition(FSDP, (16, 2)))
def test_a_rank_owns_its_chunk_of_every_piece(partition: Partition) -> None:
    whole = torch.arange(prod(partition.shape)).reshape(partition.shape)
    for rank in partition.mesh.ranks:
        region, coordinates = partition.region(rank), partition.mesh.coordinates(rank)
        assert region is not None
        assert coordinates is not None
        local = whole
        for dim, intervals in enumerate(region):
            local = local.index_select(dim, torch.tensor([n for lo, hi in intervals for n in range(lo, hi)]).long())
        assert torch.equal(local, woven(partition, coordinates))


@pytest.mark.requirement("RS-LAYOUT-10")
@settings(max_examples=200, deadline=None, derandomize=True)
@given(woven_partitions())
def test_a_strided_shard_has_the_sizes_that_torch_says(partition: Partition) -> None:
    placements = [_from_first(p, len(partition.shape)) for p in partition.layout.placements]
    if any(isinstance(placement, Segmented) for placement in placements):
        return
    for rank in partition.mesh.ranks:
        region, coordinates = partition.region(rank), partition.mesh.coordinates(rank)
        assert region is not None
        assert coordinates is not None
        sizes, _ = _compute_local_shape_and_global_offset(
            partition.shape, partition.mesh.shape, list(coordinates), placements
        )
        assert lengths(region) == tuple(sizes)


def _from_first(placement: Any, ndim: int) -> Any:
    if isinstance(placement, _StridedShard):
        return _StridedShard(placement.dim % ndim, split_factor=placement.split_factor)
    return Shard(placement.dim % ndim) if isinstance(placement, Shard) else placement


@pytest.mark.requirement("RS-LAYOUT-10")
def test_what_plain_shards_can_do_is_planned_as_such() -> None:
    """FSDP over tensor parallelism cuts by the second mesh dim first, where all divides."""
    assert Partition(FSDP, (16, 3)).cuts == (ChunkedDim(16, (2, 4)), ChunkedDim(3, ()))
    assert Partition(FSDP, (16, 3)).dims == ((1, 0), ())
    assert not isinstance(Partition(FSDP, (17, 3)).cuts[0], ChunkedDim)


@pytest.mark.requirement("RS-LAYOUT-11", "RS-ERROR-7")
def test_segments_have_to_add_up_to_their_dim() -> None:
    layout = Layout(Mesh((2,), (0, 1)), (Segmented(1, (4, 2)),))
    assert Partition(layout, (5, 6)).region(1) == (((0, 5),), ((2, 4), (5, 6)))
    with pytest.raises(ShapeError, match="6 elements in all, but tensor dim 1 has 7"):
        Partition(layout, (5, 7))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(partitions() | woven_partitions())
def test_the_offsets_of_a_place_lead_back_to_its_rank(partition: Partition) -> None:
    for index, rank in enumerate(partition.mesh.ranks):
        position = partition.position(rank)
        assert position is not None
        shard = partition.shard_offset(position.shard)
        assert shard + partition.replica_offset(position.replica) == index
        assert partition.holds(rank, shard)
        assert not partition.holds(rank, shard + 1)
    assert partition.position(len(partition.mesh.ranks)) is None
    assert partition.region(len(partition.mesh.ranks)) is None


@pytest.mark.requirement("RS-UPSTREAM-6", "RS-UPSTREAM-12")
@settings(max_examples=200, deadline=None, derandomize=True)
@given(partitions() | woven_partitions())
def test_a_replica_group_lists_the_ranks_of_one_shard_by_replica(partition: Partition) -> None:
    by_shard: dict[Any, list[int]] = {}
    for rank in partition.mesh.ranks:
        position = partition.position(rank)
        assert position is not None
        members = by_shard.setdefault(position.shard, [])
        assert position.replica == len(members)
        members.append(rank)
    groups = {members for members in map(tuple, by_shard.values()) if len(members) > 1}
    assert set(replica_groups(partition.layout)) == groups
