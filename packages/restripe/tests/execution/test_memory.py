"""Memory behind local tensors: aliases that keep every bit, stand-ins, buffers, and who shares elements with whom."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restripe.execution.memory import (
    Memory,
    allocate,
    extent,
    geometry,
    hand_back,
    overlaps_itself,
    readable,
    share_elements,
    writable,
)
from restripe.execution.program import Buffer, Span, View

from ..helpers.moves import bits, drawn
from ..helpers.views import LAZY, VIEWS

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
def test_sharing_is_found_whatever_the_default_device() -> None:
    memory = torch.zeros(12)
    with torch.device("meta"):
        assert share_elements(memory[::2], memory[2:9:3])
        assert not share_elements(memory[::2], memory[1::2])


@pytest.mark.requirement("RS-ERROR-8")
def test_dtypes_of_two_sizes_share_bytes() -> None:
    memory = torch.zeros(64, dtype=torch.uint8)
    wide, narrow = memory.view(torch.int32)[::2], memory[3::8]
    assert share_elements(wide, narrow)
    assert not share_elements(wide, memory[4::8])


def test_the_extent_spans_first_to_last_element() -> None:
    memory = torch.zeros(64, dtype=torch.int16)
    assert extent(memory[3:20:4]) == (memory.data_ptr() + 6, memory.data_ptr() + 2 * 20)
    assert extent(memory[5:5]) == (memory[5:5].data_ptr(),) * 2


def whole(tensor: torch.Tensor) -> View:
    """All elements of a tensor, as its memory's first."""
    lies = geometry(tensor)
    return View(0, 0, lies.sizes, lies.strides)


@pytest.mark.requirement("RS-EXACT-2", "RS-EXACT-7", "RS-EXACT-9")
@pytest.mark.parametrize("view", sorted(VIEWS.keys() - {"pending"}))
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.float64, torch.complex128], ids=str)
def test_an_alias_is_the_same_memory_as_integers(view: str, dtype: torch.dtype) -> None:
    tensor = VIEWS[view](drawn((2, 3, 1), dtype))
    memory = Memory(tensor)
    alias = memory.view(whole(tensor))
    assert alias.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    assert alias.data_ptr() == tensor.data_ptr()
    assert not alias.dtype.is_floating_point
    assert not alias.requires_grad
    assert not alias.is_inference()
    assert bits(alias) == bits(tensor)


@pytest.mark.requirement("RS-EXACT-7")
@pytest.mark.parametrize("view", sorted(VIEWS.keys() - {"pending"}))
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.complex128], ids=str)
def test_a_span_is_bytes_from_the_first_element_on(view: str, dtype: torch.dtype) -> None:
    tensor = VIEWS[view](drawn((2, 3, 1), dtype))
    size, last = tensor.element_size(), geometry(tensor).extent - tensor.element_size()
    for offset, element in ((0, tensor[0, 0, 0]), (last, tensor[1, 2, 0])):
        span = Memory(tensor).span(Span(0, offset, size))
        assert span.dtype == torch.uint8
        assert (span.shape, span.stride()) == ((size,), (1,))
        assert bytes(span.tolist()) == bits(element)


@pytest.mark.parametrize("strides", [(1,), (7,), (1, 13), (4, 1, 9)])
def test_the_span_of_one_element_whatever_its_strides(strides: tuple[int, ...]) -> None:
    memory = torch.arange(8, dtype=torch.int32)
    element = memory.as_strided((1,) * len(strides), strides, 5)
    span = Memory(element).span(Span(0, 0, geometry(element).extent))
    assert span.tolist() == [5, 0, 0, 0]


def test_a_view_counts_from_the_first_element_in_elements() -> None:
    memory = Memory(torch.arange(24, dtype=torch.int16).reshape(4, 6)[1:, 2:])
    assert memory.view(View(0, 6, (2, 3), (6, 1))).tolist() == [[14, 15, 16], [20, 21, 22]]
    halves = Memory(torch.tensor([0j, 3 + 4j], dtype=torch.complex128)[1:]).view(View(0, 0, (1, 2), (2, 1)))
    assert halves.view(torch.float64).tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
def test_a_buffer_has_room_for_its_elements_as_views_and_as_spans(itemsize: int) -> None:
    buffer = allocate(Buffer(7, 6, itemsize), torch.device("cpu"))
    memory = Memory(buffer)
    memory.span(Span(7, 0, 6 * itemsize)).copy_(drawn((6 * itemsize,), torch.uint8))
    rows = memory.view(View(7, 0, (2, 3), (3, 1)))
    assert rows.element_size() == itemsize
    assert rows.data_ptr() == buffer.data_ptr()
    assert bits(rows) == bits(drawn((6 * itemsize,), torch.uint8))


@pytest.mark.requirement("RS-EXACT-4", "RS-EXACT-8")
@pytest.mark.parametrize("kind", LAZY)
def test_a_lazy_source_is_read_by_value(kind: str) -> None:
    dtype, lazy = LAZY[kind]
    values = torch.nan_to_num(drawn((3, 2), dtype))
    tensor = readable(lazy(values))
    assert not tensor.is_conj()
    assert not tensor.is_neg()
    assert bits(Memory(tensor).view(whole(tensor))) == bits(values)


@pytest.mark.requirement("RS-EXACT-8")
@pytest.mark.parametrize("kind", LAZY)
def test_a_lazy_destination_is_written_by_value_at_the_end(kind: str) -> None:
    dtype, lazy = LAZY[kind]
    values, tensor = torch.nan_to_num(drawn((3, 2), dtype)), lazy(drawn((3, 2), dtype, seed=1))
    before = bits(tensor)
    stand_in = writable(tensor)
    Memory(stand_in).view(whole(stand_in)).copy_(Memory(values).view(whole(values)))
    assert bits(tensor) == before
    hand_back(tensor, stand_in)
    assert bits(tensor) == bits(values)


@pytest.mark.requirement("RS-EXACT-5", "RS-TRAFFIC-3")
@pytest.mark.parametrize("view", sorted(VIEWS.keys() - {"pending"}))
def test_only_a_lazy_tensor_is_stood_in_for(view: str) -> None:
    tensor = VIEWS[view](drawn((3, 2, 1), torch.float32))
    assert readable(tensor) is tensor
    assert writable(tensor) is tensor
    before = tensor._version if not tensor.is_inference() else 0
    hand_back(tensor, tensor)
    assert tensor.is_inference() or tensor._version == before
