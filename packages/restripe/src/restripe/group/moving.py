"""One tensor's move, from what a caller passes to a call on its group; `reshard` and the drop-in share it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from restripe.errors import DtypeError, LayoutError, MissingTensorError, ReshardError
from restripe.execution.streams import Work
from restripe.group.call import Check, Submission
from restripe.group.inputs import PLAIN, Whole, layouts, read_pair, sizes
from restripe.group.recent import remember
from restripe.group.registry import state
from restripe.group.state import PLANS, State
from restripe.layout.mesh import Layout, Mesh, counted
from restripe.layout.segmented import Segmented
from restripe.transport.join import Joined

Side = tuple[Any, Any]  # mesh and placements, or a layout and GIVEN; (None, None) where nothing is known
GIVEN = object()
#: Mesh and placements of either side by id, global shape, dtype.
Near = tuple[int, int, int, int, tuple[int, ...] | None, torch.dtype | None]


def side_of(tensor: Any) -> Side:
    """A DTensor's own mesh and placements."""
    return (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else (None, None)


def move(
    src: Any,
    src_mesh: Any,
    src_placements: Any,
    dst: Any,
    dst_mesh: Any,
    dst_placements: Any,
    group: Any,
    shape: Sequence[int] | None,
    dtype: torch.dtype | None,
    check: Check | None,
    stream: Any,
) -> Work:
    """Move a tensor between two sides, see `Side`; everything passed may be faulty, and faults count as calls."""
    calls = state(group)
    how = calls.how(group, check)
    try:
        tensors, told = ((src, dst), ()) if type(src) in PLAIN and type(dst) in PLAIN else read_pair(src, dst)
        if told:  # the source's where they differ: see `check`
            (known, kind), (other, sort) = told
            dtype = dtype or kind or sort
            shape = shape if shape is not None else known if known is not None else other
        if dtype is None:
            dtype = next((one.dtype for one in tensors if one is not None), None)
        if shape is not None and not isinstance(shape, tuple):
            shape = sizes("tensor", shape)
        near = id(src_mesh), id(src_placements), id(dst_mesh), id(dst_placements), shape, dtype
        try:
            found = calls.near.get(near)
        except TypeError:  # of a shape or dtype that is neither, and cannot be hashed
            found = None
        moved, _, _ = found or _moved(calls, near, (src_mesh, src_placements), (dst_mesh, dst_placements), group)
    except ReshardError as error:
        calls.refuse(how, None, error)
    return calls.run(how, moved, tensors, told, calls.calls % moved.holders, stream)


def _moved(calls: State, near: Near, src: Side, dst: Side, group: Any) -> tuple[Submission, Side, Side]:
    """What a call moves, and its sides; remembered for meshes and placements that cannot change, first by which objects they are."""
    *_, shape, dtype = near
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise DtypeError(f"expected dtype to be a torch.dtype, got {dtype!r}")
    lasting = _lasting(src) and _lasting(dst) and all(isinstance(size, Integral) for size in shape or ())
    one, other = (_key(*src), _key(*dst)) if lasting else (None, None)
    key = None if one is None or other is None else (one, other, shape, dtype)
    moved = None if key is None else calls.singles.get(key)
    if moved is None:
        item = _read(src, dst, group, calls.links(group).base.size, shape, dtype)
        moved = Submission((item,))
        if key is not None:
            calls.singles.keep(key, moved)
    found = moved, src, dst
    if lasting:
        remember(calls.near, near, found, PLANS)  # an id is no other object's while its own is kept
    return found


def _lasting(side: Side) -> bool:
    """Whether what these objects say cannot change."""
    layout_or_mesh, placements = side
    if placements is GIVEN:
        return isinstance(layout_or_mesh, Layout)
    if type(placements) is not tuple or not isinstance(layout_or_mesh, Mesh | DeviceMesh):
        return False
    return set(map(type, placements)) <= {Shard, Replicate, _StridedShard, Segmented}


def _key(layout_or_mesh: Any, placements: Any) -> Hashable:
    """What a lasting side says, where that is hashed fast: torch's placements are slow to hash and to compare."""
    if placements is GIVEN:
        return layout_or_mesh  # type: ignore[no-any-return]
    if not set(map(type, placements)) <= {Shard, Replicate}:
        return None
    return layout_or_mesh, tuple([one.dim if isinstance(one, Shard) else None for one in placements])


def _read(
    src: Side, dst: Side, group: Any, size: int, known: tuple[int, ...] | None, dtype: torch.dtype | None
) -> Whole:
    meshes, placements = zip(_said("src", *src), _said("dst", *dst), strict=True)
    found = layouts(meshes, placements, known, size, partial(group_mesh, group))
    if known is None:
        raise MissingTensorError(
            "no global shape is known: an idle rank, or one with plain local tensors, must pass shape="
        )
    if dtype is None:
        raise MissingTensorError("no dtype is known: an idle rank must pass dtype=")
    whole = sizes("tensor", known)
    return Whole("tensor", whole, dtype, *(counted(layout, len(whole)) for layout in found))


def _said(name: str, mesh: Any, placements: Any) -> Side:
    """Mesh and placements of a side."""
    if mesh is None:
        raise MissingTensorError(f"no layout of {name} is known: pass {name}_layout= where {name} is no DTensor")
    if placements is not GIVEN:
        return mesh, placements
    if not isinstance(mesh, Layout):
        raise LayoutError(f"expected {name}_layout to be a restripe.Layout, got {mesh!r}")
    return mesh.mesh, mesh.placements


def group_mesh(group: Any, mesh: Any) -> Mesh:
    """The mesh in ranks of the group. A DeviceMesh holds global ranks: where the group knows them they are translated."""
    if isinstance(mesh, DeviceMesh) and isinstance(group, (dist.ProcessGroup, Joined)):
        return Mesh.from_device_mesh(mesh, group)
    return Mesh.of(mesh)
