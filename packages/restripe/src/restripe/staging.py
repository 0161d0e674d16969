"""Local tensors as plain memory: aliases of integer dtype that know which global region they hold, and staging buffers.

Data moves as bytes, so every dtype travels alike and every bit survives. An alias shares the tensor's storage and nothing
else: no autograd, no inference mode, no conj or neg bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, product

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from restripe.cuts import Intervals, Region, lengths

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def settle(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, once an asynchronous collective that still fills it has been waited for."""
    return tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as integers of its element size; 16-byte elements get a last dim of two."""
    size, stride, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    if tensor.element_size() == 16:
        size, stride, offset = (*size, 2), (*(2 * step for step in stride), 1), 2 * offset
    empty = torch.empty(0, dtype=_INTEGERS[tensor.element_size()], device=tensor.device)
    return empty.set_(tensor.untyped_storage(), offset, size, stride)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as flat uint8, without a copy."""
    # reshape(-1) would keep the stride of a single element, whatever it is, and a byte view needs stride 1.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


@dataclass(frozen=True)
class Shard:
    """Memory that holds a global region, dims in order."""

    memory: torch.Tensor
    region: Region

    def pieces(self, region: Region) -> list[torch.Tensor]:
        """Views of the part of the region, one a box, in the global row-major order that both ends of a message share."""
        return [self._box(box) for box in product(*region)]

    def _box(self, box: tuple[tuple[int, int], ...]) -> torch.Tensor:
        view = self.memory
        for dim, (owned, (lo, hi)) in enumerate(zip(self.region, box, strict=True)):
            view = view.narrow(dim, _offset(owned, lo), hi - lo)
        return view


def _offset(owned: Intervals, position: int) -> int:
    """Where a global position lies in the local dim."""
    before = accumulate((hi - lo for lo, hi in owned), initial=0)
    return next(start + position - lo for (lo, hi), start in zip(owned, before, strict=False) if lo <= position < hi)


def source(tensor: torch.Tensor, region: Region) -> Shard:
    """A source's shard; only a conj or neg view is copied first."""
    return Shard(alias(tensor.detach().resolve_conj().resolve_neg()), region)


class Destination:
    """A destination's shard, and the contiguous buffer that stands in for it until `finish`, where one is needed.

    A collective needs contiguous memory, and a conj or neg view has other bits than its values.
    """

    def __init__(self, tensor: torch.Tensor, region: Region, collective: bool) -> None:
        lazy = tensor.is_conj() or tensor.is_neg()
        self._tensor, self._buffer = tensor, None
        if lazy or (collective and not tensor.is_contiguous()):
            with torch.inference_mode(False):
                self._buffer = torch.empty(lengths(region), dtype=tensor.dtype, device=tensor.device)
        self.shard = Shard(alias(tensor if self._buffer is None else self._buffer), region)

    def finish(self) -> None:
        """Copy the buffer, if any, to where the caller wants it."""
        if self._buffer is None:
            return
        if self._tensor.is_conj() or self._tensor.is_neg():
            with torch.inference_mode():
                self._tensor.detach().copy_(self._buffer)
        else:
            alias(self._tensor).copy_(alias(self._buffer))


def packed(pieces: list[torch.Tensor]) -> torch.Tensor:
    """The pieces as flat bytes to send: their own memory where they are one contiguous piece, else a staging buffer."""
    if len(pieces) == 1 and pieces[0].is_contiguous():
        return flat_bytes(pieces[0])
    buffer = _buffer_for(pieces)
    for place, piece in zip(_split(buffer, pieces), pieces, strict=True):
        place.copy_(piece)
    return flat_bytes(buffer)


@dataclass(frozen=True)
class Landing:
    """Where a message lands: flat bytes to receive into, and the pieces to unpack it to (none where it lands in place)."""

    bytes: torch.Tensor
    pieces: list[torch.Tensor]

    def unpack(self) -> None:
        """Copy from the staging buffer to the pieces."""
        if self.pieces:
            for place, piece in zip(
                _split(self.bytes.view(self.pieces[0].dtype), self.pieces), self.pieces, strict=True
            ):
                piece.copy_(place)


def landing(pieces: list[torch.Tensor]) -> Landing:
    """A landing for the pieces: their own memory where they are one contiguous piece, else a staging buffer."""
    if len(pieces) == 1 and pieces[0].is_contiguous():
        return Landing(flat_bytes(pieces[0]), [])
    return Landing(flat_bytes(_buffer_for(pieces)), pieces)


def _buffer_for(pieces: list[torch.Tensor]) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.empty(sum(piece.numel() for piece in pieces), dtype=pieces[0].dtype, device=pieces[0].device)


def _split(buffer: torch.Tensor, pieces: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The parts of a flat buffer that belong to the pieces, in the pieces' sizes."""
    for part, piece in zip(torch.split_with_sizes(buffer, [piece.numel() for piece in pieces]), pieces, strict=True):
        yield part.view(piece.shape)


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The half-open range of byte addresses that the tensor's elements span; (0, 0) where it has none."""
    if not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether any byte belongs to elements of both; views that interleave without sharing do not."""
    (lo, hi), (begin, end) = extent(one), extent(other)
    if one.device != other.device or hi <= begin or end <= lo:
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
    starts = torch.tensor([tensor.data_ptr()], dtype=torch.int64)
    for stride, length in dims:
        starts = (starts.unsqueeze(-1) + torch.arange(length, dtype=torch.int64) * stride).flatten()
    return starts.sort().values, run
