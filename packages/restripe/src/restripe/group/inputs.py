"""Inputs: reads what callers pass, tensors of several kinds by duck type, meshes and placements, into plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from restripe.errors import DtypeError, LayoutError, MissingTensorError, ReshardError, ShapeError
from restripe.execution.memory import wait_if_pending
from restripe.layout.mesh import Layout, Mesh, short, with_positive_dims
from restripe.layout.placements import check_kinds, check_segments, shard_dims
from restripe.transport.join import Joined

SIDES = ("source", "destination")
PLAIN_TYPES = {torch.Tensor, torch.nn.Parameter, type(None)}  # passed as local tensors, or for none
_ABSENT: Any = object()
_SIZE, _DTYPE = torch.Size, torch.dtype  # looked up once: torch is a large module


@dataclass(frozen=True, eq=False)
class TensorRef:
    """A distributed tensor without a DTensor: its global sizes and this rank's part of it.

    Args:
        shape: the global sizes, in elements.
        dtype: the element type.
        device: where the local tensor lives.
        local: this rank's shard; None on a rank without this side, or on an idle one.
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    local: torch.Tensor | None = None
    _local_tensor: torch.Tensor | None = field(init=False, repr=False)  # `local`, by the name that all references share

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", torch.Size(self.shape))
        object.__setattr__(self, "device", torch.device(self.device))
        object.__setattr__(self, "_local_tensor", self.local)


@dataclass(frozen=True)
class Item:
    """One tensor to move: its name, global shape (elements), dtype, and the layouts that are known (None: another rank's)."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    src: Layout | None = None
    dst: Layout | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", global_shape(self.name, self.shape))


@dataclass(frozen=True)
class ResolvedItem:
    """An item whose layouts are both known: the plan and the program follow from it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    src: Layout
    dst: Layout


#: Stands for the placements of a side whose layout is passed in place of its mesh.
OF_LAYOUT: Any = object()


class LayoutInputs(NamedTuple):
    """The layouts of both sides as a caller passes them.

    Each is a mesh of any class with placements in any sequence, or a Layout with OF_LAYOUT; None where a rank knows nothing.
    """

    src_mesh: Any
    src_placements: Any
    dst_mesh: Any
    dst_placements: Any

    def sides(self) -> list[tuple[str, Any, Any]]:
        """Return the name, the mesh and the placements of source and destination.

        Raises:
            MissingTensorError: the caller passes no layout.
            LayoutError: a layout is none of restripe's.
        """
        src = _mesh_and_placements("src", self.src_mesh, self.src_placements)
        dst = _mesh_and_placements("dst", self.dst_mesh, self.dst_placements)
        return [(SIDES[0], *src), (SIDES[1], *dst)]


