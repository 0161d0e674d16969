"""Meshes, layouts, and what a rank owns under one, in closed form.

Nothing here loops over the ranks of the world: the cost of a question depends on the layout, not on how many ranks it has
(a Mesh counts its ranks once, when it is made).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import index
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from restripe.cuts import Coordinates, Cuts, Region, ravel, unravel
from restripe.errors import InvalidPlacementError, LayoutError, UnsupportedPlacementError


@dataclass(frozen=True, eq=False)
class Mesh:
    """An n-dim grid of distinct ranks of a process group, in row-major order.

    Args:
        shape: the grid's sizes, each at least 1.
        ranks: the group ranks, row-major; any order, none twice.

    Raises:
        LayoutError: the ranks do not fill the shape, one stands twice, or one is negative.
    """

    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "shape", tuple(index(size) for size in self.shape))
            object.__setattr__(self, "ranks", tuple(index(rank) for rank in self.ranks))
        except TypeError as error:
            raise LayoutError(f"expected a mesh of whole numbers ({error}); pass ranks of the process group") from error
        if min(self.shape, default=1) < 1 or math.prod(self.shape) != len(self.ranks):
            raise LayoutError(
                f"expected one rank for each place of a mesh of shape {self.shape}, at least one, got {len(self.ranks)}; "
                "give sizes of 1 or more and as many ranks as they make"
            )
        if len(set(self.ranks)) != len(self.ranks):
            twice = sorted(rank for rank, times in Counter(self.ranks).items() if times > 1)
            raise LayoutError(
                f"expected distinct ranks in a mesh, got {short(twice)} more than once in {short(self.ranks)}; name each rank once"
            )
        if min(self.ranks) < 0:
            raise LayoutError(
                f"expected mesh ranks that count from 0, got {min(self.ranks)}; name ranks of the process group"
            )

    @classmethod
    def of(cls, mesh: Any) -> Mesh:
        """The mesh of a Mesh, an object with a `.mesh` or `._mesh` rank tensor, a rank tensor, or nested lists of ranks."""
        if isinstance(mesh, Mesh):
            return mesh
        for name in ("mesh", "_mesh"):
            mesh = getattr(mesh, name, mesh)
        try:
            grid = torch.as_tensor(mesh, device="cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            raise LayoutError(
                f"expected a mesh of ranks, got {mesh!r} ({error}); pass a Mesh, a DeviceMesh or nested lists"
            ) from error
        if grid.dtype.is_floating_point or grid.dtype.is_complex or grid.dtype == torch.bool:
            raise LayoutError(
                f"expected a mesh of integer ranks, got dtype {grid.dtype}; pass ranks of the process group"
            )
        return cls(tuple(grid.shape), tuple(grid.flatten().tolist()))

    @classmethod
    def from_device_mesh(cls, mesh: DeviceMesh, group: Any = None) -> Mesh:
        """The mesh with its global ranks translated to ranks of the group.

        Args:
            mesh: a DeviceMesh of this process's torch.distributed world.
            group: a torch process group (the default one when None), or a group made by `join`.

        Raises:
            LayoutError: a rank of the mesh is not a member of the group.
        """
        group = dist.group.WORLD if group is None else group
        place = getattr(group, "members", None)
        if place is None:
            place = {rank: number for number, rank in enumerate(dist.get_process_group_ranks(group))}
        strangers = [rank for rank in mesh.mesh.flatten().tolist() if rank not in place]
        if strangers:
            raise LayoutError(
                f"global ranks {short(strangers)} of the mesh are not in the process group; use a group that covers both meshes"
            )
        return cls(tuple(mesh.mesh.shape), tuple(place[rank] for rank in mesh.mesh.flatten().tolist()))

    @property
    def ndim(self) -> int:
        """The number of mesh dims."""
        return len(self.shape)

    @cached_property
    def mesh(self) -> torch.Tensor:
        """The ranks as an int64 tensor of the mesh's shape, the form that the drop-in and DeviceMesh share."""
        return torch.tensor(self.ranks, dtype=torch.int64).reshape(self.shape)

    @property
    def _mesh(self) -> torch.Tensor:
        return self.mesh

    @cached_property
    def _index(self) -> dict[int, int]:
        return {rank: index for index, rank in enumerate(self.ranks)}

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.ranks))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Mesh)
            and self._hash == other._hash
            and self.shape == other.shape
            and self.ranks == other.ranks
        )

    def __repr__(self) -> str:
        return f"Mesh(shape={self.shape}, ranks={short(self.ranks)})"

    def __contains__(self, rank: int) -> bool:
        return rank in self._index

    @cached_property
    def highest(self) -> int:
        """The highest rank."""
        return max(self.ranks)

    def covers(self, other: Mesh) -> bool:
        """Whether every rank of the other mesh is in this one."""
        return self is other or all(rank in self._index for rank in other.ranks)

    def coordinates(self, rank: int) -> Coordinates | None:
        """The rank's coordinates, or None outside the mesh."""
        index = self._index.get(rank)
        return None if index is None else unravel(index, self.shape)


