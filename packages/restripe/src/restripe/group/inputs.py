"""What callers pass: tensors of several kinds, read by duck type, and the layouts of both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import index
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from restripe.errors import DtypeError, LayoutError, MissingTensorError, ReshardError, ShapeError
from restripe.execution.memory import settle
from restripe.group.recent import remember
from restripe.layout.mesh import Layout, Mesh, short
from restripe.layout.placements import check_kinds, check_segments, shard_dims

#: What torch's compiler tells tensors apart with: promised to nobody, and deadly where it is called in another way.
TensorGuards: Any = None
if torch.__version__ < "2.14.dev":  # the releases that it was tried with
    from torch._C._dynamo.guards import TensorGuards


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
    _local_tensor: torch.Tensor | None = field(
        init=False, repr=False
    )  # the same, by the name that all references share

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
        object.__setattr__(self, "shape", sizes(self.name, self.shape))


def sizes(name: str, shape: Any) -> tuple[int, ...]:
    """A global shape as a tuple of ints; ShapeError where it is none, or a size is negative."""
    try:
        found = tuple(index(size) for size in shape)
    except TypeError as error:
        raise ShapeError(f"tensor {name!r}: expected a shape of whole numbers, got {shape!r}") from error
    if any(size < 0 for size in found):
        raise ShapeError(f"tensor {name!r}: expected sizes of 0 or more, got {found}")
    return found


@dataclass(frozen=True)
class Whole:
    """An item with both layouts known: all that a call's plan and program follow from."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    src: Layout
    dst: Layout


Look = tuple[int, torch.Size, tuple[int, ...], torch.dtype, torch.device, bool, bool]  # address, sizes, strides, ...


def looks(tensors: Iterable[torch.Tensor | None]) -> list[Look | None]:
    """All that checking and binding read of local tensors: where the first element lies, and what is the same when it moves.

    Raises:
        RuntimeError, ValueError: a tensor without memory or strides.
    """
    return [
        None
        if one is None
        else (one.data_ptr(), one.shape, one.stride(), one.dtype, one.device, one.is_conj(), one.is_neg())
        for one in tensors
    ]


def guard(tensors: Iterable[torch.Tensor | None]) -> Callable[..., bool]:
    """What tells of other tensors, given without the Nones, whether they look as these do but for where they lie.

    It costs a fraction of `looks`, and tells alike ones apart at times: by their types, `requires_grad`, and the mode of autograd
    or autocast around.
    """
    present = [one for one in tensors if one is not None]
    real = all(issubclass(type(one), torch.Tensor) for one in present)  # no proxy
    once = len({id(one) for one in present}) == len(present)
    if TensorGuards is None or not present or not real or not once:
        first = [one and one[1:] for one in looks(present)]
        return lambda *others: [one and one[1:] for one in looks(others)] == first
    found: Callable[..., bool] = TensorGuards(
        *present,
        dynamic_dims_sizes=[list(one.shape) for one in present],
        dynamic_dims_strides=[list(one.stride()) for one in present],
    ).check
    return found


def addresses(tensors: Iterable[torch.Tensor | None]) -> tuple[int | None, ...]:
    """Where the first element of each tensor lies."""
    return tuple([None if one is None else one.data_ptr() for one in tensors])


Told = tuple[tuple[int, ...] | None, torch.dtype | None]
SIDES = ("source", "destination")
PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}  # what is itself the local tensor, or none
_ABSENT: Any = object()
_SIZE, _DTYPE = torch.Size, torch.dtype  # looked up once: torch is a large module
Read = tuple[torch.Tensor | None, Told]
_NOTHING: Read = (None, (None, None))
KINDS = 16  # of references, known not to be tensors: torch takes long to say so
_references: dict[type, bool] = {}


