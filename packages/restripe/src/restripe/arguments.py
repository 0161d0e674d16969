"""What callers pass: tensors of several kinds, read by duck type, and the checks that one rank can make alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import index, itemgetter
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from restripe.cuts import Region, lengths
from restripe.errors import (
    AliasingError,
    DeviceError,
    DtypeError,
    LayoutError,
    MissingTensorError,
    ReshardError,
    ShapeError,
)
from restripe.layout import Layout, Mesh, short
from restripe.placements import check_kinds, check_segments, shard_dims
from restripe.planning import RankPlan
from restripe.staging import overlaps_itself, settle, share_elements


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


class Given(NamedTuple):
    """One side as a caller passes it: the global shape and dtype where they can be read, and the local tensor."""

    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    local: torch.Tensor | None


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


def addresses(tensors: Iterable[torch.Tensor | None]) -> list[int | None]:
    """Where the first element of each tensor lies."""
    return [None if one is None else one.data_ptr() for one in tensors]


Told = tuple[tuple[int, ...] | None, torch.dtype | None]
SIDES = ("source", "destination")
_PLAIN = {torch.Tensor, torch.nn.Parameter, type(None)}
_ABSENT: Any = object()
Read = tuple[torch.Tensor | None, Told]
_NOTHING: Read = (None, (None, None))


def read(tensor: Any) -> Read:
    """Read a DTensor, a reference with `_local_tensor` or `to_local()`, a plain local tensor, or None.

    On a rank outside its mesh a DTensor has an empty local tensor that stands for none.
    """
    if not isinstance(tensor, torch.Tensor):
        return _NOTHING if tensor is None else _referred(tensor)
    if isinstance(tensor, DTensor):
        outside = tensor.device_mesh.get_coordinate() is None
        local = None if outside else _settled(tensor._local_tensor)  # noqa: SLF001  (to_local() would record history)
        return local, (tensor.shape, tensor.dtype)
    return _settled(tensor), (None, tensor.dtype)


def _referred(reference: Any) -> Read:
    try:
        local = getattr(reference, "_local_tensor", _ABSENT)
        local = reference.to_local() if local is _ABSENT else local
        shape, dtype = reference.shape, reference.dtype
        shape = shape if type(shape) is torch.Size else sizes("tensor", tuple(shape))
    except (AttributeError, TypeError) as error:
        raise MissingTensorError(
            f"expected a tensor, a reference with .shape, .dtype and ._local_tensor, or None, got {type(reference).__name__}"
        ) from error
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise DtypeError(f"expected a reference's dtype to be a torch.dtype, got {dtype!r}")
    told = shape, dtype
    if local is None:
        return None, told
    if not isinstance(local, torch.Tensor):
        raise MissingTensorError(f"expected a reference to a tensor, got one to {type(local).__name__}")
    return _settled(local), told


def _settled(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor once it is filled; refused where it is of a kind that shows strides and has none, as a nested one."""
    local = settle(tensor)
    if local.layout is not torch.strided:
        raise MissingTensorError(
            f"expected a dense tensor, whose elements lie at strides in memory, got {local.layout}"
        )
    return local


def read_all(tensors: Sequence[Any], names: Sequence[str]) -> tuple[Sequence[torch.Tensor | None], tuple[Told, ...]]:
    """The local tensors of sources and destinations, in turn, and what each side tells beside; nothing where all are plain.

    Args:
        names: the items', for messages.
    """
    if set(map(type, tensors)) <= _PLAIN:
        return tensors, ()
    given = [_read_as(names[n // 2], one) for n, one in enumerate(tensors)]
    locals_, told = zip(*given, strict=True)
    return locals_, told


def read_pair(src: Any, dst: Any) -> tuple[Sequence[torch.Tensor | None], tuple[Told, ...]]:
    """The same of one source and destination, at less cost."""
    if type(src) in _PLAIN and type(dst) in _PLAIN:
        return (src, dst), ()
    (one, of_one), (other, of_other) = read(src), read(dst)
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