@dataclass(frozen=True, eq=False)
class Layout:
    """Where a tensor lies: a mesh and one placement a mesh dim, Shard(dim) or Replicate().

    Raises:
        UnsupportedPlacementError: a placement of another kind, subclasses of Shard included.
        LayoutError: placements and mesh dims differ in number.
    """

    mesh: Mesh
    placements: tuple[Placement, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mesh", Mesh.of(self.mesh))
        object.__setattr__(self, "placements", tuple(self.placements))
        check_kinds(self.placements)
        if len(self.placements) != self.mesh.ndim:
            raise LayoutError(
                f"expected one placement a mesh dim: {self.mesh.ndim} for mesh shape {self.mesh.shape}, "
                f"got {len(self.placements)}: {self.placements}"
            )

    @cached_property
    def _hash(self) -> int:
        return hash((self.mesh, self.placements))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Layout) and self.mesh == other.mesh and self.placements == other.placements

    @cached_property
    def replicating(self) -> tuple[int, ...]:
        """The mesh dims larger than 1 that replicate, left to right."""
        sizes = self.mesh.shape
        return tuple(
            m for m, placement in enumerate(self.placements) if isinstance(placement, Replicate) and sizes[m] > 1
        )

    @cached_property
    def replicas(self) -> int:
        """How many ranks hold each region."""
        return math.prod(self.mesh.shape[m] for m in self.replicating)


def check_kinds(placements: Sequence[object]) -> None:
    """Refuse every placement that is neither exactly Shard nor Replicate (UnsupportedPlacementError)."""
    for mesh_dim, placement in enumerate(placements):
        if type(placement) not in (Shard, Replicate):
            raise UnsupportedPlacementError(
                f"placement {placement!r} of mesh dim {mesh_dim} cannot be moved: expected Shard(dim) or Replicate(); redistribute to one of them first"
            )


def shard_dims(placements: Sequence[Placement], ndim: int) -> tuple[int | None, ...]:
    """For each mesh dim the tensor dim that it shards, counted from 0, or None where it replicates.

    Raises:
        InvalidPlacementError: a shard dim outside [-ndim, ndim).
    """
    dims: list[int | None] = []
    for mesh_dim, placement in enumerate(placements):
        if not isinstance(placement, Shard):
            dims.append(None)
            continue
        if not -ndim <= placement.dim < ndim:
            raise InvalidPlacementError(
                f"{placement!r} of mesh dim {mesh_dim} names tensor dim {placement.dim}, but the tensor has {ndim} dims; name one in [{-ndim}, {ndim})"
            )
        dims.append(placement.dim % ndim)
    return tuple(dims)


class Place(NamedTuple):
    """A rank's place in a partition.

    `shard`: for each tensor dim, the coordinates on the mesh dims that shard it. `replica`: the rank's number among the
    ranks that hold the same shard, in mesh order.
    """

    shard: tuple[Coordinates, ...]
    replica: int


