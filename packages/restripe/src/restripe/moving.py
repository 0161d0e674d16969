"""One tensor's move, from what a caller passes to a call on its group; `reshard` and the drop-in share it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from restripe.arguments import Told, Whole, layouts, read_all, sizes
from restripe.call import Call, Check, faulty
from restripe.errors import DtypeError, LayoutError, MissingTensorError, ReshardError, ShapeError
from restripe.group import State, state
from restripe.joining import Joined
from restripe.layout import Layout, Mesh, counted
from restripe.streams import Mark


class Placed(NamedTuple):
    """Where one side of a call lies, as the caller gives it; its `key` is None where mesh or placements may still change."""

    mesh: Any
    placements: Sequence[Placement]
    key: Hashable


Side = Layout | Placed | None


def side_of(tensor: Any, layout: Layout | None) -> Side:
    """The layout that is given, whatever it is, or the DTensor's own mesh and placements; None where neither is there."""
    if layout is None and isinstance(tensor, DTensor):
        return placed(tensor.device_mesh, tensor.placements)
    return layout


def placed(mesh: Any, placements: Sequence[Placement]) -> Placed:
    """A mesh and placements of any kind."""
    if not isinstance(mesh, (Mesh, DeviceMesh)) or type(placements) is not tuple:
        return Placed(mesh, placements, None)
    if not set(map(type, placements)) <= {Shard, Replicate}:
        return Placed(mesh, placements, None)
    # torch's placements are slow to hash and to compare; what they say is not.
    told = tuple([one.dim if isinstance(one, Shard) else None for one in placements])
    return Placed(mesh, placements, (mesh, told))


def move(
    src: Any,
    src_side: Side,
    dst: Any,
    dst_side: Side,
    group: Any,
    shape: Sequence[int] | None,
    dtype: torch.dtype | None,
    check: Check | None,
    stream: Any,
) -> Mark | None:
    """Move a tensor; everything passed may be faulty, and faults count as calls."""
    calls = state(group)
    how = calls.options(group, check)
    links = calls.links(group)
    try:
        tensors, told = read_all((src, dst))
        item = _whole(calls, src_side, dst_side, group, _shape(shape, told), dtype or _dtype(tensors, told))
        call = Call(item, (item,), tensors, told, None, calls.calls % item.src.replicas)
    except ReshardError as error:
        call = faulty(None, links.base.rank, error)
    return calls.run(links, call, how, stream)


def _shape(shape: Sequence[int] | None, told: Sequence[Told]) -> tuple[int, ...] | None:
    """The global shape that was passed or that a side tells (the source's where they differ: see `check`), or None."""
    if shape is not None:
        return shape if type(shape) is tuple else sizes("tensor", shape)
    for known, _ in told:
        if known is not None:
            return known
    return None


def _dtype(tensors: Sequence[torch.Tensor | None], told: Sequence[Told]) -> torch.dtype | None:
    """The dtype that a side tells or has, or None."""
    for _, known in told:
        if known is not None:
            return known
    for tensor in tensors:
        if tensor is not None:
            return tensor.dtype
    return None


def _whole(
    calls: State, src: Side, dst: Side, group: Any, shape: tuple[int, ...] | None, dtype: torch.dtype | None
) -> Whole:
    """What a call moves; remembered for meshes and placements that cannot change."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise DtypeError(f"expected dtype to be a torch.dtype, got {dtype!r}")
    one, other = _key(src), _key(dst)
    key = None if one is None or other is None else (one, other, shape, dtype)
    try:
        whole = None if key is None else calls.wholes.get(key)
    except TypeError as error:
        raise ShapeError(f"expected a shape of whole numbers, got {shape!r}") from error
    if whole is None:
        whole = _read(src, dst, group, calls.links(group).base.size, shape, dtype)
        if key is not None:
            calls.wholes.keep(key, whole)
    return whole


def _key(side: Side) -> Hashable:
    return side if isinstance(side, Layout) else getattr(side, "key", None)


def _read(
    src: Side, dst: Side, group: Any, size: int, known: tuple[int, ...] | None, dtype: torch.dtype | None
) -> Whole:
    for name, side in (("src", src), ("dst", dst)):
        if side is not None and not isinstance(side, Layout | Placed):
            raise LayoutError(f"expected {name}_layout to be a restripe.Layout, got {side!r}")
        if side is None or side.mesh is None:
            raise MissingTensorError(f"no layout of {name} is known: pass {name}_layout= where {name} is no DTensor")
    sides = [side for side in (src, dst) if side is not None]
    found = layouts(
        [side.mesh for side in sides], [side.placements for side in sides], known, size, partial(group_mesh, group)
    )
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
