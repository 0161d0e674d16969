"""Local tensors of the kinds that callers really hand over: lazy views, Parameters, pending results, entwined views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch._C._distributed_c10d import Work, _register_work
from torch.distributed._functional_collectives import AsyncCollectiveTensor, wait_tensor

from reshard_conformance.oracle import CPU, POISON, Buffer, allocate, on, row_major

__all__ = ["entwine", "prepare"]


def prepare(content: torch.Tensor, dtype: torch.dtype, memory: str, device: torch.device = CPU) -> Buffer:
    """A buffer on the device whose tensor is of the kind `memory` and has this content (uint8, (*shape, itemsize))."""
    if memory == "inference":
        with torch.inference_mode():
            return allocate(content, dtype, memory, device=device)
    mask = sign_bits(dtype, memory)
    buffer = allocate(content if mask is None else content ^ mask, dtype, memory, device=device)
    if memory == "pending":
        return pending(buffer)
    return replace(buffer, tensor=dressed(buffer.tensor, memory), mask=mask)


def dressed(tensor: torch.Tensor, memory: str) -> torch.Tensor:
    if memory == "conjugate":
        return tensor.conj()
    if memory == "negative":
        return torch._neg_view(tensor)  # noqa: SLF001 - torch makes such views itself, as the imag of a conj
    if memory == "parameter":
        differentiable = tensor.is_floating_point() or tensor.is_complex()
        return torch.nn.Parameter(tensor, requires_grad=differentiable)
    return tensor


def sign_bits(dtype: torch.dtype, memory: str) -> torch.Tensor | None:
    """The bits by which an element's value differs from its memory: a view's signs; None where there are none."""
    if memory not in {"conjugate", "negative"}:
        return None
    mask = torch.zeros(dtype.itemsize, dtype=torch.uint8)
    mask[-1] = 0x80
    if dtype.is_complex and memory == "negative":
        mask[dtype.itemsize // 2 - 1] = 0x80
    return mask


class Late(Work):
    """A collective operation whose result comes when it is waited for."""

    def __init__(self, fill: Callable[[], object]) -> None:
        super().__init__()
        self.fill = fill

    def wait(self, _timeout: object = None) -> bool:
        self.fill()
        return True


def pending(buffer: Buffer) -> Buffer:
    """The same buffer, but its content arrives only when its tensor is waited for."""
    content = buffer.content.clone()
    buffer.content.bitwise_xor_(POISON)
    work = Late(lambda: buffer.content.copy_(content))
    _register_work(buffer.tensor, work)

    def settle() -> None:
        wait_tensor(buffer.tensor)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        del work.fill

    return replace(buffer, tensor=AsyncCollectiveTensor(buffer.tensor), settle=settle)


def entwine(
    source: torch.Tensor, target: torch.Tensor, dtype: torch.dtype, device: torch.device = CPU
) -> tuple[torch.Tensor, Buffer]:
    """Source and destination whose elements alternate in one memory; both contents are uint8 of shape (*shape, itemsize).

    The buffer is the destination's, and watches the source too.
    """
    size = dtype.itemsize
    most = max(source[..., 0].numel(), target[..., 0].numel())
    memory = torch.full((2 * most * size,), POISON if dtype != torch.bool else 1, dtype=torch.uint8)
    tensors, places = [], []
    for offset, content in enumerate((source, target)):
        shape = content.shape[:-1]
        strides = [2 * stride for stride in row_major(tuple(shape))]
        places.append(memory.as_strided(content.shape, [stride * size for stride in strides] + [1], offset * size))
        places[offset].copy_(content)
        tensors.append(memory.view(dtype).as_strided(shape, strides, offset))
    buffer = on(Buffer(memory, tensors[1], places[1], memory.clone()), device)
    return replace(buffer, tensor=tensors[0], content=places[0]).moved(buffer.memory).tensor, buffer