@dataclass(frozen=True)
class Partition:
    """A layout applied to a tensor's shape: which rank owns what. Mesh dims of size 1 neither shard nor replicate.

    Raises:
        InvalidPlacementError: a shard dim that the shape does not have.
    """

    layout: Layout
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.dims  # noqa: B018  (refuse a bad shard dim at birth)

    @property
    def mesh(self) -> Mesh:
        """The layout's mesh."""
        return self.layout.mesh

    @cached_property
    def dims(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor dim the mesh dims that shard it, left to right."""
        targets = shard_dims(self.layout.placements, len(self.shape))
        sizes = self.mesh.shape
        return tuple(
            tuple(m for m, target in enumerate(targets) if target == d and sizes[m] > 1) for d in range(len(self.shape))
        )

    @cached_property
    def cuts(self) -> tuple[Cuts, ...]:
        """How each tensor dim is cut."""
        return tuple(
            Cuts(n, tuple(self.mesh.shape[m] for m in dims)) for n, dims in zip(self.shape, self.dims, strict=True)
        )

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        """What one step along each mesh dim adds to a rank's index in the mesh."""
        sizes = self.mesh.shape
        return tuple(math.prod(sizes[m + 1 :]) for m in range(len(sizes)))

    def place(self, rank: int) -> Place | None:
        """Which shard the rank holds, and which replica of it; None outside the mesh."""
        at = self.mesh.coordinates(rank)
        if at is None:
            return None
        inner = self.layout.replicating
        shard = tuple(tuple(at[m] for m in dims) for dims in self.dims)
        return Place(shard, ravel([at[m] for m in inner], [self.mesh.shape[m] for m in inner]))

    def chunk_offset(self, dim: int, coordinates: Coordinates) -> int:
        """What a chunk of tensor dim `dim` adds to its holders' index in the mesh."""
        return sum(self._strides[m] * index for m, index in zip(self.dims[dim], coordinates, strict=True))

    def replica_offset(self, replica: int) -> int:
        """What replica number `replica` adds to its holder's index in the mesh."""
        inner = self.layout.replicating
        at = unravel(replica, [self.mesh.shape[m] for m in inner])
        return sum(self._strides[m] * index for m, index in zip(inner, at, strict=True))

    @property
    def replica_offsets(self) -> list[int]:
        """What each replica adds to its holder's index in the mesh, in replica order."""
        steps = [range(0, self._strides[m] * self.mesh.shape[m], self._strides[m]) for m in self.layout.replicating]
        return [sum(step) for step in product(*steps)]

    def shard_offset(self, shard: Sequence[Coordinates]) -> int:
        """What a shard adds to its holders' index in the mesh: the sum over its chunks."""
        return sum(self.chunk_offset(dim, coordinates) for dim, coordinates in enumerate(shard))

    def region(self, rank: int) -> Region | None:
        """What the rank owns, or None outside the mesh."""
        place = self.place(rank)
        if place is None:
            return None
        intervals = (cuts.interval(coordinates) for cuts, coordinates in zip(self.cuts, place.shard, strict=True))
        return tuple(((lo, hi),) if lo < hi else () for lo, hi in intervals)


def replica_groups(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """The sets of ranks that hold equal regions, in mesh order, members in replica order; none where nothing replicates.

    They follow from mesh and placements alone, so one set serves tensors of every shape.
    """
    inner = layout.replicating
    if not inner:
        return ()
    outer = [m for m in range(layout.mesh.ndim) if m not in inner]
    grid = layout.mesh.mesh.permute(*outer, *inner)
    return tuple(tuple(row) for row in grid.reshape(-1, layout.replicas).tolist())


def short(items: Sequence[Any]) -> str:
    """The items for a message, cut after eight."""
    shown = ", ".join(str(item) for item in items[:8])
    return f"({shown}, ... {len(items)} in all)" if len(items) > 8 else f"({shown})"
