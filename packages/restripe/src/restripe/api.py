"""What users call: `reshard` for one tensor, `Resharder` for many, and `clear_caches`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from restripe.agreement import Terms
from restripe.arguments import SIDES, Item, Whole, about, check_ranks, counted, known_shape, layouts, read, sizes
from restripe.errors import LayoutError, MissingTensorError, ReshardError
from restripe.group import STAGING_BYTES, Check, Options, Request, at, default_check, default_group, state, states
from restripe.layout import Layout, Mesh


class Work:
    """A handle on a call's transfers, as torch.distributed gives. On the CPU they are complete when the call returns."""

    def wait(self) -> bool:
        """Wait until the destination holds its values; True."""
        return True

    def is_completed(self) -> bool:
        """Whether the destination holds its values."""
        return True


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
        group: a torch process group (the default one when None) or an object with a `.communicator`.
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
    return move(_side(src, src_layout), _side(dst, dst_layout), group, shape, dtype, check, stream)


Side = tuple[Any, Any, Sequence[Placement]]


def _side(tensor: Any, layout: Layout | None) -> Side:
    """A side with the mesh and placements of its layout, or the DTensor's own; no mesh where neither is known."""
    if layout is not None:
        return tensor, layout.mesh, layout.placements
    return (tensor, tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else (tensor, None, ())


def move(
    src: Side,
    dst: Side,
    group: Any,
    shape: Sequence[int] | None,
    dtype: torch.dtype | None,
    check: Check | None,
    stream: Any,
) -> Work:
    """`reshard` from (tensor, mesh, placements) of each side; all may be faulty, and faults count as calls."""
    options = Options(check=default_check(group) if check is None else check, stream=stream)
    calls = state(group)
    communicator = calls.communicator(group)
    requests: list[Request] = []
    fault: ReshardError | None = None
    try:
        requests = [_request(src, dst, group, communicator.size, shape, dtype)]
    except ReshardError as error:
        fault = at(communicator.rank, error)
    key = requests[0].item if requests else None
    calls.run(group, key, requests, fault, calls.calls, options)
    return Work()


def _request(
    src: Side, dst: Side, group: Any, size: int, shape: Sequence[int] | None, dtype: torch.dtype | None
) -> Request:
    for side, mesh in zip(("src", "dst"), (src[1], dst[1]), strict=True):
        if mesh is None:
            raise MissingTensorError(f"no layout of {side} is known: pass {side}_layout= where {side} is no DTensor")
    given = read(src[0]), read(dst[0])
    known = known_shape(shape, given)
    found = layouts([src[1], dst[1]], [src[2], dst[2]], known, size, partial(group_mesh, group))
    if known is None:
        raise MissingTensorError(
            "no global shape is known: an idle rank, or one with plain local tensors, must pass shape="
        )
    dtype = dtype or given[0].dtype or given[1].dtype
    if dtype is None:
        raise MissingTensorError("no dtype is known: an idle rank must pass dtype=")
    whole = sizes("tensor", known)
    return Request(Whole("tensor", whole, dtype, *(counted(layout, len(whole)) for layout in found)), *given)


def group_mesh(group: Any, mesh: Any) -> Mesh:
    """The mesh in ranks of the group. A DeviceMesh holds global ranks: for a torch process group they are translated."""
    if isinstance(mesh, DeviceMesh) and isinstance(group, dist.ProcessGroup):
        return Mesh.from_device_mesh(mesh, group)
    return Mesh.of(mesh)


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
        self._options = Options(
            check=default_check(self.group) if check is None else check, staging_bytes=staging_bytes
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            state(self.group).clear()
        else:
            state(self.group).abort()

    def prepare(self, items: Iterable[Item]) -> Refit:
        """Exchange what each rank knows of the items, and give a refit that moves them all in one call. Collective.

        A rank may name only its own side, or no item at all; items are matched by name.

        Raises:
            LayoutError: a name given twice, or a mesh rank outside the group.
            MissingTensorError: no rank names one of an item's layouts.
            DtypeError, ShapeError, AgreementError: ranks say different things of one item.
        """
        calls = state(self.group)
        communicator = calls.communicator(self.group)
        fault, told = None, list(items)
        try:
            told = _checked(told, communicator.size)
        except ReshardError as error:
            fault = at(communicator.rank, error)
        return Refit(self.group, calls.prepare(communicator, fault, told, self._options), self._options)


def _checked(items: Sequence[Item], size: int) -> list[Item]:
    """The items with shard dims counted from 0; refused where this rank alone can see a fault."""
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


def _counted(item: Item, side: str, layout: Layout | None) -> Layout | None:
    if layout is None:
        return None
    with about(f"{side} layout of item {item.name!r}"):
        return counted(layout, len(item.shape))


class Refit:
    """Tensors that are moved together, as often as wanted; made by `Resharder.prepare`. `items` are sorted by name."""

    def __init__(self, group: Any, items: Sequence[Whole], options: Options) -> None:
        self.items = tuple(items)
        self.terms = Terms.of(items)
        self._group, self._options = group, options

    def run(self, src: Mapping[str, Any] | None, dst: Mapping[str, Any] | None, *, stream: Any = None) -> Work:
        """Move every item from `src` to `dst` in one submission; collective.

        Args:
            src, dst: by item name, what `reshard` takes for one tensor; a rank leaves out, or gives None for, what it has not.
            stream: the stream to enqueue on; None on the CPU.

        Raises:
            ReshardError: as `reshard`; also MissingTensorError for a name that was not prepared.
        """
        calls = state(self._group)
        rank = calls.communicator(self._group).rank
        options = Options(self._options.check, self._options.staging_bytes, stream)
        requests: list[Request] = []
        fault: ReshardError | None = None
        try:
            requests = self._requests(src or {}, dst or {})
        except ReshardError as error:
            fault = at(rank, error)
        calls.run(self._group, self.terms, requests, fault, 0, options)
        return Work()

    def _requests(self, src: Mapping[str, Any], dst: Mapping[str, Any]) -> list[Request]:
        strangers = sorted({*src, *dst} - {item.name for item in self.items})
        if strangers:
            raise MissingTensorError(f"tensors {strangers} were not prepared; prepare every item that run is given")
        found = []
        for item in self.items:
            with about(f"item {item.name!r}"):
                found.append(Request(item, read(src.get(item.name)), read(dst.get(item.name))))
        return found


def clear_caches(group: Any = None) -> None:
    """Drop plans, agreements and every communicator made for the group, or for all groups of this process in order of creation.

    Collective: every rank of a group clears at the same place in its order of calls, after its work has completed. It may be
    called twice. Clearing on some ranks only is an error of the caller that the next call reports.
    """
    for one in states() if group is None else [state(group)]:
        one.clear()
