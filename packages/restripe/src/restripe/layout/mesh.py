"""Meshes and layouts, values that refuse what makes no sense at birth.

Nothing here loops over the ranks of the world, but a Mesh that counts its ranks once, when it is made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from hashlib import blake2b
from operator import index
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.placement_types import Placement

from restripe.errors import LayoutError
from restripe.layout.chunked import Coordinates, unravel
from restripe.layout.placements import as_segmented, check_kinds, shard_dims, with_dim

Host = int | str


@dataclass(frozen=True, eq=False)
class Mesh:
    """An n-dim grid of distinct ranks of a process group, in row-major order.

    Args:
        shape: the grid's sizes, each at least 1.
        ranks: the group ranks, row-major; any order, none twice.
        hosts: the host of each rank, by number or name, in the same order; None where they are not known. A rank that needs
            what several ranks hold gets it from its own host where it can.

    Raises:
        LayoutError: the ranks do not fill the shape, one stands twice, or one is negative; not one host a rank.
    """

    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    hosts: tuple[Host, ...] | None = None

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
        if self.hosts is not None:
            self._check_hosts(self.hosts)
            plain = tuple(str(host) if isinstance(host, str) else int(host) for host in self.hosts)
            object.__setattr__(self, "hosts", plain)  # equal hosts are told alike, True and 1 included

    def _check_hosts(self, hosts: Sequence[Host]) -> None:
        if len(hosts) != len(self.ranks) or not all(isinstance(host, int | str) for host in hosts):
            raise LayoutError(
                f"expected a host, as a number or a name, for each of the mesh's {len(self.ranks)} ranks, got {short(hosts)}; name all, or none"
            )

    @classmethod
    def of(cls, mesh: Any) -> Mesh:
        """Return the mesh of a Mesh, an object with a `.mesh` or `._mesh` rank tensor, a rank tensor, or nested lists of ranks."""
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
        """Return the mesh with its global ranks translated to ranks of the group.

        Args:
            mesh: a DeviceMesh of this process's torch.distributed world.
            group: a torch process group (the default one when None), or a group made by `join`.

        Raises:
            LayoutError: a rank of the mesh is not a member of the group.
        """
        group = dist.group.WORLD if group is None else group
        group_ranks = getattr(group, "members", None)
        if group_ranks is None:
            group_ranks = {rank: number for number, rank in enumerate(dist.get_process_group_ranks(group))}
        outside = [rank for rank in mesh.mesh.flatten().tolist() if rank not in group_ranks]
        if outside:
            raise LayoutError(
                f"global ranks {short(outside)} of the mesh are not in the process group; use a group that covers both meshes"
            )
        return cls(tuple(mesh.mesh.shape), tuple(group_ranks[rank] for rank in mesh.mesh.flatten().tolist()))

    @property
    def ndim(self) -> int:
        """The number of mesh dims."""
        return len(self.shape)

    @cached_property
    def mesh(self) -> torch.Tensor:
        """The ranks as an int64 tensor of the mesh's shape, the form that the drop-in and DeviceMesh share."""
        return torch.tensor(self.ranks, dtype=torch.int64, device="cpu").reshape(self.shape)

    @property
    def _mesh(self) -> torch.Tensor:
        return self.mesh

    @cached_property
    def _index(self) -> dict[int, int]:
        return {rank: index for index, rank in enumerate(self.ranks)}

    @cached_property
    def _hash(self) -> int:
        return hash((self.shape, self.ranks, self.hosts))

    @cached_property
    def digest(self) -> str:
        """16 bytes in hex that stand for shape, ranks and hosts, alike in every process."""
        return blake2b(f"{self.shape} {self.ranks} {self.hosts}".encode(), digest_size=16).hexdigest()

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        return _pickled_fields(self)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Mesh)
            and self._hash == other._hash
            and self.is_grid_of(other)
            and self.hosts == other.hosts
        )

    def is_grid_of(self, other: Mesh) -> bool:
        """Return whether the same ranks stand at the same coordinates; hosts may be known of one mesh only."""
        return self is other or (self.shape == other.shape and self.ranks == other.ranks)

    def __repr__(self) -> str:
        hosts = "" if self.hosts is None else f", hosts={short(self.hosts)}"
        return f"Mesh(shape={self.shape}, ranks={short(self.ranks)}{hosts})"

    def __contains__(self, rank: int) -> bool:
        return rank in self._index

    @cached_property
    def highest(self) -> int:
        """The highest rank."""
        return max(self.ranks)

    @cached_property
    def by_host(self) -> dict[Host, tuple[int, ...]]:
        """The ranks of each host in mesh order; nothing where hosts are not known."""
        ranks_of: dict[Host, list[int]] = {}
        for rank, host in zip(self.ranks, self.hosts or (), strict=False):
            ranks_of.setdefault(host, []).append(rank)
        return {host: tuple(ranks) for host, ranks in ranks_of.items()}

    def host(self, rank: int) -> Host | None:
        """Return the host of a rank of the mesh, or None where it is not known."""
        return None if self.hosts is None else self.hosts[self._index[rank]]

    def covers(self, other: Mesh) -> bool:
        """Return whether every rank of the other mesh is in this one."""
        return self is other or all(rank in self._index for rank in other.ranks)

    def index(self, rank: int) -> int | None:
        """Return the rank's index in row-major order, or None outside the mesh."""
        return self._index.get(rank)

    def coordinates(self, rank: int) -> Coordinates | None:
        """Return the rank's coordinates, or None outside the mesh."""
        index = self._index.get(rank)
        return None if index is None else unravel(index, self.shape)


