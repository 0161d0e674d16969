"""Calls as values: the items that one moves, its options, and the program that it is bound to."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch

from restripe.errors import LayoutError
from restripe.execution.launch import Launcher
from restripe.execution.lowering import lower
from restripe.execution.memory import copy_to_lazy, geometry_of, readable_source, writable_destination
from restripe.group.agreement import CallSignature
from restripe.group.checks import TensorCheck
from restripe.group.communicators import Communicators
from restripe.group.inputs import Declared, ResolvedItem
from restripe.group.snapshots import TensorSnapshot, tensor_guard, tensor_snapshot
from restripe.layout.mesh import Layout
from restripe.planning.plan import RankPlan, Reason
from restripe.planning.rounds import rounds
from restripe.transport.protocol import Enqueue

Check = Literal["first", "always", "off"]
STAGING_BYTES = 256 * 2**20


@dataclass(frozen=True)
class CallOptions:
    """When ranks exchange records of a call, and how many bytes are staged at a time."""

    check: Check = "first"
    staging_bytes: int = STAGING_BYTES

    def __post_init__(self) -> None:
        if self.check not in get_args(Check):
            raise LayoutError(f"expected check to be one of {get_args(Check)}, got {self.check!r}; pass one of them")
        budget: object = self.staging_bytes
        if not isinstance(budget, int | float) or not 1 <= budget < math.inf:
            raise LayoutError(f"expected a staging budget of at least 1 byte, got {budget!r}; pass a whole number")
        object.__setattr__(self, "staging_bytes", int(budget))


@dataclass(frozen=True, eq=False)  # hashed in every call, so by identity
class CallConfig:
    """The communicators that a call goes over, its options, and the fault of options that cannot be, if there is one."""

    communicators: Communicators
    options: CallOptions
    fault: LayoutError | None = None


class Submission:
    """The items that one call moves, in the same order on every rank.

    `signature` is alike on ranks that move the same; `holders` is the number of ranks that hold each source region of the first
    item, among which calls rotate.
    """

    __slots__ = ("holders", "items", "signature")

    def __init__(self, items: Sequence[ResolvedItem]) -> None:
        self.items = tuple(items)
        self.signature = CallSignature.of(items)
        self.holders = self.items[0].src.replicas if self.items else 1


class Call(NamedTuple):
    """One call on this rank.

    `tensors` are this rank's local tensors, source and destination of each item in turn. `declared` are the global shape and
    dtype that the reference of each one declares; empty where none has anything to add. `rotation` is the first item's; see
    `plan`.
    """

    submission: Submission
    tensors: Sequence[torch.Tensor | None]
    declared: tuple[Declared, ...]
    rotation: int

    @property
    def items(self) -> Sequence[ResolvedItem]:
        """The items that are moved."""
        return self.submission.items

    def sides(self) -> Iterator[tuple[ResolvedItem, TensorCheck, TensorCheck]]:
        """Yield each item with the source and the destination to check."""
        declared = self.declared or ((None, None),) * len(self.tensors)
        checks = [TensorCheck(*one, local) for one, local in zip(declared, self.tensors, strict=True)]
        return zip(self.items, checks[::2], checks[1::2], strict=True)


@dataclass(frozen=True)
class BoundCall:
    """A program for tensors of one geometry, ready to launch wherever such tensors lie.

    `splits` are the layouts whose replica groups it goes over, each once. `extents` are the bytes that each item's source and
    destination span, 0 where this rank reads and writes none of them. `has_lazy_views` tells that some tensor is a conj or neg
    view, for which another tensor stands in.
    """

    launcher: Launcher
    splits: list[Layout]
    extents: list[tuple[int, int]]
    has_lazy_views: bool

    def calls(self, tensors: Sequence[torch.Tensor | None], addresses: Sequence[int | None]) -> list[Enqueue]:
        """Return the calls that move these tensors, on the stream whose handle they are given, while they lie at the addresses."""
        if self.has_lazy_views:
            return [lambda handle: self._move_stand_ins(tensors, handle)]
        return self.launcher.calls(addresses)

    def _move_stand_ins(self, tensors: Sequence[torch.Tensor | None], handle: int | None) -> None:
        standing_in = stand_ins(tensors)
        for enqueue in self.launcher.calls([None if tensor is None else tensor.data_ptr() for tensor in standing_in]):
            enqueue(handle)
        for destination, written in zip(tensors[1::2], standing_in[1::2], strict=True):
            copy_to_lazy(destination, written)


class CachedCall:
    """A call that passed every check and that all ranks agreed on, with the calls that enqueue it.

    It holds no tensor: it serves those at the same addresses that have the same snapshots.
    """

    __slots__ = ("_guard", "_snapshots", "calls", "config")

    def __init__(self, config: CallConfig, snapshots: Sequence[TensorSnapshot | None], calls: list[Enqueue]) -> None:
        self.config, self.calls = config, calls
        self._snapshots = snapshots
        self._guard: Callable[..., bool] | None = None  # made when a call is seen again: temporary buffers need none

    def serves(self, config: CallConfig, present: Sequence[torch.Tensor]) -> bool:
        """Return whether a call of tensors at the same addresses is this one."""
        if self.config is not config:
            return False
        if self._guard is not None and self._guard(*present):
            return True
        if [tensor_snapshot(tensor) for tensor in present] != [
            snapshot for snapshot in self._snapshots if snapshot is not None
        ]:
            return False
        self._guard = tensor_guard(present)
        return True


def bind_call(call: Call, plans: Sequence[RankPlan], config: CallConfig) -> BoundCall:
    """Lower a call's plans for the geometry of its tensors. Collective where replica groups have not been split before."""
    itemsizes = [item.dtype.itemsize for item in call.items]
    schedule = rounds(plans, itemsizes, config.options.staging_bytes)
    tensors = stand_ins(call.tensors)
    geometries = [None if tensor is None else geometry_of(tensor) for tensor in tensors]
    splits, split_numbers = _replica_splits(call.items, plans)
    program = lower(plans, schedule, list(zip(geometries[::2], geometries[1::2], strict=True)), split_numbers)
    lazy = any(stand_in is not tensor for stand_in, tensor in zip(tensors, call.tensors, strict=True))
    launcher = Launcher(program, config.communicators.endpoints(splits))
    return BoundCall(launcher, splits, extents(call.tensors, plans), lazy)


