"""Memory of local tensors: stand-ins for tensors with lazy bits, and which bytes tensors share."""

from __future__ import annotations

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from restripe.execution.program import Geometry


def wait_if_pending(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, once an asynchronous collective that still fills it has been waited for."""
    return tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def has_lazy_bits(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a conj or neg view, whose memory has other bits than its values."""
    return tensor.is_conj() or tensor.is_neg()


def readable_source(tensor: torch.Tensor) -> torch.Tensor:
    """Return the source itself, or a copy of a conj or neg view."""
    return tensor.detach().resolve_conj().resolve_neg() if has_lazy_bits(tensor) else tensor


def writable_destination(tensor: torch.Tensor) -> torch.Tensor:
    """Return the destination itself, or for a conj or neg view a stand-in, from which `copy_to_lazy` writes it."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) if has_lazy_bits(tensor) else tensor


def copy_to_lazy(destination: torch.Tensor | None, stand_in: torch.Tensor | None) -> None:
    """Write to a destination what its stand-in received, where it has one."""
    if destination is not None and stand_in is not None and stand_in is not destination:
        with torch.inference_mode():  # so that an inference tensor can be written, and no history begins
            destination.detach().copy_(stand_in)


def geometry_of(tensor: torch.Tensor) -> Geometry:
    """Return the sizes and strides of a tensor."""
    return Geometry(tuple(tensor.shape), tensor.stride(), tensor.element_size())


def address_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the half-open range of byte addresses that the tensor's elements span."""
    return tensor.data_ptr(), tensor.data_ptr() + geometry_of(tensor).extent


def share_elements(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether any byte belongs to elements of both; views that interleave without sharing do not."""
    (lo, hi), (other_lo, other_hi) = address_range(tensor), address_range(other)
    if tensor.device != other.device or hi <= other_lo or other_hi <= lo or lo == hi or other_lo == other_hi:
        return False
    if tensor.is_contiguous() and other.is_contiguous():
        return True
    (starts, length), (other_starts, other_length) = _adjacent_runs(tensor), _adjacent_runs(other)
    before = torch.searchsorted(other_starts, starts + length)  # runs of the other that start before each of ours ends
    ends = other_starts[(before - 1).clamp(min=0)] + other_length
    return bool(((before > 0) & (ends > starts)).any())


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Return whether two elements of the tensor share memory, as after expand."""
    extent = 0
    for stride, size in sorted(
        (stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1
    ):
        if stride <= extent:
            starts, length = _adjacent_runs(tensor)
            return bool((starts[1:] < starts[:-1] + length).any())
        extent += (size - 1) * stride
    return False


def _adjacent_runs(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the first byte address of each run of adjacent elements, in ascending order, and the bytes of a run.

    Runs, not elements: a table of elements would be larger than the tensor.
    """
    itemsize = tensor.element_size()
    dims = sorted(
        (stride * itemsize, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1
    )
    run = itemsize
    while dims and dims[0][0] == run:
        run *= dims.pop(0)[1]
    starts = torch.tensor([tensor.data_ptr()], dtype=torch.int64, device="cpu")
    for stride, size in dims:
        starts = (starts.unsqueeze(-1) + torch.arange(size, dtype=torch.int64, device="cpu") * stride).flatten()
    return starts.sort().values, run
