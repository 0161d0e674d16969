"""The oracle against torch's own chunking, and buffers in which every wrong byte shows."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Shard

from reshard_conformance.case.files import DTYPES, MEMORIES, Case, CaseError, Side
from reshard_conformance.judge.oracle import (
    Truth,
    allocate_buffer,
    draw_bytes,
    expect_legal,
    poisoned_bytes,
    torch_chunk,
)

FLOATS = [name for name in DTYPES if "float" in name and name != "float8_e8m0fnu"]


def case(shape: tuple[int, ...], src: Side, dtype: str = "int64") -> Case:
    return Case(max(src.ranks) + 1, shape, dtype, src, Side((0,), ("R",)))


def rows(case: Case, rank: int) -> list[int]:
    """Return the indices of a 1-d tensor that the rank holds of the source."""
    truth = Truth(case, 0)
    shard = truth.shard(case.src, rank)
    assert shard is not None
    elements = [bytes(row.tolist()) for row in truth.global_bytes]
    return [elements.index(bytes(row.tolist())) for row in shard]


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 40), st.integers(1, 9), st.integers(0, 1))
def test_a_part_equals_the_shard_of_torch(length: int, parts: int, dim: int) -> None:
    tensor = torch.arange(length * 2).view((length, 2) if dim == 0 else (2, length))
    shards, _ = Shard(dim)._split_tensor(tensor, parts, with_padding=False, contiguous=False)
    for index in range(parts):
        assert torch.equal(
            torch_chunk(tensor, parts, dim, index), shards[index].reshape(torch_chunk(tensor, parts, dim, index).shape)
        )


@pytest.mark.parametrize(
    ("length", "parts", "sizes"), [(10, 4, [3, 3, 3, 1]), (5, 4, [2, 2, 1, 0]), (0, 3, [0, 0, 0]), (1, 2, [1, 0])]
)
def test_uneven_parts_follow_chunk(length: int, parts: int, sizes: list[int]) -> None:
    side = Side(tuple(range(parts)), ("S(0)",))
    assert [len(rows(case((length,), side), rank)) for rank in range(parts)] == sizes


def test_mesh_dims_cut_from_left_to_right() -> None:
    side = Side(((3, 1), (0, 2)), ("S(0)", "S(-1)"))
    assert [rows(case((5,), side), rank) for rank in (3, 1, 0, 2)] == [[0, 1], [2], [3], [4]]


def test_strided_shards_take_a_part_of_every_piece() -> None:
    side = Side((0, 1, 2, 3), ("SS(0,2)",))
    assert [rows(case((9,), side), rank) for rank in range(4)] == [[0, 1, 5], [2, 3, 6], [4, 7], [8]]
    later = Side(((0, 1), (2, 3)), ("SS(0,2)", "S(0)"))
    assert [rows(case((8,), later), rank) for rank in range(4)] == [[0, 1], [4, 5], [2, 3], [6, 7]]


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 40), st.sampled_from((1, 2, 3, 5, 40)), st.integers(1, 5))
def test_a_strided_shard_is_a_chunk_of_every_chunk(length: int, factor: int, parts: int) -> None:
    """Compare torch's split with the specification, counted with slices."""
    side, step = Side(tuple(range(parts)), (f"SS(0,{factor})",)), -(-length // factor)
    pieces = [list(range(length))[piece * step : (piece + 1) * step] for piece in range(factor)]
    for index in range(parts):
        steps = [-(-len(piece) // parts) for piece in pieces]
        held = [
            row
            for piece, width in zip(pieces, steps, strict=True)
            for row in piece[index * width : (index + 1) * width]
        ]
        assert rows(case((length,), side), index) == held


def test_segments_are_cut_each_by_itself() -> None:
    side = Side((0, 1), ("SG(-1,[4,0,3])",))
    assert [rows(case((7,), side), rank) for rank in range(2)] == [[0, 1, 4, 5], [2, 3, 6]]
    later = Side(((0, 1), (2, 3)), ("SG(0,[4,0,3])", "S(0)"))
    assert [rows(case((7,), later), rank) for rank in range(4)] == [[0, 1], [4, 5], [2, 3], [6]]


@st.composite
def shardings(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=2))
    ranks = draw(st.permutations(range(math.prod(sizes))))
    mesh = tuple(tuple(ranks[row * sizes[1] : (row + 1) * sizes[1]]) for row in range(sizes[0]))
    texts = draw(st.lists(st.sampled_from(["S(0)", "S(1)", "S(-1)", "SS(0,2)", "SG(0,[0,2])"]), min_size=2, max_size=2))
    rows = 2 if any(text.startswith("SG") for text in texts) else draw(st.integers(0, 7))
    shape = rows, draw(st.integers(0, 7))
    return case(shape, Side(mesh, tuple(texts)))


@settings(deadline=None, derandomize=True)
@given(shardings())
def test_shards_hold_every_element_once(case: Case) -> None:
    truth = Truth(case, 3)
    shards = [truth.shard(case.src, rank) for rank in case.src.ranks]
    held = Counter(bytes(row) for shard in shards if shard is not None for row in shard.reshape(-1, 8).tolist())
    assert held == Counter(bytes(row) for row in truth.global_bytes.reshape(-1, 8).tolist())


def test_a_rank_outside_the_mesh_has_no_shard() -> None:
    assert Truth(case((4,), Side((0, 2), ("S(0)",))), 0).shard(Side((0, 2), ("S(0)",)), 1) is None


@pytest.mark.parametrize("name", DTYPES)
def test_elements_are_distinct_where_the_dtype_is_wide_enough(name: str) -> None:
    dtype = getattr(torch, name)
    count = {1: 256, 2: 65536}.get(dtype.itemsize, 70000)
    content = draw_bytes((count,), dtype, 5)
    assert content.shape == (count, dtype.itemsize)
    if name == "bool":
        assert set(content.flatten().tolist()) == {0, 1}
    else:
        assert len(torch.unique(content, dim=0)) == count


@pytest.mark.parametrize("name", DTYPES)
def test_every_call_draws_anew_and_the_same_call_the_same(name: str) -> None:
    dtype = getattr(torch, name)
    calls = [draw_bytes((300,), dtype, call) for call in range(4)]
    assert torch.equal(calls[2], draw_bytes((300,), dtype, 2))
    for content, next_content in pairwise(calls):
        assert (content != next_content).any(-1).float().mean() > 0.3


def test_long_narrow_tensors_do_not_repeat_themselves() -> None:
    content = draw_bytes((4096,), torch.uint8, 0).flatten()
    assert (content[:-256] == content[256:]).float().mean() < 0.02


@pytest.mark.parametrize("name", FLOATS)
def test_nans_occur(name: str) -> None:
    values = draw_bytes((20000,), getattr(torch, name), 1).contiguous().view(getattr(torch, name)).float()
    assert values.isnan().any()


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 4), max_size=4).map(tuple), st.sampled_from(MEMORIES), st.sampled_from(DTYPES))
def test_a_buffer_has_the_strides_of_its_memory(shape: tuple[int, ...], memory: str, name: str) -> None:
    dtype = getattr(torch, name)
    content = draw_bytes(shape, dtype, 1)
    buffer = allocate_buffer(content, dtype, memory)
    assert buffer.tensor.shape == shape
    assert buffer.tensor.dtype == dtype
    assert torch.equal(buffer.content, content)
    if memory == "transposed":
        assert buffer.tensor.permute(tuple(reversed(range(len(shape))))).is_contiguous()
    if memory == "sliced":
        assert buffer.tensor.storage_offset() == sum(buffer.tensor.stride()) + (not shape)
        assert buffer.memory.nbytes == math.prod([size + 2 for size in shape] or [3]) * dtype.itemsize


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_buffer_filled_as_expected_has_no_differences(memory: str) -> None:
    content = draw_bytes((3, 4), torch.int16, 1)
    buffer = allocate_buffer(poisoned_bytes(content, torch.int16), torch.int16, memory)
    assert not buffer.differences(None)
    buffer.tensor.copy_(content.contiguous().view(torch.int16).view(3, 4))
    assert not buffer.differences(content)
    assert "12 of 12 elements differ, first at (0, 0)" in buffer.differences(None)[0]