def layout_of(tensor: Any, layout: Layout | None) -> tuple[Any, Any]:
    """Return a side of `LayoutInputs`: the layout that is passed, or a DTensor's own mesh and placements."""
    if layout is not None:
        return layout, OF_LAYOUT
    return (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else (None, None)


def _mesh_and_placements(name: str, mesh: Any, placements: Any) -> tuple[Any, Any]:
    if mesh is None:
        raise MissingTensorError(f"no layout of {name} is known: pass {name}_layout= where {name} is no DTensor")
    if placements is not OF_LAYOUT:
        return mesh, placements
    if not isinstance(mesh, Layout):
        raise LayoutError(f"expected {name}_layout to be a restripe.Layout, got {mesh!r}")
    return mesh.mesh, mesh.placements


def global_shape(name: str, shape: Any) -> tuple[int, ...]:
    """Return a global shape as a tuple of ints.

    Raises:
        ShapeError: it is no sequence of whole numbers, or a size is negative.
    """
    try:
        sizes = tuple(index(size) for size in shape)
    except TypeError as error:
        raise ShapeError(f"tensor {name!r}: expected a shape of whole numbers, got {shape!r}") from error
    if any(size < 0 for size in sizes):
        raise ShapeError(f"tensor {name!r}: expected sizes of 0 or more, got {sizes}")
    return sizes


Declared = tuple[tuple[int, ...] | None, torch.dtype | None]  # the global shape and dtype that a reference declares
TensorInput = tuple[torch.Tensor | None, Declared]
_NO_TENSOR: TensorInput = (None, (None, None))


def read_tensor(tensor: Any) -> TensorInput:
    """Read a DTensor, a reference with `_local_tensor` or `to_local()`, a plain local tensor, or None."""
    if tensor is None:
        return _NO_TENSOR
    if isinstance(tensor, torch.Tensor):
        return _read_torch_tensor(tensor)
    try:
        local = getattr(tensor, "_local_tensor", _ABSENT)
        local = tensor.to_local() if local is _ABSENT else local
        shape, dtype = tensor.shape, tensor.dtype
        shape = shape if type(shape) is _SIZE else global_shape("tensor", tuple(shape))
    except (AttributeError, TypeError) as error:
        raise MissingTensorError(
            f"expected a tensor, a reference with .shape, .dtype and ._local_tensor, or None, got {type(tensor).__name__}"
        ) from error
    if dtype is not None and not isinstance(dtype, _DTYPE):
        raise DtypeError(f"expected a reference's dtype to be a torch.dtype, got {dtype!r}")
    if type(local) in PLAIN_TYPES:
        return local, (shape, dtype)
    if not isinstance(local, torch.Tensor):
        raise MissingTensorError(f"expected a reference to a tensor, got one to {type(local).__name__}")
    return _dense_tensor(local), (shape, dtype)


def _read_torch_tensor(tensor: torch.Tensor) -> TensorInput:
    """Read a DTensor or a plain tensor. A rank outside a DTensor's mesh has an empty local tensor that stands for none."""
    if isinstance(tensor, DTensor):
        outside = tensor.device_mesh.get_coordinate() is None
        local = None if outside else _dense_tensor(tensor._local_tensor)  # noqa: SLF001  (to_local() would record history)
        return local, (tensor.shape, tensor.dtype)
    return _dense_tensor(tensor), (None, tensor.dtype)


def _dense_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor once it is filled; refuse a kind that shows strides and has none, such as a nested tensor."""
    local = wait_if_pending(tensor)
    if local.layout is not torch.strided:
        raise MissingTensorError(
            f"expected a dense tensor, whose elements lie at strides in memory, got {local.layout}"
        )
    return local


def read_tensors(
    tensors: Sequence[Any], names: Sequence[str]
) -> tuple[Sequence[torch.Tensor | None], tuple[Declared, ...]]:
    """Read the sources and destinations of items, in turn; return their local tensors, and what each declares.

    Args:
        names: of the items, for messages.
    """
    inputs = []
    for number, tensor in enumerate(tensors):
        with error_context(f"item {names[number // 2]!r}"):
            inputs.append(read_tensor(tensor))
    locals_, declared = zip(*inputs, strict=True)
    return locals_, declared


def read_layouts(inputs: LayoutInputs, shape: tuple[int, ...] | None, group: Any, size: int) -> tuple[Layout, Layout]:
    """Return the layouts of both sides; of several faults the one that stands first in the table of errors is raised.

    Args:
        shape: the global shape, in elements, where it is known.
        group: the caller's group, which translates the global ranks of a DeviceMesh.
        size: the number of ranks of the group.
    """
    sides = inputs.sides()
    for side, _, placements in sides:
        with error_context(f"{side} layout"):
            if not isinstance(placements, Sequence):
                raise LayoutError(f"expected one placement a mesh dim, in a tuple, got {placements!r}")
            check_kinds(placements)
    for side, _, placements in sides:
        if shape is not None:
            with error_context(f"{side} layout"):
                shard_dims(placements, len(shape))
    layouts = []
    for side, mesh, placements in sides:
        with error_context(f"{side} layout"):
            layouts.append(Layout(group_mesh(group, mesh), tuple(placements)))
            check_ranks(layouts[-1].mesh, size)
    for side, layout in zip(SIDES, layouts, strict=True):
        if shape is not None:
            with error_context(f"{side} layout"):
                check_segments(layout.placements, shape)
    src, dst = layouts
    return src, dst


def resolve_item(
    inputs: LayoutInputs,
    shape: tuple[int, ...] | None,
    dtype: torch.dtype | None,
    group: Any,
    size: int,
) -> ResolvedItem:
    """Return the item of a call for one tensor; see `read_layouts`.

    Raises:
        MissingTensorError: no global shape or dtype is known.
        ReshardError: the layouts, shape or dtype are at fault.
    """
    if dtype is not None and not isinstance(dtype, _DTYPE):
        raise DtypeError(f"expected dtype to be a torch.dtype, got {dtype!r}")
    src, dst = read_layouts(inputs, shape, group, size)
    if shape is None:
        raise MissingTensorError(
            "no global shape is known: an idle rank, or one with plain local tensors, must pass shape="
        )
    if dtype is None:
        raise MissingTensorError("no dtype is known: an idle rank must pass dtype=")
    sizes = global_shape("tensor", shape)
    return ResolvedItem(
        "tensor", sizes, dtype, with_positive_dims(src, len(sizes)), with_positive_dims(dst, len(sizes))
    )


def group_mesh(group: Any, mesh: Any) -> Mesh:
    """Return the mesh in ranks of the group; the global ranks of a DeviceMesh are translated where the group knows them."""
    if isinstance(mesh, DeviceMesh) and isinstance(group, (dist.ProcessGroup, Joined)):
        return Mesh.from_device_mesh(mesh, group)
    return Mesh.of(mesh)


@contextmanager
def error_context(subject: str) -> Iterator[None]:
    """Name the subject of an error in front of its message."""
    try:
        yield
    except ReshardError as error:
        raise type(error)(f"{subject}: {error}") from None


def check_ranks(mesh: Mesh, size: int) -> None:
    """Refuse a mesh with ranks that the group does not have."""
    if mesh.highest >= size:
        outside = [rank for rank in mesh.ranks if rank >= size]
        raise LayoutError(
            f"ranks {short(outside)} of the mesh are not in the group of {size} ranks; name ranks of the process group"
        )
