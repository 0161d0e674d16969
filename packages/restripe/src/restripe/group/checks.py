"""Checks that one rank makes alone: what it passes, held against its plan, and its tensors against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import torch

from restripe.errors import (
    PRECEDENCE,
    AliasingError,
    DeviceError,
    DtypeError,
    MissingTensorError,
    ReshardError,
    ShapeError,
)
from restripe.execution.memory import overlaps_itself, share_elements
from restripe.group.inputs import SIDES, ResolvedItem
from restripe.layout.chunked import Region, lengths
from restripe.planning.plan import RankPlan


class TensorCheck(NamedTuple):
    """One side to check: the global shape and dtype that a reference declares, where it does, and the local tensor."""

    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    local: torch.Tensor | None


class TensorSpan(NamedTuple):
    """The bytes that a call reads or writes of one local tensor."""

    start: int
    length: int
    side: str
    name: str
    local: torch.Tensor

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.start + self.length


def first_fault(
    sides: Iterator[tuple[ResolvedItem, TensorCheck, TensorCheck]],
    plans: Sequence[RankPlan],
    memory_fault: ReshardError | None,
    rank: int,
    device: torch.device,
) -> ReshardError | None:
    """Return the fault that stands first in the table of errors, with this rank's number, or None.

    Args:
        sides: each item with its source and destination.
        plans: this rank's, one an item.
        memory_fault: see `find_memory_fault`.
        device: where the group's tensors live.
    """
    faults: list[ReshardError] = []
    for (item, src, dst), plan in zip(sides, plans, strict=False):
        try:
            check_item(item, plan, rank, device, src, dst)
        except ReshardError as error:
            faults.append(error)
    if memory_fault is not None:
        faults.append(memory_fault)
    return with_rank(rank, min(faults, key=lambda fault: PRECEDENCE.index(type(fault)))) if faults else None


def with_rank(rank: int, error: ReshardError) -> ReshardError:
    """Return the error with the rank that holds the fault named in front."""
    return type(error)(f"rank {rank}: {error}")


def check_item(
    item: ResolvedItem, plan: RankPlan, rank: int, device: torch.device, src: TensorCheck, dst: TensorCheck
) -> None:
    """Hold what this rank passes for an item against its plan, in the order of the table of errors."""
    sides = [("source", src, plan.source), ("destination", dst, plan.destination)]
    for side, tensor, region in sides:
        _check_present(item, side, tensor, region, rank)
    for side, tensor, _ in sides:
        if tensor.local is not None and not _same_device(tensor.local.device, device):
            raise DeviceError(
                f"{side} {item.name!r}: expected a tensor on {device}, got one on {tensor.local.device}; move it first"
            )
    for side, tensor, _ in sides:
        for dtype in (tensor.dtype, tensor.local.dtype if tensor.local is not None else None):
            if dtype not in (None, item.dtype):
                raise DtypeError(f"{side} {item.name!r}: expected {item.dtype}, got {dtype}; restripe does not cast")
    for side, tensor, region in sides:
        _check_shapes(item, side, tensor, region)
    if dst.local is not None and not plan.idle and overlaps_itself(dst.local):
        raise AliasingError(
            f"destination {item.name!r}: its own elements share memory (strides {dst.local.stride()}); "
            "pass a tensor of its own"
        )


def _check_present(item: ResolvedItem, side: str, tensor: TensorCheck, region: Region | None, rank: int) -> None:
    if region is not None and tensor.local is None:
        raise MissingTensorError(
            f"{side} {item.name!r}: rank {rank} is in its mesh and must pass a tensor of {lengths(region)}, got none"
        )
    if region is None and tensor.local is not None:
        raise MissingTensorError(
            f"{side} {item.name!r}: rank {rank} is not in its mesh and must pass None, got a tensor"
        )


def _same_device(device: torch.device, expected: torch.device) -> bool:
    return device.type == expected.type and expected.index in (None, device.index)


def _check_shapes(item: ResolvedItem, side: str, tensor: TensorCheck, region: Region | None) -> None:
    if tensor.shape not in (None, item.shape):
        raise ShapeError(
            f"{side} {item.name!r}: expected global shape {item.shape}, got {tensor.shape}; both sides and shape= must agree"
        )
    if tensor.local is not None and region is not None and tuple(tensor.local.shape) != lengths(region):
        raise ShapeError(
            f"{side} {item.name!r}: expected a local tensor of {lengths(region)} by its layout, got {tuple(tensor.local.shape)}; "
            "shards are cut as torch.chunk cuts"
        )


def find_memory_fault(
    items: Sequence[ResolvedItem], tensors: Sequence[torch.Tensor | None], extents: Sequence[tuple[int, int]]
) -> ReshardError | None:
    """Return the fault of tensors that have no memory, or of which a destination shares elements with another, or None.

    Args:
        tensors: source and destination of each item, in turn.
        extents: the bytes that each item's source and destination span; 0 where this rank touches none of them.
    """
    spans = [
        TensorSpan(local.data_ptr(), length, side, item.name, local)
        for item, *sides, lengths_ in zip(items, tensors[::2], tensors[1::2], extents, strict=True)
        for side, local, length in zip(SIDES, sides, lengths_, strict=True)
        if length and local is not None
    ]
    try:
        for span in spans:
            _check_allocated(span)
        _check_sharing(spans)
    except ReshardError as error:
        return error
    return None


def _check_sharing(spans: list[TensorSpan]) -> None:
    """Refuse a destination that shares elements with another tensor."""
    if len(spans) < 2 or not any(span.side == "destination" for span in spans):
        return
    spans.sort(key=attrgetter("start"))
    active: list[TensorSpan] = []
    end = 0
    for span in spans:
        active = [earlier for earlier in active if earlier.end > span.start] if end > span.start else []
        for earlier in active:
            if "destination" in (earlier.side, span.side) and share_elements(earlier.local, span.local):
                raise AliasingError(
                    f"{earlier.side} {earlier.name!r} and {span.side} {span.name!r} share elements; "
                    "pass tensors that do not overlap"
                )
        active.append(span)
        end = max(end, span.end)


def _check_allocated(span: TensorSpan) -> None:
    """Refuse a tensor without memory.

    FSDP frees parameters by resize_(0) on their storage, and a view of one would be read from nowhere, or grow it again. A fake tensor, or another subclass that stands for tensors elsewhere, has a storage of its size at no address.
    """
    before = span.local.storage_offset() * span.local.element_size()
    needed, available = before + span.length, span.local.untyped_storage().nbytes()
    if span.start in (0, before) and not span.local.is_meta:  # a meta tensor's fault is its device
        available = 0
    if available < needed:
        raise MissingTensorError(
            f"{span.side} {span.name!r}: expected a tensor with memory, got one of {needed} bytes over a storage of {available}; "
            "gather or allocate it first"
        )