@pytest.mark.parametrize("name", DTYPES)
def test_every_element_left_as_it_was_shows(name: str) -> None:
    dtype = getattr(torch, name)
    content = draw_bytes((5, 2), dtype, 1)
    differences = allocate_buffer(poisoned_bytes(content, dtype), dtype, "contiguous").differences(content)
    assert differences[0].startswith("10 of 10 elements differ")


def test_one_wrong_bit_shows_with_its_index() -> None:
    content = draw_bytes((3, 4), torch.float32, 1)
    buffer = allocate_buffer(content, torch.float32, "transposed")
    buffer.content[1, 2, 3] ^= 1
    assert "1 of 12 elements differ, first at (1, 2)" in buffer.differences(content)[0]


def test_a_guard_byte_that_changes_shows() -> None:
    content = draw_bytes((3, 4), torch.float32, 1)
    buffer = allocate_buffer(content, torch.float32, "sliced")
    buffer.memory[0] ^= 1
    buffer.memory[-1] ^= 1
    assert buffer.differences(content) == ["2 guard bytes around the view were written"]


def test_bools_stay_bools() -> None:
    content = draw_bytes((3, 4), torch.bool, 1)
    buffer = allocate_buffer(poisoned_bytes(content, torch.bool), torch.bool, "sliced")
    assert set(buffer.memory.tolist()) <= {0, 1}


@pytest.mark.parametrize(
    "src",
    [
        Side((0, 0), ("R",)),
        Side((0, 9), ("R",)),
        Side((0, -1), ("R",)),
        Side((0, 1), ()),
        Side((0, 1), ("S(1)",)),
        Side((0, 1), ("S(-2)",)),
        Side((0, 1), ("P(sum)",)),
        Side((0, 1), ("SS(1,2)",)),
        Side((0, 1), ("SG(-2,[4])",)),
        Side((0, 1), ("SG(0,[2,1])",)),
        Side(((0,), (1,)), ("S(0)", "SG(0,[4])")),
    ],
)
def test_equality_is_not_expected_of_an_illegal_layout(src: Side) -> None:
    with pytest.raises(CaseError, match="field 'expect': expected an error, for src has"):
        expect_legal(Case(2, (4,), "int8", src, Side((0,), ("R",))))
    Truth(Case(2, (4,), "int8", src, Side((0,), ("R",))), 0).shard(src, 0)  # its illegal parts are skipped
