"""What users call: `reshard` for one tensor, `Resharder` for many, and `clear_caches`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement

from restripe.agreement import Terms
from restripe.arguments import SIDES, Given, Item, Whole, about, check_ranks, counted, known_shape, layouts, read, sizes
from restripe.call import STAGING_BYTES, Call, Check, Options, Told, at, faulty
from restripe.errors import LayoutError, MissingTensorError, ReshardError
from restripe.group import State, default_group, state, states
from restripe.joining import Joined
from restripe.layout import Layout, Mesh
from restripe.links import Links
from restripe.streams import Mark


class Work:
    """A handle on a call's transfers, as torch.distributed gives. On the CPU they are complete when the call returns."""

    def __init__(self, mark: Mark | None = None) -> None:
        self._mark = mark

    def wait(self) -> bool:
        """Let what is enqueued on the current stream from now on see the destination's values; True."""
        if self._mark is not None:
            self._mark.wait()
        return True

    def is_completed(self) -> bool:
        """Whether the destination holds its values."""
        return self._mark is None or self._mark.passed()


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
    return move(Side.of(src, src_layout), Side.of(dst, dst_layout), group, shape, dtype, check, stream)


class Side(NamedTuple):
    """One side of a call as the caller gives it; no mesh where neither a layout nor a DTensor tells one.

    `key` stands for mesh and placements as long as they cannot change, else it is None.
    """

    tensor: Any
    mesh: Any
    placements: Sequence[Placement]
    key: Hashable

    @classmethod
    def of(cls, tensor: Any, layout: Layout | None) -> Side:
        """A tensor with the mesh and placements of its layout, or the DTensor's own."""
        if layout is not None:
            return cls(tensor, layout.mesh, layout.placements, layout)
        if isinstance(tensor, DTensor):
            return cls.on(tensor, tensor.device_mesh, tensor.placements)
        return cls(tensor, None, (), None)

    @classmethod
    def on(cls, tensor: Any, mesh: Any, placements: Sequence[Placement]) -> Side:
        """A tensor on a mesh."""
        if not isinstance(mesh, (Mesh, DeviceMesh)) or not isinstance(placements, tuple):
            return cls(tensor, mesh, placements, None)
        # torch's placements are slow to hash and to compare; what they say is not.
        told = tuple([placement.dim if type(placement) is Shard else type(placement) for placement in placements])
        return cls(tensor, mesh, placements, (mesh, told))


def move(
    src: Side,
    dst: Side,
    group: Any,
    shape: Sequence[int] | None,
    dtype: torch.dtype | None,
    check: Check | None,
    stream: Any,
) -> Work:
    """`reshard` from both sides; all may be faulty, and faults count as calls."""
    calls = state(group)
    how = calls.options(group, check)
    links = calls.links(group)
    try:
        given = read(src.tensor), read(dst.tensor)
        item = _whole(calls, src, dst, group, given, shape, dtype)
        told = tuple([(one.shape, one.dtype) for one in given])
        turn = calls.calls % item.src.replicas
        call = Call(item, (item,), [one.local for one in given], told, None, turn)
    except ReshardError as error:
        call = faulty(None, links.base.rank, error)
    return Work(calls.run(links, call, how, stream))


def _whole(
    calls: State,
    src: Side,
    dst: Side,
    group: Any,
    given: tuple[Given, Given],
    shape: Sequence[int] | None,
    dtype: torch.dtype | None,
) -> Whole:
    """What a call moves; remembered for meshes that cannot change."""
    known = known_shape(shape, *given)
    dtype = dtype or given[0].dtype or given[1].dtype
    key = None if src.key is None or dst.key is None else (src.key, dst.key, known, dtype)
    whole = None if key is None else calls.wholes.get(key)
    if whole is None:
        whole = _read(src, dst, group, calls.links(group).base.size, known, dtype)
        if key is not None:
            calls.wholes.keep(key, whole)
    return whole


