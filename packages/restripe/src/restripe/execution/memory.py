"""Local tensors as plain memory: aliases of integer dtype, and which bytes tensors share.

Data moves as bytes, so every dtype travels alike and every bit survives. An alias shares the tensor's storage and nothing
else: no autograd, no inference mode (unless it is made in one).
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from restripe.execution.program import Buffer, Geometry, Span, View

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def settle(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, once an asynchronous collective that still fills it has been waited for."""
    return tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The source itself; of a conj or neg view, whose memory has other bits than its values, a copy."""
    return tensor.detach().resolve_conj().resolve_neg() if _is_lazy(tensor) else tensor


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """The destination itself; for a conj or neg view a stand-in, to be handed back."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) if _is_lazy(tensor) else tensor


def hand_back(tensor: torch.Tensor | None, written: torch.Tensor | None) -> None:
    """Bring to the destination what was written to its stand-in, if it has one."""
    if tensor is not None and written is not None and written is not tensor:
        with torch.inference_mode():  # so that an inference tensor can be written, and no history begins
            tensor.detach().copy_(written)


def _is_lazy(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def geometry(tensor: torch.Tensor) -> Geometry:
    """How the tensor lies in memory."""
    return Geometry.of(tensor.shape, tensor.stride(), tensor.element_size())


class Memory:
    """A tensor's storage from its first element on: views of integers and spans of bytes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage, self._device = tensor.untyped_storage(), tensor.device
        self._start = tensor.storage_offset() * tensor.element_size()
        self._integers = INTEGERS[min(tensor.element_size(), 8)]

    @cached_property
    def _bytes(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self._device).set_(self._storage)

    def view(self, view: View) -> torch.Tensor:
        """A strided piece."""
        first = self._start // self._integers.itemsize + view.offset
        empty = torch.empty(0, dtype=self._integers, device=self._device)
        return empty.set_(self._storage, first, view.sizes, view.strides)

    def span(self, span: Span) -> torch.Tensor:
        """Adjacent bytes."""
        return self._bytes.narrow(0, self._start + span.offset, span.length)


def allocate(buffer: Buffer, device: torch.device) -> torch.Tensor:
    """New memory on the current stream."""
    return torch.empty(buffer.elements, dtype=INTEGERS[buffer.itemsize], device=device)


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The half-open range of byte addresses that the tensor's elements span."""
    return tensor.data_ptr(), tensor.data_ptr() + geometry(tensor).extent


def share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether any byte belongs to elements of both; views that interleave without sharing do not."""
    (lo, hi), (begin, end) = extent(one), extent(other)
    if one.device != other.device or hi <= begin or end <= lo or lo == hi or begin == end:
        return False
    if one.is_contiguous() and other.is_contiguous():
        return True
    (starts, length), (others, other_length) = _runs(one), _runs(other)
    before = torch.searchsorted(others, starts + length)  # runs of the other that start before each of ours ends
    reach = others[(before - 1).clamp(min=0)] + other_length
    return bool(((before > 0) & (reach > starts)).any())


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of the tensor share memory, as after expand."""
    reach = 0
    for stride, size in sorted(
        (stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    ):
        if stride <= reach:
            starts, length = _runs(tensor)
            return bool((starts[1:] < starts[:-1] + length).any())
        reach += (size - 1) * stride
    return False


def _runs(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The first byte address of each run of adjacent elements, in ascending order, and the bytes of a run.

    Runs, not elements: a table of elements would be larger than the tensor.
    """
    size = tensor.element_size()
    dims = sorted(
        (stride * size, length) for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if length != 1
    )
    run = size
    while dims and dims[0][0] == run:
        run *= dims.pop(0)[1]
    starts = torch.tensor([tensor.data_ptr()], dtype=torch.int64, device="cpu")
    for stride, length in dims:
        starts = (starts.unsqueeze(-1) + torch.arange(length, dtype=torch.int64, device="cpu") * stride).flatten()
    return starts.sort().values, run
