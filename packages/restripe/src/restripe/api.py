"""What users call: `reshard` for one tensor, `Resharder` for many, and `clear_caches`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch

from restripe.errors import DtypeError, LayoutError, MissingTensorError, ReshardError
from restripe.execution.streams import Work
from restripe.group.call import STAGING_BYTES, Check, Options, Submission, at
from restripe.group.communicators import Links
from restripe.group.inputs import PLAIN, SIDES, Item, Told, Whole, about, check_ranks, read_all
from restripe.group.moving import GIVEN, move, side_of
from restripe.group.registry import default_group, state, states
from restripe.layout.mesh import Layout, counted
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
    src_mesh, src_placements = side_of(src) if src_layout is None else (src_layout, GIVEN)
    dst_mesh, dst_placements = side_of(dst) if dst_layout is None else (dst_layout, GIVEN)
    return move(src, src_mesh, src_placements, dst, dst_mesh, dst_placements, group, shape, dtype, check, stream)


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
        self._options = replace(state(self.group).options(self.group, check), staging_bytes=staging_bytes)
        self._twins: list[Links] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        calls = state(self.group)
        end = calls.clear if error is None else calls.abort
        end(self._twins)

    def prepare(self, items: Iterable[Item], *, graph: bool = False) -> Refit:
        """Exchange what each rank knows of the items, and give a refit that moves them all in one call. Collective.

        A rank may name only its own side, or no item at all; items are matched by name. With `graph`, the refit has
        communicators of its own, which live as long as this session, so that a CUDA graph can record its runs.

        Raises:
            LayoutError: a name given twice, or a mesh rank outside the group.
            MissingTensorError: no rank names one of an item's layouts.
            DtypeError, ShapeError, AgreementError: ranks say different things of one item.
        """
        calls = state(self.group)
        links = calls.links(self.group)
        fault, told = None, list(items)
        try:
            told = _checked(told, links.base.size)
        except ReshardError as error:
            fault = at(links.base.rank, error)
        whole = calls.prepare(links, fault, told, self._options, graph=graph)
        own = calls.twin(links) if graph else None
        self._twins += [own] if own is not None else []
        return Refit(self.group, whole, self._options, own)


def _checked(items: Sequence[Item], size: int) -> list[Item]:
    """The items with shard dims counted from 0; refused where this rank alone can see a fault."""
    for item in items:
        _check_kinds(item)
    found = [
        replace(item, src=_counted(item, "source", item.src), dst=_counted(item, "destination", item.dst))
        for item in items
    ]
    twice = [name for name, times in Counter(item.name for item in items).items() if times > 1]
    if twice:
        raise LayoutError(f"items {twice} are given more than once; give each name once")
    for item in items:
        for side, layout in zip(SIDES, (item.src, item.dst), strict=True):
            if layout is not None:
                with about(f"{side} layout of item {item.name!r}"):
                    check_ranks(layout.mesh, size)
    return found


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


def _counted(item: Item, side: str, layout: Layout | None) -> Layout | None:
    if layout is None:
        return None
    with about(f"{side} layout of item {item.name!r}"):
        check_segments(layout.placements, item.shape)
        return counted(layout, len(item.shape))


class Refit:
    """Tensors that are moved together, as often as wanted; made by `Resharder.prepare`. `items` are sorted by name.

    Once the session has ended, a refit has no communicators of its own any more, and runs over the group's.
    """

    def __init__(self, group: Any, items: Sequence[Whole], options: Options, own: Links | None = None) -> None:
        self._moved = Submission(items)
        self.items = self._moved.items
        self._group, self._options, self._own = group, options, own
        self._calls = state(group)
        self._names = [item.name for item in items]
        self._known = frozenset(self._names)

    def run(self, src: Mapping[str, Any] | None, dst: Mapping[str, Any] | None, *, stream: Any = None) -> Work:
        """Move every item from `src` to `dst` in one submission; collective.

        Args:
            src, dst: by item name, what `reshard` takes for one tensor; a rank leaves out, or gives None for, what it has not.
            stream: the stream to enqueue on; None on the CPU.

        Raises:
            ReshardError: as `reshard`; also MissingTensorError for a name that was not prepared.
        """
        links = self._own if self._own is not None and self._own.live else self._calls.links(self._group)
        how = links, self._options
        try:
            tensors, told = self._given(src, dst)
        except ReshardError as error:
            self._calls.refuse(how, self._moved.terms, error)
        return self._calls.run(how, self._moved, tensors, told, 0, stream)

    def _given(
        self, src: Mapping[str, Any] | None, dst: Mapping[str, Any] | None
    ) -> tuple[Sequence[torch.Tensor | None], tuple[Told, ...]]:
        """Source and destination of each item, in turn, and what they tell beside."""
        if type(src) is not dict or type(dst) is not dict:
            src, dst = _by_name(src), _by_name(dst)
        if not (self._known.issuperset(src) and self._known.issuperset(dst)):
            strangers = sorted({*src, *dst} - self._known, key=str)
            raise MissingTensorError(f"tensors {strangers} were not prepared; prepare every item that run is given")
        found: list[Any] = []
        for name in self._names:
            found.append(src.get(name))
            found.append(dst.get(name))
        for one in found:
            if type(one) not in PLAIN:
                return read_all(found, self._names)
        return found, ()


def _by_name(side: Any) -> Mapping[str, Any]:
    if side is not None and not isinstance(side, Mapping):
        raise MissingTensorError(f"expected tensors by item name, got {type(side).__name__}; pass a dict or None")
    return side or {}


def clear_caches(group: Any = None) -> None:
    """Drop plans, agreements and every communicator made for the group, or for all groups of this process in order of creation.

    Collective: every rank of a group clears at the same place in its order of calls, after its work has completed. It may be
    called twice. Clearing on some ranks only is an error of the caller that the next call reports.
    """
    for one in states() if group is None else [state(group)]:
        one.clear()
