"""The public functions: `reshard` for one tensor, `Resharder` for many, and `clear_caches`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch

from restripe.errors import DtypeError, LayoutError, MissingTensorError, ReshardError
from restripe.execution.streams import Work
from restripe.group.call import STAGING_BYTES, CallConfig, Check, Submission
from restripe.group.checks import with_rank
from restripe.group.communicators import Communicators
from restripe.group.inputs import (
    PLAIN_TYPES,
    SIDES,
    Declared,
    Item,
    ResolvedItem,
    check_ranks,
    error_context,
    layout_of,
    read_tensors,
)
from restripe.group.registry import all_states, default_group, state_of
from restripe.group.single_tensor import reshard_one
from restripe.layout.mesh import Layout, with_positive_dims
from restripe.layout.placements import check_segments


def reshard(
    src: Any,
    dst: Any,
    group: Any = None,
    *,
    src_layout: Layout | None = None,
    dst_layout: Layout | None = None,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    check: Check | None = None,
    stream: Any = None,
) -> Work:
    """Move a tensor from its source layout into `dst`, exactly; collective over the group.

    Args:
        src, dst: a DTensor, a TensorRef, a plain local tensor, or None on a rank without that side.
        group: a torch process group (the default one when None), or an object with nccl4py's `.nccl_communicator` or a
            `.communicator` that follows the transport protocol.
        src_layout, dst_layout: read from a DTensor when None; needed otherwise, on every rank, since each plans from both.
        shape: the global shape, in elements; read from a DTensor or TensorRef when None. An idle rank must give it.
        dtype: the element type; read from the tensors when None. An idle rank must give it.
        check: "first", "always" or "off": when the ranks compare what they call; the group's way when None.
        stream: the stream to enqueue on; None on the CPU.

    Returns:
        A work handle.

    Raises:
        ReshardError: one of the types in `restripe.errors`; nothing has been written then.
    """
    group = default_group() if group is None else group
    layouts = *layout_of(src, src_layout), *layout_of(dst, dst_layout)
    return reshard_one(src, dst, layouts, group, shape, dtype, check, stream)


class Resharder:
    """A session on one group: prepare once, run often, many tensors in one call.

    Args:
        group: as in `reshard`.
        check: when the ranks compare what they call; the group's way when None.
        staging_bytes: how many bytes of noncontiguous pieces are staged at a time; the same on every rank.

    Leaving the context clears the group's caches, which is collective; after an exception it releases without waiting.
    """

    def __init__(self, group: Any = None, *, check: Check | None = None, staging_bytes: int = STAGING_BYTES) -> None:
        self.group = default_group() if group is None else group
        self._check, self._staging_bytes = check, staging_bytes
        self._for_graphs: list[Communicators] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state = state_of(self.group)
        end = state.clear if error is None else state.abort
        end(self._for_graphs)

    def prepare(self, items: Iterable[Item], *, graph: bool = False) -> Refit:
        """Exchange what each rank knows of the items, and give a refit that moves them all in one call. Collective.

        A rank may name only its own side, or no item at all; items are matched by name. With `graph`, the refit has
        communicators of its own, which live as long as this session, so that a CUDA graph can record its runs.

        Raises:
            LayoutError: a name given twice, or a mesh rank outside the group.
            MissingTensorError: no rank names one of an item's layouts.
            DtypeError, ShapeError, AgreementError: ranks say different things of one item.
        """
        state = state_of(self.group)
        config = state.config(self.group, self._check, self._staging_bytes)
        communicators, checked = config.communicators, list(items)
        fault: ReshardError | None = config.fault
        try:
            checked = _checked_items(checked, communicators.base.size)
        except ReshardError as error:
            fault = fault or error
        resolved = state.prepare(config, fault and with_rank(communicators.base.rank, fault), checked, graph=graph)
        if graph:
            self._for_graphs.append(state.for_graph(communicators))
            config = replace(config, communicators=self._for_graphs[-1])
        return Refit(self.group, resolved, config)


def _checked_items(items: Sequence[Item], size: int) -> list[Item]:
    """Return the items with shard dims counted from 0; refuse those where this rank alone can see a fault."""
    for item in items:
        _check_kinds(item)
    checked = [
        replace(
            item,
            src=_checked_layout(item, "source", item.src),
            dst=_checked_layout(item, "destination", item.dst),
        )
        for item in items
    ]
    repeated = [name for name, times in Counter(item.name for item in items).items() if times > 1]
    if repeated:
        raise LayoutError(f"items {repeated} are given more than once; give each name once")
    for item in items:
        for side, layout in zip(SIDES, (item.src, item.dst), strict=True):
            if layout is not None:
                with error_context(f"{side} layout of item {item.name!r}"):
                    check_ranks(layout.mesh, size)
    return checked


def _check_kinds(item: Any) -> None:
    if not isinstance(item, Item) or not isinstance(item.name, str):
        raise LayoutError(f"expected a restripe.Item with a name, got {item!r}")
    if not isinstance(item.dtype, torch.dtype):
        raise DtypeError(f"item {item.name!r}: expected dtype to be a torch.dtype, got {item.dtype!r}")
    for side, layout in zip(SIDES, (item.src, item.dst), strict=True):
        if not isinstance(layout, Layout | None):
            raise LayoutError(
                f"{side} layout of item {item.name!r}: expected a restripe.Layout or None, got {layout!r}"
            )


def _checked_layout(item: Item, side: str, layout: Layout | None) -> Layout | None:
    if layout is None:
        return None
    with error_context(f"{side} layout of item {item.name!r}"):
        check_segments(layout.placements, item.shape)
        return with_positive_dims(layout, len(item.shape))


class Refit:
    """Tensors that are moved together, as often as wanted; made by `Resharder.prepare`. `items` are sorted by name.

    After its session has ended, a refit with communicators of its own runs over the group's.
    """

    def __init__(self, group: Any, items: Sequence[ResolvedItem], config: CallConfig) -> None:
        self._submission = Submission(items)
        self.items = self._submission.items
        self._group, self._state = group, state_of(group)
        self._options = config.options
        self._own_config = config if config.communicators is not self._state.communicators(group) else None
        self._names = [item.name for item in items]
        self._name_set = frozenset(self._names)

    def run(self, src: Mapping[str, Any] | None, dst: Mapping[str, Any] | None, *, stream: Any = None) -> Work:
        """Move every item from `src` to `dst` in one submission; collective.

        Args:
            src, dst: by item name, what `reshard` takes for one tensor; a rank leaves out, or gives None for, what it has not.
            stream: the stream to enqueue on; None on the CPU.

        Raises:
            ReshardError: as `reshard`; also MissingTensorError for a name that was not prepared.
        """
        config = self._live_config()
        try:
            tensors, declared = self._read(src, dst)
        except ReshardError as error:
            self._state.raise_on_all_ranks(config, self._submission.signature, error)
        return self._state.run(config, self._submission, tensors, declared, 0, stream)

    def _live_config(self) -> CallConfig:
        """Return the config over this refit's own communicators while they live, else over the group's."""
        if self._own_config is not None:
            if self._own_config.communicators.live:
                return self._own_config
            self._own_config = None  # or it would keep communicators that were released
        return self._state.config(self._group, self._options.check, self._options.staging_bytes)

    def _read(
        self, src: Mapping[str, Any] | None, dst: Mapping[str, Any] | None
    ) -> tuple[Sequence[torch.Tensor | None], tuple[Declared, ...]]:
        """Return the local source and destination of each item, in turn, and what each declares."""
        if type(src) is not dict or type(dst) is not dict:
            src, dst = _mapping(src), _mapping(dst)
        if not (self._name_set.issuperset(src) and self._name_set.issuperset(dst)):
            unprepared = sorted({*src, *dst} - self._name_set, key=str)
            raise MissingTensorError(f"tensors {unprepared} were not prepared; prepare every item that run is given")
        tensors: list[Any] = []
        for name in self._names:
            tensors.append(src.get(name))
            tensors.append(dst.get(name))
        for tensor in tensors:
            if type(tensor) not in PLAIN_TYPES:
                return read_tensors(tensors, self._names)
        return tensors, ()


def _mapping(side: Any) -> Mapping[str, Any]:
    if side is not None and not isinstance(side, Mapping):
        raise MissingTensorError(f"expected tensors by item name, got {type(side).__name__}; pass a dict or None")
    return side or {}


def clear_caches(group: Any = None) -> None:
    """Drop plans, agreements and every communicator made for the group, or for all groups of this process in order of creation.

    Collective: every rank of a group clears at the same place in its order of calls, after its work has completed. It may be
    called twice. Clearing on some ranks only is an error of the caller that the next call reports.
    """
    for state in all_states() if group is None else [state_of(group)]:
        state.clear()
