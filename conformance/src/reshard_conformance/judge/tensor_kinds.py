"""Local tensors of unusual kinds: lazy views, Parameters, inference tensors, pending results, interleaved views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch._C._distributed_c10d import Work, _register_work
from torch.distributed._functional_collectives import AsyncCollectiveTensor, wait_tensor

from reshard_conformance.judge.oracle import CPU, POISON, Buffer, allocate_buffer, row_major_strides, to_device

__all__ = ["interleave_tensors", "make_buffer"]


def make_buffer(content: torch.Tensor, dtype: torch.dtype, memory: str, device: torch.device = CPU) -> Buffer:
    """Return a buffer on the device whose tensor is of the kind `memory` and has this content.

    content: uint8 of shape (*shape, itemsize).
    """
    if memory == "inference":
        with torch.inference_mode():
            return allocate_buffer(content, dtype, memory, device=device)
    mask = sign_mask(dtype, memory)
    buffer = allocate_buffer(content if mask is None else content ^ mask, dtype, memory, device=device)
    if memory == "pending":
        return make_pending(buffer)
    return replace(buffer, tensor=wrap_tensor(buffer.tensor, memory), mask=mask)


def wrap_tensor(tensor: torch.Tensor, memory: str) -> torch.Tensor:
    if memory == "conjugate":
        return tensor.conj()
    if memory == "negative":
        return torch._neg_view(tensor)  # noqa: SLF001 - torch makes such views itself, as the imag of a conj
    if memory == "parameter":
        differentiable = tensor.is_floating_point() or tensor.is_complex()
        return torch.nn.Parameter(tensor, requires_grad=differentiable)
    return tensor


def sign_mask(dtype: torch.dtype, memory: str) -> torch.Tensor | None:
    """Return the sign bits that a lazy view flips in every element; None for other kinds of tensors."""
    if memory not in {"conjugate", "negative"}:
        return None
    mask = torch.zeros(dtype.itemsize, dtype=torch.uint8)
    mask[-1] = 0x80
    if dtype.is_complex and memory == "negative":
        mask[dtype.itemsize // 2 - 1] = 0x80
    return mask


class DeferredWork(Work):
    """A collective operation whose result arrives when it is waited for."""

    def __init__(self, fill: Callable[[], object]) -> None:
        super().__init__()
        self.fill = fill

    def wait(self, _timeout: object = None) -> bool:
        self.fill()
        return True


def make_pending(buffer: Buffer) -> Buffer:
    """Return the buffer with an AsyncCollectiveTensor, whose content arrives only when it is waited for."""
    content = buffer.content.clone()
    buffer.content.bitwise_xor_(POISON)
    work = DeferredWork(lambda: buffer.content.copy_(content))
    _register_work(buffer.tensor, work)

    def settle() -> None:
        wait_tensor(buffer.tensor)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        del work.fill

    return replace(buffer, tensor=AsyncCollectiveTensor(buffer.tensor), settle=settle)


def interleave_tensors(
    source: torch.Tensor, target: torch.Tensor, dtype: torch.dtype, device: torch.device = CPU
) -> tuple[torch.Tensor, Buffer]:
    """Return source and destination tensors whose elements alternate in one memory.

    source, target: their contents, uint8 of shape (*shape, itemsize).
    The buffer is the destination's; the source's elements are guard bytes of it.
    """
    size = dtype.itemsize
    longest = max(source[..., 0].numel(), target[..., 0].numel())
    memory = torch.full((2 * longest * size,), POISON if dtype != torch.bool else 1, dtype=torch.uint8)
    tensors, contents = [], []
    for offset, content in enumerate((source, target)):
        shape = content.shape[:-1]
        strides = [2 * stride for stride in row_major_strides(tuple(shape))]
        contents.append(memory.as_strided(content.shape, [stride * size for stride in strides] + [1], offset * size))
        contents[offset].copy_(content)
        tensors.append(memory.view(dtype).as_strided(shape, strides, offset))
    buffer = to_device(Buffer(memory, tensors[1], contents[1], memory.clone()), device)
    return replace(buffer, tensor=tensors[0], content=contents[0]).in_memory(buffer.memory).tensor, buffer
