"""golden against PyTorch's own DTensor: its peers' shards, and the expected result, come from distribute_tensor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

from reshard_golden import Side, reshard

from .layouts import SIZES, Layout, Mesh, Problem, layouts, problems, reference


@pytest.fixture(scope="module", autouse=True)
def fake_world() -> Iterator[None]:
    """Eight ranks of which this process is rank 0; it never sends a thing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


def seen_from(layout: Layout, rank: int) -> DeviceMesh:
    """Return the mesh with `rank` and 0 in each other's place, so that this process stands where `rank` does.

    It has no process groups: nothing is sent here, and torch keeps every group that was ever made.
    """
    names = {rank: 0, 0: rank}
    ranks = torch.tensor([names.get(r, r) for r in layout.ranks]).reshape(layout.mesh_shape)
    return DeviceMesh("cpu", ranks, _init_backend=False)


def torch_shard(whole: torch.Tensor, layout: Layout, rank: int) -> torch.Tensor:
    return distribute_tensor(whole, seen_from(layout, rank), layout.placements, src_data_rank=None).to_local()


class TorchPeers:
    """A communicator whose other ranks hold what DTensor says that they hold."""

    device = torch.device("cpu")

    def __init__(self, rank: int, size: int, whole: torch.Tensor, src: Layout) -> None:
        self.rank, self.size, self.whole, self.src = rank, size, whole, src
        self.bytes = 0

    def broadcast(self, buffer: torch.Tensor, root: int, stream: torch.cuda.Stream | None = None) -> None:
        shard = torch_shard(self.whole, self.src, root).contiguous().flatten().view(torch.uint8)
        assert buffer.shape == shard.shape
        assert root != self.rank or torch.equal(buffer, shard)
        buffer.copy_(shard)
        self.bytes += buffer.numel()


@settings(max_examples=1500, derandomize=True, deadline=None, database=None)
@given(problems(), st.integers(0, 7))
@pytest.mark.requirement("RS-LAYOUT-5", "RS-LAYOUT-6", "RS-EXACT-1")
def test_a_rank_gets_what_distribute_tensor_gives(problem: Problem, number: int) -> None:
    check_against_torch(problem, number)


@settings(max_examples=600, derandomize=True, deadline=None, database=None)
@given(problems(strided=True), st.integers(0, 7))
@pytest.mark.requirement("RS-LAYOUT-10")
def test_a_rank_gets_what_distribute_tensor_gives_of_strided_shards(problem: Problem, number: int) -> None:
    check_against_torch(problem, number)


def check_against_torch(problem: Problem, number: int) -> None:
    world_size, shape, src, dst = problem
    rank = dst.ranks[number % len(dst.ranks)]
    whole = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).reshape(shape)
    source = torch_shard(whole, src, rank) if rank in src.ranks else None
    expected = torch_shard(whole, dst, rank)
    result = torch.full_like(expected, -1)
    peers = TorchPeers(rank, world_size, whole, src)
    sides = [reference(shape, whole.dtype, local) for local in (source, result)]
    reshard(sides[0], Mesh(src.mesh), src.placements, sides[1], Mesh(dst.mesh), dst.placements, peers)
    assert torch.equal(result, expected)
    assert peers.bytes == whole.nbytes


@settings(max_examples=2000, derandomize=True, deadline=None, database=None)
@given(st.lists(st.sampled_from(SIZES), min_size=3, max_size=3), layouts(ndim=3, world_size=8), st.integers(0, 7))
@pytest.mark.requirement("RS-LAYOUT-5", "RS-LAYOUT-6", "RS-LAYOUT-7")
def test_shards_lie_where_torch_says(shape: list[int], layout: Layout, number: int) -> None:
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    side = Side("source", None, layout.mesh, layout.placements)
    # torch counts Shard(-3) and Shard(0) of one tensor as two dims here
    placements = [Shard(p.dim % 3) if isinstance(p, Shard) else p for p in layout.placements]
    rank, coordinate = list(side.members())[number % len(layout.ranks)]
    shard = side.shard(whole, coordinate)
    sizes, offsets = compute_local_shape_and_global_offset(tuple(shape), seen_from(layout, rank), placements)
    assert tuple(shard.shape) == tuple(sizes)
    if shard.numel():
        where = tuple(slice(low, low + size) for low, size in zip(offsets, sizes, strict=True))
        assert torch.equal(shard, whole[where])
