"""Memory of local tensors: stand-ins for lazy views, geometry, and which tensors share elements."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restripe.execution.memory import (
    address_range,
    copy_to_lazy,
    geometry_of,
    has_lazy_bits,
    overlaps_itself,
    readable_source,
    share_elements,
    wait_if_pending,
    writable_destination,
)
from restripe.execution.program import Geometry

from ..helpers.address_transport import bytes_at
from ..helpers.moves import bits, random_tensor
from ..helpers.views import LAZY, VIEWS

ROOM = 200  # elements of the memory that random views are cut from


@st.composite
def views(draw: st.DrawFn, memory: torch.Tensor) -> torch.Tensor:
    """A view of the memory with any sizes, strides and offset, overlapping itself or not."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    strides = [draw(st.integers(0, 12)) for _ in shape]
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size)
    return memory.as_strided(shape, strides, draw(st.integers(0, max(0, ROOM - 1 - last))))


def elements(tensor: torch.Tensor) -> list[int]:
    """Return where each element lies in the memory, counted by brute force."""
    grid = torch.tensor(tensor.storage_offset())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        grid = grid.unsqueeze(-1) + stride * torch.arange(size)
    return list(map(int, grid.flatten().tolist()))


@pytest.mark.requirement("RS-ERROR-8", "RS-EXACT-11")
@settings(max_examples=600, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from([torch.int8, torch.float32, torch.complex128]))
def test_sharing_elements_is_found_exactly(data: st.DataObject, dtype: torch.dtype) -> None:
    memory = torch.zeros(ROOM, dtype=dtype)
    tensor, other = data.draw(views(memory)), data.draw(views(memory))
    assert share_elements(tensor, other) == bool(set(elements(tensor)) & set(elements(other)))
    assert overlaps_itself(tensor) == (len(set(elements(tensor))) < tensor.numel())


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


def test_the_address_range_spans_first_to_last_element() -> None:
    memory = torch.zeros(64, dtype=torch.int16)
    assert address_range(memory[3:20:4]) == (memory.data_ptr() + 6, memory.data_ptr() + 2 * 20)
    assert address_range(memory[5:5]) == (memory[5:5].data_ptr(),) * 2


@pytest.mark.requirement("RS-EXACT-2", "RS-EXACT-7", "RS-EXACT-9")
@pytest.mark.parametrize("view", sorted(VIEWS.keys() - {"pending"}))
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.float64, torch.complex128], ids=str)
def test_a_geometry_and_an_address_say_where_every_element_lies(view: str, dtype: torch.dtype) -> None:
    tensor = VIEWS[view](random_tensor((2, 3, 1), dtype))
    geometry = geometry_of(tensor)
    assert geometry == Geometry(tuple(tensor.shape), tensor.stride(), dtype.itemsize)
    low, high = address_range(tensor)
    assert low == tensor.data_ptr()
    assert high - low == geometry.extent
    strides = (*(stride * geometry.itemsize for stride in geometry.strides), 1)
    memory = bytes_at(low, high - low).as_strided((*geometry.sizes, geometry.itemsize), strides)
    assert bits(memory) == bits(tensor)


@pytest.mark.parametrize("strides", [(1,), (7,), (1, 13), (4, 1, 9)])
def test_one_element_spans_its_own_bytes_whatever_its_strides(strides: tuple[int, ...]) -> None:
    memory = torch.arange(8, dtype=torch.int32)
    low, high = address_range(memory.as_strided((1,) * len(strides), strides, 5))
    assert bytes_at(low, high - low).tolist() == [5, 0, 0, 0]


@pytest.mark.requirement("RS-EXACT-4", "RS-EXACT-8")
@pytest.mark.parametrize("kind", LAZY)
def test_a_lazy_source_is_read_by_value(kind: str) -> None:
    dtype, lazy = LAZY[kind]
    values = torch.nan_to_num(random_tensor((3, 2), dtype))
    tensor = lazy(values)
    readable = readable_source(tensor)
    assert has_lazy_bits(tensor)
    assert not has_lazy_bits(readable)
    assert bits(readable) == bits(values)
    assert not readable.requires_grad


@pytest.mark.requirement("RS-EXACT-8")
@pytest.mark.parametrize("kind", LAZY)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.enable_grad])
def test_a_lazy_destination_is_written_by_value_at_the_end(kind: str, mode: type) -> None:
    dtype, lazy = LAZY[kind]
    values = torch.nan_to_num(random_tensor((3, 2), dtype))
    with mode():
        tensor = lazy(random_tensor((3, 2), dtype, seed=1))
    before = bits(tensor)
    stand_in = writable_destination(tensor)
    assert not has_lazy_bits(stand_in)
    stand_in.copy_(values)
    assert bits(tensor) == before
    copy_to_lazy(tensor, stand_in)
    assert bits(tensor) == bits(values)
    assert tensor.grad_fn is None


@pytest.mark.requirement("RS-EXACT-5", "RS-TRAFFIC-3")
@pytest.mark.parametrize("view", sorted(VIEWS.keys() - {"pending"}))
def test_only_a_lazy_tensor_has_a_stand_in(view: str) -> None:
    tensor = VIEWS[view](random_tensor((3, 2, 1), torch.float32))
    assert not has_lazy_bits(tensor)
    assert readable_source(tensor) is tensor
    assert writable_destination(tensor) is tensor
    before = tensor._version if not tensor.is_inference() else 0
    copy_to_lazy(tensor, tensor)
    assert tensor.is_inference() or tensor._version == before
    copy_to_lazy(None, tensor)
    copy_to_lazy(tensor, None)


@pytest.mark.requirement("RS-EXACT-10")
def test_only_a_pending_tensor_is_waited_for() -> None:
    tensor = random_tensor((3, 2), torch.float32)
    assert wait_if_pending(tensor) is tensor
    waited = wait_if_pending(VIEWS["pending"](tensor))
    assert type(waited) is torch.Tensor
    assert waited.data_ptr() == tensor.data_ptr()