@dataclass(frozen=True, eq=False)
class Layout:
    """A tensor's layout: a mesh and one placement a mesh dim.

    A placement is Shard(dim), Replicate(), _StridedShard(dim, split_factor=k) or Segmented(dim, sizes).

    Raises:
        UnsupportedPlacementError: a placement of another kind, subclasses of Shard included.
        InvalidPlacementError: a placement of numbers that make no sense for any tensor.
        LayoutError: placements and mesh dims differ in number.
    """

    mesh: Mesh
    placements: tuple[Placement, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mesh", Mesh.of(self.mesh))
        object.__setattr__(self, "placements", tuple(self.placements))
        check_kinds(self.placements)
        object.__setattr__(self, "placements", tuple(map(as_segmented, self.placements)))
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

    def __getstate__(self) -> dict[str, Any]:
        return _pickled_fields(self)

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
        """The number of ranks that hold each region."""
        return math.prod(self.mesh.shape[m] for m in self.replicating)


def _pickled_fields(value: Mesh | Layout) -> dict[str, Any]:
    """Return the fields for another process, without the values computed from them: hashes differ there."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def with_positive_dims(layout: Layout, ndim: int) -> Layout:
    """Return the layout with shard dims counted from 0, so that equal layouts of a tensor of `ndim` dims compare equal.

    Raises:
        InvalidPlacementError: as `shard_dims`.
    """
    pairs = list(zip(layout.placements, shard_dims(layout.placements, ndim), strict=True))
    if all(dim is None or placement.dim == dim for placement, dim in pairs):  # type: ignore[attr-defined]
        return layout
    return Layout(layout.mesh, tuple(with_dim(placement, dim) for placement, dim in pairs))


def replica_groups(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Return the sets of ranks that hold equal regions, in mesh order, members in replica order; none where nothing replicates.

    They follow from mesh and placements alone, so one set serves tensors of every shape.
    """
    inner = layout.replicating
    if not inner:
        return ()
    outer = [m for m in range(layout.mesh.ndim) if m not in inner]
    grid = layout.mesh.mesh.permute(*outer, *inner)
    return tuple(tuple(row) for row in grid.reshape(-1, layout.replicas).tolist())


def short(items: Sequence[Any]) -> str:
    """Return the items for a message, cut after eight."""
    shown = ", ".join(str(item) for item in items[:8])
    return f"({shown}, ... {len(items)} in all)" if len(items) > 8 else f"({shown})"
