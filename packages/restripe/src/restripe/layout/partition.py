"""Partitions: a layout applied to a tensor's shape, and what each rank owns then, in closed form.

Nothing here loops over the ranks of the world: the cost of a question depends on the layout, not on how many ranks it has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import mul
from typing import NamedTuple

from torch.distributed.tensor.placement_types import Placement, _StridedShard

from restripe.layout.chunked import ChunkedDim, Coordinates, CutDim, Region, ravel, unravel
from restripe.layout.mesh import Layout, Mesh
from restripe.layout.piecewise import CutStep, PiecewiseDim, plain_order
from restripe.layout.placements import check_segments
from restripe.layout.segmented import Segmented


class ShardPosition(NamedTuple):
    """A rank's position in a partition.

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
        ShapeError: segments that do not add up to their dim.
    """

    layout: Layout
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self._targets  # noqa: B018  (refuse what does not fit at birth)

    @cached_property
    def _targets(self) -> tuple[int | None, ...]:
        return check_segments(self.layout.placements, self.shape)

    @property
    def mesh(self) -> Mesh:
        """The layout's mesh."""
        return self.layout.mesh

    @cached_property
    def steps(self) -> tuple[tuple[CutStep, ...], ...]:
        """For each tensor dim how the mesh dims that shard it cut, left to right."""
        placements, sizes = self.layout.placements, self.mesh.shape
        return tuple(
            tuple(
                _cut_step(m, sizes[m], placements[m])
                for m, target in enumerate(self._targets)
                if target == d and sizes[m] > 1
            )
            for d in range(len(self.shape))
        )

    @cached_property
    def _cutting(self) -> list[tuple[tuple[int, ...], CutDim]]:
        return [_cut_dim(length, steps) for length, steps in zip(self.shape, self.steps, strict=True)]

    @cached_property
    def dims(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor dim the mesh dims that shard it, in the order in which its `cuts` take them."""
        return tuple(dims for dims, _ in self._cutting)

    @cached_property
    def cuts(self) -> tuple[CutDim, ...]:
        """The cut of each tensor dim."""
        return tuple(cuts for _, cuts in self._cutting)

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        """The step that one coordinate along each mesh dim adds to a rank's index in the mesh."""
        sizes = self.mesh.shape
        return tuple(math.prod(sizes[m + 1 :]) for m in range(len(sizes)))

    @cached_property
    def _steps_along(self) -> list[list[int]]:
        """The strides of the mesh dims that cut each tensor dim."""
        return [[self._strides[m] for m in dims] for dims in self.dims]

    def position(self, rank: int) -> ShardPosition | None:
        """Return which shard the rank holds, and which replica of it; None outside the mesh."""
        at = self.mesh.coordinates(rank)
        if at is None:
            return None
        inner = self.layout.replicating
        shard = tuple(tuple(at[m] for m in dims) for dims in self.dims)
        return ShardPosition(shard, ravel([at[m] for m in inner], [self.mesh.shape[m] for m in inner]))

    def chunk_offset(self, dim: int, coordinates: Coordinates) -> int:
        """Return what a chunk of tensor dim `dim` adds to its holders' index in the mesh."""
        return sum(map(mul, self._steps_along[dim], coordinates))

    def replica_offset(self, replica: int) -> int:
        """Return what replica number `replica` adds to its holder's index in the mesh."""
        inner = self.layout.replicating
        at = unravel(replica, [self.mesh.shape[m] for m in inner])
        return sum(self._strides[m] * index for m, index in zip(inner, at, strict=True))

    @cached_property
    def replica_offsets(self) -> list[int]:
        """The offset that each replica adds to its holder's index in the mesh, in replica order."""
        steps = [range(0, self._strides[m] * self.mesh.shape[m], self._strides[m]) for m in self.layout.replicating]
        return [sum(step) for step in product(*steps)]

    def shard_offset(self, shard: Sequence[Coordinates]) -> int:
        """Return what a shard adds to its holders' index in the mesh: the sum over its chunks."""
        return sum(self.chunk_offset(dim, coordinates) for dim, coordinates in enumerate(shard))

    def holds(self, rank: int, shard: int) -> bool:
        """Return whether the rank holds the shard of this offset."""
        index = self.mesh.index(rank)
        return index is not None and self._shard_of(index) == shard

    def _shard_of(self, index: int) -> int:
        """Return the shard offset of an index in the mesh."""
        for m in self.layout.replicating:
            index -= index // self._strides[m] % self.mesh.shape[m] * self._strides[m]
        return index

    def region(self, rank: int) -> Region | None:
        """Return what the rank owns, or None outside the mesh."""
        position = self.position(rank)
        return None if position is None else self.region_of(position)

    def region_of(self, position: ShardPosition) -> Region:
        """Return what the ranks at a position own."""
        return tuple(cuts.intervals(at) for cuts, at in zip(self.cuts, position.shard, strict=True))


def _cut_step(mesh_dim: int, size: int, placement: Placement) -> CutStep:
    """Return how a mesh dim with this placement, which shards, cuts."""
    if isinstance(placement, _StridedShard):
        return CutStep(mesh_dim, size, pieces=int(placement.split_factor))
    return CutStep(mesh_dim, size, segments=placement.sizes if isinstance(placement, Segmented) else ())


def _cut_dim(length: int, steps: Sequence[CutStep]) -> tuple[tuple[int, ...], CutDim]:
    """Return the mesh dims in the order in which they cut, and the cut: by plain shards wherever these can do it."""
    order = steps if all(step.plain for step in steps) else plain_order(length, steps)
    if order is None:
        return tuple(step.mesh_dim for step in steps), PiecewiseDim(length, tuple(steps))
    return tuple(step.mesh_dim for step in order), ChunkedDim(length, tuple(step.size for step in order))