def _read(
    src: Side, dst: Side, group: Any, size: int, known: tuple[int, ...] | None, dtype: torch.dtype | None
) -> Whole:
    for side, mesh in zip(("src", "dst"), (src.mesh, dst.mesh), strict=True):
        if mesh is None:
            raise MissingTensorError(f"no layout of {side} is known: pass {side}_layout= where {side} is no DTensor")
    found = layouts([src.mesh, dst.mesh], [src.placements, dst.placements], known, size, partial(group_mesh, group))
    if known is None:
        raise MissingTensorError(
            "no global shape is known: an idle rank, or one with plain local tensors, must pass shape="
        )
    if dtype is None:
        raise MissingTensorError("no dtype is known: an idle rank must pass dtype=")
    whole = sizes("tensor", known)
    return Whole("tensor", whole, dtype, *(counted(layout, len(whole)) for layout in found))


def group_mesh(group: Any, mesh: Any) -> Mesh:
    """The mesh in ranks of the group. A DeviceMesh holds global ranks: where the group knows them they are translated."""
    if isinstance(mesh, DeviceMesh) and isinstance(group, (dist.ProcessGroup, Joined)):
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
    """Tensors that are moved together, as often as wanted; made by `Resharder.prepare`. `items` are sorted by name.

    Once the session has ended, a refit has no communicators of its own any more, and runs over the group's.
    """

    def __init__(self, group: Any, items: Sequence[Whole], options: Options, own: Links | None = None) -> None:
        self.items = tuple(items)
        self.terms = Terms.of(items)
        self._group, self._options, self._own = group, options, own
        self._calls = state(group)
        self._names = [item.name for item in items]

    def run(self, src: Mapping[str, Any] | None, dst: Mapping[str, Any] | None, *, stream: Any = None) -> Work:
        """Move every item from `src` to `dst` in one submission; collective.

        Args:
            src, dst: by item name, what `reshard` takes for one tensor; a rank leaves out, or gives None for, what it has not.
            stream: the stream to enqueue on; None on the CPU.

        Raises:
            ReshardError: as `reshard`; also MissingTensorError for a name that was not prepared.
        """
        links = self._own if self._own is not None and self._own.live else self._calls.links(self._group)
        try:
            tensors, told = self._given(src or {}, dst or {})
            call = Call(self.terms, self.items, tensors, told, None, 0)
        except ReshardError as error:
            call = faulty(self.terms, links.base.rank, error)
        return Work(self._calls.run(links, call, self._options, stream))

    def _given(
        self, src: Mapping[str, Any], dst: Mapping[str, Any]
    ) -> tuple[list[torch.Tensor | None], tuple[Told, ...]]:
        """Source and destination of each item, in turn, and what they tell beside."""
        found: list[Any] = [None] * (2 * len(self._names))
        found[::2], found[1::2] = map(src.get, self._names), map(dst.get, self._names)
        if sum([one is not None for one in found]) != len(src) + len(dst):
            self._known(src, dst)
        if set(map(type, found)) <= _PLAIN:
            return found, ()
        given = [_read_as(self._names[number // 2], one) for number, one in enumerate(found)]
        return [one.local for one in given], tuple([(one.shape, one.dtype) for one in given])

    def _known(self, *sides: Mapping[str, Any]) -> None:
        strangers = sorted({name for side in sides for name in side} - set(self._names))
        if strangers:
            raise MissingTensorError(f"tensors {strangers} were not prepared; prepare every item that run is given")


_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}


def _read_as(name: str, tensor: Any) -> Given:
    with about(f"item {name!r}"):
        return read(tensor)


def clear_caches(group: Any = None) -> None:
    """Drop plans, agreements and every communicator made for the group, or for all groups of this process in order of creation.

    Collective: every rank of a group clears at the same place in its order of calls, after its work has completed. It may be
    called twice. Clearing on some ranks only is an error of the caller that the next call reports.
    """
    for one in states() if group is None else [state(group)]:
        one.clear()
