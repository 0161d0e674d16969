"""Snapshots of what callers pass: tell in little time whether tensors, meshes and placements are as they were."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from operator import is_
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from restripe.group.inputs import OF_LAYOUT
from restripe.layout.mesh import Layout, Mesh
from restripe.layout.segmented import Segmented

#: TorchDynamo's tensor guards. Private API; a wrong signature crashes the process, so only tested torch versions use it.
TensorGuards: Any = None
if torch.__version__ < "2.14.dev":
    from torch._C._dynamo.guards import TensorGuards

#: Sizes, strides, dtype, device, and whether the tensor is a conj or a neg view.
TensorSnapshot = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device, bool, bool]
_read_bytes = ctypes.string_at


def tensor_snapshot(tensor: torch.Tensor) -> TensorSnapshot:
    """Return all that checks and lowering read of a tensor, but for its address."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg()


def tensor_guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """Return a function that tells whether other tensors have the same snapshots, or None where there is none.

    It takes a third of the time of `tensor_snapshot`. It may tell alike tensors apart: by their types, `requires_grad`, and
    the mode of autograd or autocast around.
    """
    if TensorGuards is None or not tensors or not all(issubclass(type(tensor), torch.Tensor) for tensor in tensors):
        return None  # a proxy passes isinstance and crashes the guard
    if len({id(tensor) for tensor in tensors}) != len(tensors):
        return None
    guard: Callable[..., bool] = TensorGuards(
        *tensors,
        dynamic_dims_sizes=[list(tensor.shape) for tensor in tensors],
        dynamic_dims_strides=[list(tensor.stride()) for tensor in tensors],
    ).check
    return guard


def layout_key(mesh: Any, placements: Any) -> Hashable:
    """Return a key that two sides of `LayoutInputs` share only if they say the same; None where their kinds have no key."""
    if placements is OF_LAYOUT:
        return mesh if isinstance(mesh, Layout) else None
    ranks, dims = mesh_key(mesh), placements_key(placements)
    return None if ranks is None or dims is None else (ranks, dims)


class RankWatch:
    """Tells whether the rank tensor of a mesh of the caller's own class is as it was, in a fifth of the time of its key.

    It reads the tensor's memory, so it first asks whether the tensor still lies there.
    """

    __slots__ = ("_address", "_attribute", "_contents", "_dtype", "_memory", "_mesh", "_ranks", "_shape")

    def __init__(self, mesh: Any, attribute: str, ranks: torch.Tensor) -> None:
        self._mesh, self._attribute, self._ranks = mesh, attribute, ranks
        self._address, self._shape, self._dtype = ranks.data_ptr(), ranks.shape, ranks.dtype
        self._memory = memoryview((ctypes.c_uint8 * ranks.nbytes).from_address(self._address)).cast("B")
        self._contents = bytes(self._memory)

    def unchanged(self) -> bool:
        """Return whether the mesh has the same ranks."""
        ranks = getattr(self._mesh, self._attribute, None)
        return (
            ranks is self._ranks
            and ranks.data_ptr() == self._address
            and ranks.shape == self._shape
            and ranks.dtype is self._dtype
            and ranks.is_contiguous()
            and self._memory == self._contents
        )


class PlacementWatch:
    """Tells whether a list has the same placements."""

    __slots__ = ("_list", "_placements")

    def __init__(self, placements: list[Any]) -> None:
        self._list, self._placements = placements, tuple(placements)

    def unchanged(self) -> bool:
        """Return whether the list has the same objects at the same places."""
        return len(self._list) == len(self._placements) and all(map(is_, self._list, self._placements))


Watch = RankWatch | PlacementWatch


def watches(mesh: Any, placements: Any) -> list[Watch] | None:
    """Return what watches a side of `LayoutInputs` that has a key, nothing where it cannot change; None where nothing can.

    The objects have to be kept while they are watched.
    """
    if placements is OF_LAYOUT:
        return []
    watching: list[Watch] = [PlacementWatch(placements)] if type(placements) is list else []
    if isinstance(mesh, Mesh) or is_device_mesh(mesh):
        return watching
    for attribute in ("mesh", "_mesh"):
        ranks = getattr(mesh, attribute, None)
        if type(ranks) is torch.Tensor and ranks.is_cpu and ranks.is_contiguous() and ranks.numel():
            return [RankWatch(mesh, attribute, ranks), *watching]
        if ranks is not None:
            return None
    return None


def mesh_key(mesh: Any) -> Hashable:
    """Return a key for the ranks of a mesh now, or None for a mesh of a kind that has none.

    A Mesh cannot change, and neither can a DeviceMesh: torch reads its ranks once. Of any other object the ranks are read
    anew each time, since whoever made it may change them in place.
    """
    if isinstance(mesh, Mesh):
        return mesh
    if is_device_mesh(mesh):
        return DeviceMesh, id(mesh)  # whoever keeps the key keeps the mesh
    ranks = getattr(mesh, "mesh", None)
    if ranks is None:
        ranks = getattr(mesh, "_mesh", mesh)
    if type(ranks) is torch.Tensor:
        return _rank_tensor_key(ranks)
    if hasattr(ranks, "tobytes") and hasattr(ranks, "dtype") and hasattr(ranks, "shape"):  # numpy and its kin
        return str(ranks.dtype), tuple(ranks.shape), ranks.tobytes()
    return _nested_key(ranks)


def is_device_mesh(mesh: Any) -> bool:
    """Return whether a mesh is a DeviceMesh; asking torch takes long, so it is asked once a class."""
    return _derives_from_device_mesh(type(mesh))  # type: ignore[arg-type]  # mypy takes a class for unhashable


@lru_cache(maxsize=64)
def _derives_from_device_mesh(kind: Hashable) -> bool:
    return isinstance(kind, type) and issubclass(kind, DeviceMesh)


def _rank_tensor_key(ranks: torch.Tensor) -> Hashable:
    """Return a tensor's contents; a tensor on a GPU is copied to the host each time."""
    if ranks.layout is not torch.strided or ranks.is_meta:
        return None
    if not (ranks.is_cpu and ranks.is_contiguous()):
        ranks = ranks.cpu().contiguous()
    return ranks.dtype, ranks.shape, _read_bytes(ranks.data_ptr(), ranks.nbytes)


def _nested_key(ranks: Any) -> Hashable:
    """Return nested lists of whole numbers as nested tuples; None where they hold anything else."""
    if type(ranks) is int:
        return ranks
    if not isinstance(ranks, list | tuple):
        return None
    keys = tuple(map(_nested_key, ranks))
    return None if None in keys else ("ranks", keys)


def placements_key(placements: Any) -> Hashable:
    """Return a key for placements in a list or tuple, or None where there is one of a kind that has no key.

    torch's placements are slow to hash and to compare.
    """
    if type(placements) is not tuple and type(placements) is not list:
        return None
    keys = []
    for placement in placements:
        kind = type(placement)
        if kind is Shard:
            keys.append(placement.dim)
        elif kind is Replicate:
            keys.append(None)
        elif kind is _StridedShard:
            keys.append((kind, placement.dim, placement.split_factor))
        elif kind is Segmented:
            keys.append((kind, placement.dim, placement.sizes))
        else:
            return None
    return tuple(keys)
