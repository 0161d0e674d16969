"""Memory behind local tensors: aliases that keep every bit, pieces, staging buffers, and who shares elements with whom."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restripe.staging import (
    Destination,
    Shard,
    alias,
    extent,
    flat_bytes,
    landing,
    overlaps_itself,
    packed,
    share_elements,
    source,
)

from .moves import bits, drawn
from .views import LAZY, VIEWS

SHARD = Shard(torch.arange(24).reshape(4, 6), (((10, 12), (20, 22)), ((3, 9),)))
ROOM = 200  # elements of the memory that random views are cut from


@st.composite
def views(draw: st.DrawFn, memory: torch.Tensor) -> torch.Tensor:
    """A view of the memory with any sizes, strides and offset, overlapping itself or not."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = [draw(st.integers(0, 12)) for _ in shape]
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size)
    return memory.as_strided(shape, strides, draw(st.integers(0, max(0, ROOM - 1 - reach))))


def elements(tensor: torch.Tensor) -> list[int]:
    """Where each element lies in the memory, counted by brute force."""
    grid = torch.tensor(tensor.storage_offset())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        grid = grid.unsqueeze(-1) + stride * torch.arange(size)
    return list(map(int, grid.flatten().tolist()))


@pytest.mark.requirement("RS-ERROR-8", "RS-EXACT-11")
@settings(max_examples=600, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from([torch.int8, torch.float32, torch.complex128]))
def test_sharing_elements_is_found_exactly(data: st.DataObject, dtype: torch.dtype) -> None:
    memory = torch.zeros(ROOM, dtype=dtype)
    one, other = data.draw(views(memory)), data.draw(views(memory))
    assert share_elements(one, other) == bool(set(elements(one)) & set(elements(other)))
    assert overlaps_itself(one) == (len(set(elements(one))) < one.numel())


@pytest.mark.requirement("RS-ERROR-8")
def test_dtypes_of_two_sizes_share_bytes() -> None:
    memory = torch.zeros(64, dtype=torch.uint8)
    wide, narrow = memory.view(torch.int32)[::2], memory[3::8]
    assert share_elements(wide, narrow)
    assert not share_elements(wide, memory[4::8])


def test_the_extent_spans_first_to_last_element() -> None:
    memory = torch.zeros(64, dtype=torch.int16)
    assert extent(memory[3:20:4]) == (memory.data_ptr() + 6, memory.data_ptr() + 2 * 20)
    assert extent(memory[5:5]) == (0, 0)


@pytest.mark.requirement("RS-EXACT-2", "RS-EXACT-7", "RS-EXACT-9")
@pytest.mark.parametrize("view", sorted(VIEWS.keys() - {"pending"}))
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.float64, torch.complex128], ids=str)
def test_an_alias_is_the_same_memory_as_integers(view: str, dtype: torch.dtype) -> None:
    tensor = VIEWS[view](drawn((2, 3, 1), dtype))
    memory = alias(tensor)
    assert memory.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    assert memory.data_ptr() == tensor.data_ptr()
    assert not memory.dtype.is_floating_point
    assert not memory.requires_grad
    assert not memory.is_inference()
    assert bits(memory) == bits(tensor)


@pytest.mark.parametrize("strides", [(1,), (7,), (1, 13), (4, 1, 9)])
def test_flat_bytes_of_one_element_whatever_its_strides(strides: tuple[int, ...]) -> None:
    memory = torch.arange(8, dtype=torch.int32)
    flat = flat_bytes(memory.as_strided((1,) * len(strides), strides, 5))
    assert flat.tolist() == [5, 0, 0, 0]
    assert flat.stride() == (1,)


def test_pieces_are_views_in_row_major_order_of_the_boxes() -> None:
    pieces = SHARD.pieces((((11, 12), (20, 21)), ((4, 6), (7, 9))))
    assert [piece.tolist() for piece in pieces] == [[[7, 8]], [[10, 11]], [[13, 14]], [[16, 17]]]
    assert all(piece.untyped_storage().data_ptr() == SHARD.memory.untyped_storage().data_ptr() for piece in pieces)


def test_the_region_of_a_tensor_without_dims_has_one_piece() -> None:
    (piece,) = Shard(torch.tensor(5), ()).pieces(())
    assert piece.item() == 5


@pytest.mark.requirement("RS-TRAFFIC-3")
def test_one_contiguous_piece_is_sent_and_received_in_place() -> None:
    pieces = SHARD.pieces((((11, 12), (20, 21)), ((3, 9),)))
    assert packed(pieces[:1]).data_ptr() == pieces[0].data_ptr()
    land = landing(pieces[:1])
    assert land.bytes.data_ptr() == pieces[0].data_ptr()
    assert land.pieces == []


def test_several_or_broken_pieces_are_packed_and_unpacked_in_order() -> None:
    region = (((10, 12), (20, 22)), ((4, 6),))
    memory = torch.zeros(4, 6, dtype=torch.int64)
    buffer, land = packed(SHARD.pieces(region)), landing(Shard(memory, SHARD.region).pieces(region))
    assert buffer.dtype == torch.uint8
    assert buffer.numel() == land.bytes.numel() == 8 * 8
    land.bytes.copy_(buffer)
    assert not memory.any()
    land.unpack()
    assert torch.equal(memory[:, 1:3], SHARD.memory[:, 1:3])
    assert memory.count_nonzero() == 8


@pytest.mark.requirement("RS-EXACT-4", "RS-EXACT-8")
@pytest.mark.parametrize("kind", LAZY)
def test_a_lazy_source_is_read_by_value(kind: str) -> None:
    dtype, lazy = LAZY[kind]
    values = torch.nan_to_num(drawn((3, 2), dtype))
    shard = source(lazy(values), (((0, 3),), ((0, 2),)))
    assert bits(shard.memory) == bits(values)


@pytest.mark.requirement("RS-EXACT-8")
@pytest.mark.parametrize("kind", LAZY)
def test_a_lazy_destination_is_written_by_value_at_the_end(kind: str) -> None:
    dtype, lazy = LAZY[kind]
    values, tensor = torch.nan_to_num(drawn((3, 2), dtype)), lazy(drawn((3, 2), dtype, seed=1))
    destination = Destination(tensor, (((0, 3),), ((0, 2),)), collective=False)
    destination.shard.memory.copy_(alias(values))
    destination.finish()
    assert bits(tensor) == bits(values)


@pytest.mark.requirement("RS-UPSTREAM-8", "RS-TRAFFIC-3")
@pytest.mark.parametrize(
    ("view", "collective", "in_place"),
    [("contiguous", True, True), ("permuted", False, True), ("permuted", True, False), ("column", True, False)],
)
def test_only_a_collective_on_noncontiguous_memory_needs_a_buffer(view: str, collective: bool, in_place: bool) -> None:
    tensor = VIEWS[view](drawn((4, 3), torch.int32)) if view in VIEWS else drawn((4, 3), torch.int32)
    if view == "column":
        tensor = tensor[:, ::2]
    destination = Destination(tensor, tuple(((0, size),) for size in tensor.shape), collective)
    assert (destination.shard.memory.data_ptr() == tensor.data_ptr()) == in_place
    assert destination.shard.memory.numel() == prod(tensor.shape)