def read(tensor: Any) -> Read:
    """Read a DTensor, a reference with `_local_tensor` or `to_local()`, a plain local tensor, or None."""
    if tensor is None:
        return _NOTHING
    if type(tensor) not in _references:
        if isinstance(tensor, torch.Tensor):
            return _read_tensor(tensor)
        remember(_references, type(tensor), True, KINDS)
    try:
        local = getattr(tensor, "_local_tensor", _ABSENT)
        local = tensor.to_local() if local is _ABSENT else local
        shape, dtype = tensor.shape, tensor.dtype
        shape = shape if type(shape) is _SIZE else sizes("tensor", tuple(shape))
    except (AttributeError, TypeError) as error:
        raise MissingTensorError(
            f"expected a tensor, a reference with .shape, .dtype and ._local_tensor, or None, got {type(tensor).__name__}"
        ) from error
    if dtype is not None and not isinstance(dtype, _DTYPE):
        raise DtypeError(f"expected a reference's dtype to be a torch.dtype, got {dtype!r}")
    told = shape, dtype
    if type(local) in PLAIN:
        return local, told
    if not isinstance(local, torch.Tensor):
        raise MissingTensorError(f"expected a reference to a tensor, got one to {type(local).__name__}")
    return _settled(local), told


def _read_tensor(tensor: torch.Tensor) -> Read:
    """A rank outside a DTensor's mesh has an empty local tensor that stands for none."""
    if isinstance(tensor, DTensor):
        outside = tensor.device_mesh.get_coordinate() is None
        local = None if outside else _settled(tensor._local_tensor)  # noqa: SLF001  (to_local() would record history)
        return local, (tensor.shape, tensor.dtype)
    return _settled(tensor), (None, tensor.dtype)


def _settled(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor once it is filled; refused where it is of a kind that shows strides and has none, as a nested one."""
    local = settle(tensor)
    if local.layout is not torch.strided:
        raise MissingTensorError(
            f"expected a dense tensor, whose elements lie at strides in memory, got {local.layout}"
        )
    return local


def read_all(tensors: Sequence[Any], names: Sequence[str]) -> tuple[Sequence[torch.Tensor | None], tuple[Told, ...]]:
    """The local tensors of sources and destinations, in turn, and what each side tells beside.

    Args:
        names: the items', for messages.
    """
    given = [_read_as(names[n // 2], one) for n, one in enumerate(tensors)]
    locals_, told = zip(*given, strict=True)
    return locals_, told


def read_pair(src: Any, dst: Any) -> tuple[Sequence[torch.Tensor | None], tuple[Told, ...]]:
    """The same of one source and destination, at less cost."""
    one, of_one = _NOTHING if src is None else read(src)
    other, of_other = _NOTHING if dst is None else read(dst)
    return (one, other), (of_one, of_other)


def _read_as(name: str, tensor: Any) -> Read:
    with about(f"item {name!r}"):
        return read(tensor)


def layouts(
    meshes: Sequence[Any],
    placements: Sequence[Sequence[Placement]],
    shape: tuple[int, ...] | None,
    size: int,
    mesh_of: Callable[[Any], Mesh] = Mesh.of,
) -> list[Layout]:
    """The layouts of both sides; of several faults the one that stands first in the table of errors is raised."""
    for side, kinds in zip(SIDES, placements, strict=True):
        with about(f"{side} layout"):
            if not isinstance(kinds, Sequence):
                raise LayoutError(f"expected one placement a mesh dim, in a tuple, got {kinds!r}")
            check_kinds(kinds)
    if shape is not None:
        for side, kinds in zip(SIDES, placements, strict=True):
            with about(f"{side} layout"):
                shard_dims(kinds, len(shape))
    found = []
    for side, mesh, kinds in zip(SIDES, meshes, placements, strict=True):
        with about(f"{side} layout"):
            found.append(Layout(mesh_of(mesh), tuple(kinds)))
            check_ranks(found[-1].mesh, size)
    if shape is not None:
        for side, layout in zip(SIDES, found, strict=True):
            with about(f"{side} layout"):
                check_segments(layout.placements, shape)
    return found


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Name what an error is about in front of its message."""
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
