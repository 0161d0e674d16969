"""Local tensors of unusual kinds: their values, and the differences that the suite sees."""

from __future__ import annotations

import pytest
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from reshard_conformance.case.sides import SIGNED_DTYPES, VIEW_DTYPES
from reshard_conformance.judge.oracle import Buffer, draw_bytes
from reshard_conformance.judge.tensor_kinds import interleave_tensors, make_buffer


def values(content: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return content.contiguous().flatten().view(dtype).reshape(content.shape[:-1])


def finite(dtype: torch.dtype) -> torch.Tensor:
    component = dtype.itemsize // (2 if dtype.is_complex else 1)
    content = draw_bytes((3, 4), dtype, 1).clone()
    content[..., component - 1 :: component] &= 0xBF
    return content


@pytest.mark.parametrize(
    ("memory", "name"), [(memory, name) for memory, names in VIEW_DTYPES.items() for name in names], ids=str
)
def test_a_lazy_view_has_the_values_of_its_content(memory: str, name: str) -> None:
    dtype = getattr(torch, name)
    content = finite(dtype)
    buffer = make_buffer(content, dtype, memory)
    assert buffer.tensor.is_conj() == (memory == "conjugate")
    assert buffer.tensor.is_neg() == (memory == "negative")
    assert torch.equal(buffer.tensor.resolve_conj().resolve_neg(), values(content, dtype))
    assert buffer.differences(None) == []


@pytest.mark.parametrize("memory", VIEW_DTYPES)
def test_values_written_through_a_lazy_view_are_compared_with_its_signs(memory: str) -> None:
    expected = finite(torch.complex64)
    buffer = make_buffer(torch.zeros_like(expected), torch.complex64, memory)
    assert buffer.differences(expected) != []
    buffer.tensor.copy_(values(expected, torch.complex64))
    assert buffer.differences(expected) == []
    buffer.memory.view(torch.complex64).copy_(values(expected, torch.complex64).flatten())
    assert buffer.differences(expected) != []  # the memory behind the view holds other signs


@pytest.mark.parametrize(("name", "differentiable"), [("float32", True), ("complex64", True), ("int32", False)])
def test_parameters_require_a_gradient_where_they_can(name: str, differentiable: bool) -> None:
    dtype = getattr(torch, name)
    tensor = make_buffer(draw_bytes((2,), dtype, 0), dtype, "parameter").tensor
    assert isinstance(tensor, torch.nn.Parameter)
    assert tensor.requires_grad == differentiable


def test_inference_tensors_are_compared_like_others() -> None:
    buffer = make_buffer(draw_bytes((5,), torch.int16, 0), torch.int16, "inference")
    assert buffer.tensor.is_inference()
    assert buffer.differences(None) == []
    with torch.inference_mode():
        buffer.tensor.zero_()
    assert buffer.differences(None) != []
    assert buffer.differences(torch.zeros(5, 2, dtype=torch.uint8)) == []


def make_pending(content: torch.Tensor) -> Buffer:
    buffer = make_buffer(content, torch.int32, "pending")
    assert isinstance(buffer.tensor, AsyncCollectiveTensor)
    return buffer


def test_a_pending_tensor_holds_something_else_until_it_is_waited_for() -> None:
    content = draw_bytes((6,), torch.int32, 0)
    buffer = make_pending(content)
    assert not (buffer.content == content).any()
    assert torch.equal(buffer.tensor.view(2, 3) + 0, values(content, torch.int32).view(2, 3))
    assert buffer.differences(None) == []


def test_a_pending_tensor_that_nobody_waits_for_has_no_differences() -> None:
    assert make_pending(draw_bytes((6,), torch.int32, 0)).differences(None) == []


@pytest.mark.parametrize("shapes", [((3, 2), (4,)), ((), (2, 2)), ((0,), (3,))])
def test_interleaved_tensors_alternate_and_are_compared_as_one(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    source, target = (draw_bytes(shape, torch.float32, call) for call, shape in enumerate(shapes))
    tensor, buffer = interleave_tensors(source, target, torch.float32)
    assert torch.equal(tensor.view(torch.int32), values(source, torch.int32))
    assert torch.equal(buffer.tensor.view(torch.int32), values(target, torch.int32))
    assert tensor.untyped_storage().data_ptr() == buffer.tensor.untyped_storage().data_ptr()
    assert buffer.differences(None) == []
    if tensor.numel():
        tensor.fill_(1)
        assert buffer.differences(None) == [f"{source.numel()} guard bytes around the view were written"]


def test_signed_dtypes_are_those_with_a_sign_bit() -> None:
    for name in SIGNED_DTYPES:
        dtype = getattr(torch, name)
        assert dtype.is_floating_point or dtype.is_complex