def _replica_splits(items: Sequence[ResolvedItem], plans: Sequence[RankPlan]) -> tuple[list[Layout], list[int]]:
    """Return the layouts whose replicas are split, in the order that all ranks share, and the number of each item's among them.

    Whether a call splits depends on meshes and placements alone.
    """
    numbers: dict[Hashable, int] = {}
    layouts: list[Layout] = []
    item_numbers = []
    for item, plan in zip(items, plans, strict=True):
        key = (item.dst.mesh, item.dst.replicating)
        if item.dst.replicas > 1 and plan.reason is not Reason.LOCAL and key not in numbers:
            numbers[key] = len(layouts)
            layouts.append(item.dst)
        item_numbers.append(numbers.get(key, -1))
    return layouts, item_numbers


def stand_ins(tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Return the tensors to read and write for sources and destinations, in turn."""
    standing_in = list(tensors)
    standing_in[::2] = [None if tensor is None else readable_source(tensor) for tensor in tensors[::2]]
    standing_in[1::2] = [None if tensor is None else writable_destination(tensor) for tensor in tensors[1::2]]
    return standing_in


def extents(tensors: Sequence[torch.Tensor | None], plans: Sequence[RankPlan]) -> list[tuple[int, int]]:
    """Return the bytes that each item's source and destination span, 0 where this rank reads and writes none of them."""

    def extent(tensor: torch.Tensor | None, plan: RankPlan) -> int:
        return 0 if tensor is None or plan.idle else geometry_of(tensor).extent

    return [
        (extent(src, plan), extent(dst, plan))
        for src, dst, plan in zip(tensors[::2], tensors[1::2], plans, strict=True)
    ]
