"""Local tensors of unusual kinds that hold given values, and a check of the bytes around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from .moves import Maker, bits, random_tensor


def permuted(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values with the dims laid out in memory in reverse."""
    order = tuple(reversed(range(tensor.ndim)))
    return tensor.permute(order).contiguous().permute(order)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as every second element of a larger last dim."""
    wide = random_tensor((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), tensor.dtype, seed=91)
    return _filled(wide[..., 1::2], tensor)


def sliced(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as the inside of a tensor that is larger by one at both ends of every dim."""
    wide = random_tensor([size + 2 for size in tensor.shape], tensor.dtype, seed=92)
    view = wide
    for dim, size in enumerate(tensor.shape):
        view = view.narrow(dim, 1, size)
    return _filled(view, tensor)


def column(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values in a view at an odd offset, whose dims of size 1 have strides that no row-major tensor has."""
    strides = [13 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    wide = random_tensor((tensor.numel() + 14 * tensor.ndim + 3,), tensor.dtype, seed=93)
    return _filled(wide.as_strided(tensor.shape, strides, 3), tensor)


def parameter(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(tensor, requires_grad=tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def inference(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return tensor.clone()


def conjugate(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as a lazy conjugate of other memory."""
    return tensor.conj_physical().conj()


def negative(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as a lazy negation of other memory."""
    return torch._neg_view(tensor.neg())


def imaginary(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values as the imaginary part of a lazy conjugate: strided and lazily negated."""
    memory = torch.complex(torch.zeros_like(tensor), tensor.neg())
    return memory.conj().imag


def pending(tensor: torch.Tensor) -> torch.Tensor:
    return AsyncCollectiveTensor(tensor)


def _filled(view: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    view.copy_(values)
    return view


@contextmanager
def guarded(view: torch.Tensor | None) -> Iterator[None]:
    """Assert that what is written inside changes no byte of the view's memory but the view's own."""
    if view is None:
        yield
        return
    view = view.elem if isinstance(view, AsyncCollectiveTensor) else view
    memory = torch.empty(0, dtype=torch.uint8).set_(view.untyped_storage())
    before = memory.clone()
    yield
    size = view.element_size()
    of_view = torch.zeros_like(memory, dtype=torch.bool)
    of_view.as_strided(
        (*view.shape, size), (*(step * size for step in view.stride()), 1), view.storage_offset() * size
    )[...] = True
    assert bits(memory[~of_view]) == bits(before[~of_view])


VIEWS: dict[str, Maker] = {
    maker.__name__: maker for maker in (permuted, strided, sliced, column, parameter, inference, pending)
}
LAZY: dict[str, tuple[torch.dtype, Maker]] = {
    "conj complex64": (torch.complex64, conjugate),
    "conj complex128": (torch.complex128, conjugate),
    "neg float32": (torch.float32, negative),
    "neg complex64": (torch.complex64, negative),
    "neg int16": (torch.int16, negative),
    "conj and neg": (torch.complex128, lambda tensor: negative(conjugate(tensor))),
    "imag float32": (torch.float32, imaginary),
    "imag float64": (torch.float64, imaginary),
}
