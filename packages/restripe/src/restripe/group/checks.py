"""The checks that one rank can make alone: what it passes, held against its plan and against each other."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import torch

from restripe.errors import AliasingError, DeviceError, DtypeError, MissingTensorError, ShapeError
from restripe.execution.memory import overlaps_itself, share_elements
from restripe.group.inputs import SIDES, Whole
from restripe.layout.chunked import Region, lengths
from restripe.planning.plan import RankPlan


class Given(NamedTuple):
    """One side as a caller passes it: the global shape and dtype where they can be read, and the local tensor."""

    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    local: torch.Tensor | None


def check(item: Whole, plan: RankPlan, rank: int, device: torch.device, src: Given, dst: Given) -> None:
    """Hold what this rank passes against its plan, in the order of the table of errors."""
    sides = [("source", src, plan.source), ("destination", dst, plan.destination)]
    for side, given, region in sides:
        _check_present(item, side, given, region, rank)
    for side, given, _ in sides:
        if given.local is not None and not _same_device(given.local.device, device):
            raise DeviceError(
                f"{side} {item.name!r}: expected a tensor on {device}, got one on {given.local.device}; move it first"
            )
    for side, given, _ in sides:
        for dtype in (given.dtype, given.local.dtype if given.local is not None else None):
            if dtype not in (None, item.dtype):
                raise DtypeError(f"{side} {item.name!r}: expected {item.dtype}, got {dtype}; restripe does not cast")
    for side, given, region in sides:
        _check_shapes(item, side, given, region)
    if dst.local is not None and not plan.idle and overlaps_itself(dst.local):
        raise AliasingError(
            f"destination {item.name!r}: its own elements share memory (strides {dst.local.stride()}); "
            "pass a tensor of its own"
        )


def _check_present(item: Whole, side: str, given: Given, region: Region | None, rank: int) -> None:
    if region is not None and given.local is None:
        raise MissingTensorError(
            f"{side} {item.name!r}: rank {rank} is in its mesh and must pass a tensor of {lengths(region)}, got none"
        )
    if region is None and given.local is not None:
        raise MissingTensorError(
            f"{side} {item.name!r}: rank {rank} is not in its mesh and must pass None, got a tensor"
        )


def _same_device(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and other.index in (None, one.index)


def _check_shapes(item: Whole, side: str, given: Given, region: Region | None) -> None:
    if given.shape not in (None, item.shape):
        raise ShapeError(
            f"{side} {item.name!r}: expected global shape {item.shape}, got {given.shape}; both sides and shape= must agree"
        )
    if given.local is not None and region is not None and tuple(given.local.shape) != lengths(region):
        raise ShapeError(
            f"{side} {item.name!r}: expected a local tensor of {lengths(region)} by its layout, got {tuple(given.local.shape)}; "
            "shards are cut as torch.chunk cuts"
        )


def check_memory(
    items: Sequence[Whole], tensors: Sequence[torch.Tensor | None], reaches: Sequence[tuple[int, int]]
) -> None:
    """Refuse tensors whose memory has been freed, and those of one call of which a destination shares elements with another.

    Args:
        tensors: source and destination of each item, in turn.
        reaches: the bytes that each item's source and destination span; 0 where this rank touches none of them.
    """
    spans = [
        (local.data_ptr(), length, side, item.name, local)
        for item, *sides, reach in zip(items, tensors[::2], tensors[1::2], reaches, strict=True)
        for side, local, length in zip(SIDES, sides, reach, strict=True)
        if length and local is not None
    ]
    for start, length, side, name, local in spans:
        _check_allocated(local, start, length, side, name)
    if len(spans) < 2 or not any(span[2] == "destination" for span in spans):
        return
    spans.sort(key=itemgetter(0))
    active: list[tuple[int, int, str, str, torch.Tensor]] = []
    end = 0
    for span in spans:
        active = [one for one in active if one[0] + one[1] > span[0]] if end > span[0] else []
        for one in active:
            if "destination" in (one[2], span[2]) and share_elements(one[4], span[4]):
                raise AliasingError(
                    f"{one[2]} {one[3]!r} and {span[2]} {span[3]!r} share elements; pass tensors that do not overlap"
                )
        active.append(span)
        end = max(end, span[0] + span[1])


def _check_allocated(local: torch.Tensor, start: int, length: int, side: str, name: str) -> None:
    """FSDP frees parameters by resize_(0) on their storage; a view of one would be read from nowhere, or grow it again.

    A fake tensor, or another subclass that stands for tensors elsewhere, has a storage of its size at no address.
    """
    before = local.storage_offset() * local.element_size()
    wanted, found = before + length, local.untyped_storage().nbytes()
    if start in (0, before) and not local.is_meta:  # a meta tensor's fault is its device
        found = 0
    if found < wanted:
        raise MissingTensorError(
            f"{side} {name!r}: expected a tensor with memory, got one of {wanted} bytes over a storage of {found}; "
            "gather or allocate it first"
        )
