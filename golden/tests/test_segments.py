"""golden and segmented shards, over threads; what each rank holds is counted out with lists of row numbers."""

from __future__ import annotations

from itertools import accumulate, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard, _StridedShard

from reshard_golden import reshard

from .layouts import Layout, Mesh, Segmented, reference
from .threads import Group, ThreadCommunicator, run

GRIDS = ((1,), (2,), (3,), (4,), (2, 2), (2, 3), (1, 4))
SEGMENTS = st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple)


def part(rows: list[int], parts: int, index: int) -> list[int]:
    step = -(-len(rows) // parts)
    return rows[index * step : (index + 1) * step]


def rows(layout: Layout, total: int, coordinate: tuple[int, ...]) -> list[int]:
    """The rows of a rank: its part of every segment, and whatever a later placement leaves of the list."""
    held = list(range(total))
    for placement, parts, index in zip(layout.placements, layout.mesh_shape, coordinate, strict=True):
        lists = [held]
        if isinstance(placement, Segmented):
            ends = list(accumulate(placement.sizes))
            lists = [held[end - size : end] for size, end in zip(placement.sizes, ends, strict=True)]
        if isinstance(placement, _StridedShard):
            lists = [part(held, 2, piece) for piece in range(2)]
        if not isinstance(placement, Replicate):
            held = [row for one in lists for row in part(one, parts, index)]
    return held


@st.composite
def sides(draw: st.DrawFn, segments: tuple[int, ...]) -> Layout:
    """Rows in segments over the first mesh dim, in whatever way over the second."""
    grid = draw(st.sampled_from(GRIDS))
    ranks = draw(st.permutations(range(6)))[: torch.Size(grid).numel()]
    later = (Shard(0), Shard(-2), Replicate(), _StridedShard(0, split_factor=2))
    first: list[Placement] = [Segmented(draw(st.sampled_from((0, -2))), segments)]
    return Layout(grid, tuple(ranks), tuple(first + [draw(st.sampled_from(later)) for _ in grid[1:]]))


def held(layout: Layout, whole: torch.Tensor, rank: int) -> torch.Tensor | None:
    coordinates = product(*map(range, layout.mesh_shape))
    places = dict(zip(layout.ranks, coordinates, strict=True))
    return whole[rows(layout, len(whole), places[rank])] if rank in places else None


@settings(max_examples=250, derandomize=True, deadline=None, database=None)
@given(st.data(), SEGMENTS, st.permutations(range(4)), st.booleans())
@pytest.mark.requirement("RS-LAYOUT-11")
def test_each_segment_is_cut_by_itself(
    data: st.DataObject, sizes: tuple[int, ...], order: list[int], swap: bool
) -> None:
    """From segments to others of the same rows, or the other way round."""
    others = tuple(sizes[place] for place in order if place < len(sizes))
    src, dst = data.draw(sides(others if swap else sizes)), data.draw(sides(sizes if swap else others))
    whole = torch.arange(sum(sizes) * 2, dtype=torch.int32).view(-1, 2)

    def body(communicator: ThreadCommunicator) -> None:
        source, expected = held(src, whole, communicator.rank), held(dst, whole, communicator.rank)
        result = None if expected is None else torch.full_like(expected, -1)
        tensors = [reference(tuple(whole.shape), whole.dtype, local) for local in (source, result)]
        group = Group(communicator)
        reshard(tensors[0], Mesh(src.mesh), src.placements, tensors[1], Mesh(dst.mesh), dst.placements, group)
        assert result is None or expected is None or torch.equal(result, expected)

    run(6, body)


@pytest.mark.requirement("RS-LAYOUT-11")
def test_a_fused_projection_by_hand() -> None:
    """Four query heads and one key and one value head, of two rows each, over two ranks."""
    layout = Layout((2,), (0, 1), (Segmented(0, (8, 2, 2)),))
    assert [rows(layout, 12, (index,)) for index in range(2)] == [[0, 1, 2, 3, 8, 10], [4, 5, 6, 7, 9, 11]]
