"""The part of a tensor that each rank of a case holds, computed with the semantics of torch.chunk but without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, product
from typing import TypeAlias

from reshard_conformance.case.files import Case, Placement, Side, read_placement

__all__ = ["Box", "Geometry", "SideGeometry", "box_numel", "chunk_intervals", "intersect_boxes", "is_contiguous"]

Interval: TypeAlias = tuple[int, int]
Box: TypeAlias = tuple[Interval, ...]
#: A rank's part of a tensor dim: nonempty intervals, in the order of its local tensor.
Runs: TypeAlias = tuple[Interval, ...]
#: The kinds of placements that shard a dim.
SHARD_KINDS = frozenset({"S", "SS", "SG"})


def chunk_intervals(interval: Interval, parts: int) -> list[Interval]:
    """Cut a half-open interval as torch.chunk does; empty chunks at the end are included."""
    low, high = interval
    step = -(-(high - low) // parts)
    return [(min(low + i * step, high), min(low + i * step + step, high)) for i in range(parts)]


def box_numel(box: Box) -> int:
    """Return the number of elements of a box."""
    return math.prod(high - low for low, high in box)


def intersect_boxes(one: Box, other: Box) -> Box:
    """Return the intersection; a dim in which the two do not meet becomes empty."""
    return tuple((max(a, c), max(min(b, d), a, c)) for (a, b), (c, d) in zip(one, other, strict=True))


def is_contiguous(box: Box, parent: Box) -> bool:
    """Tell whether a nonempty box is one contiguous piece of its parent, row-major."""
    inner_dims_whole = True  # the box covers every later dim from end to end
    for part, whole in zip(reversed(box), reversed(parent), strict=True):
        if not inner_dims_whole and part[1] - part[0] > 1:
            return False
        inner_dims_whole = inner_dims_whole and part == whole
    return True


def total_length(runs: Iterable[Interval]) -> int:
    return sum(high - low for low, high in runs)


def slice_runs(runs: Runs, low: int, high: int) -> Runs:
    """Return the elements `low` to `high` of the runs, counted in their order; runs that touch become one."""
    sliced: list[Interval] = []
    for start, end in runs:
        slice_start, slice_end = start + max(low, 0), min(start + high, end)
        if slice_start < slice_end and sliced and sliced[-1][1] == slice_start:
            sliced[-1] = (sliced[-1][0], slice_end)
        elif slice_start < slice_end:
            sliced.append((slice_start, slice_end))
        low, high = low - (end - start), high - (end - start)
    return tuple(sliced)


def placement_pieces(placement: Placement, size: int) -> list[Interval]:
    """Return the pieces of a tensor dim that a placement shards one by one."""
    if placement.kind == "SS":
        return chunk_intervals((0, size), placement.factor)
    if placement.kind == "SG":
        return list(pairwise(accumulate(placement.sizes, initial=0)))
    return [(0, size)]


def shard_runs(runs: Runs, placement: Placement, parts: int) -> list[Runs]:
    """Shard the runs over a mesh dim of `parts` ranks."""
    chunks_of_pieces = [chunk_intervals(piece, parts) for piece in placement_pieces(placement, total_length(runs))]
    return [
        coalesce_runs(run for chunks in chunks_of_pieces for run in slice_runs(runs, *chunks[index]))
        for index in range(parts)
    ]


def coalesce_runs(runs: Iterable[Interval]) -> Runs:
    """Return the runs with those that touch joined into one."""
    separate = tuple(runs)
    return slice_runs(separate, 0, total_length(separate))


@dataclass(frozen=True)
class SideGeometry:
    """The shards of one side of a case; the layout has to be legal."""

    side: Side
    shape: tuple[int, ...]

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """The placements, parsed."""
        return tuple(map(read_placement, self.side.placements))

    @cached_property
    def dims(self) -> tuple[int | None, ...]:
        """The tensor dim that each mesh dim shards, None where it replicates."""
        return tuple(p.dim % len(self.shape) if p.kind in SHARD_KINDS else None for p in self.placements)

    @property
    def is_plain(self) -> bool:
        """True where every rank holds one box: no shard is strided or segmented."""
        return all(placement.kind in {"R", "S"} for placement in self.placements)

    @cached_property
    def runs(self) -> tuple[list[Runs], ...]:
        """The runs of every shard, for each tensor dim."""
        runs: tuple[list[Runs], ...] = tuple([((0, size),) if size else ()] for size in self.shape)
        for size, dim, placement in zip(self.side.mesh_shape, self.dims, self.placements, strict=True):
            if dim is not None:
                runs[dim][:] = [shard for whole in runs[dim] for shard in shard_runs(whole, placement, size)]
        return runs

    @cached_property
    def shard_intervals(self) -> tuple[list[Interval], ...]:
        """The interval of every shard, for each tensor dim of a plain side; an empty shard has the interval (0, 0)."""
        return tuple([runs[0] if runs else (0, 0) for runs in dim] for dim in self.runs)

    @cached_property
    def boxes(self) -> dict[int, Box]:
        """The box of the global tensor that each rank of the mesh holds, where the shards are plain."""
        boxes = {}
        for rank, coordinate in zip(self.side.ranks, product(*map(range, self.side.mesh_shape)), strict=True):
            shard_index = [0] * len(self.shape)
            for index, size, dim in zip(coordinate, self.side.mesh_shape, self.dims, strict=True):
                if dim is not None:
                    shard_index[dim] = shard_index[dim] * size + index
            boxes[rank] = tuple(dim[index] for dim, index in zip(self.shard_intervals, shard_index, strict=True))
        return boxes

    @property
    def shards(self) -> Iterator[Box]:
        """The distinct plain shards, as boxes of the global tensor; each is held by `replicas` ranks."""
        return product(*self.shard_intervals)

    @property
    def replicas(self) -> int:
        """The number of ranks that hold each shard."""
        return math.prod(size for size, dim in zip(self.side.mesh_shape, self.dims, strict=True) if dim is None)

    @property
    def is_uneven(self) -> bool:
        """True where the shards of some tensor dim differ in size."""
        return any(len(set(map(total_length, dim))) > 1 for dim in self.runs)

    @property
    def has_empty_shard(self) -> bool:
        """True where a rank holds nothing of a tensor that has elements."""
        return 0 not in self.shape and any(not runs for dim in self.runs for runs in dim)

    @property
    def is_nested(self) -> bool:
        """True where several mesh dims shard one tensor dim."""
        sharded = [dim for dim in self.dims if dim is not None]
        return len(set(sharded)) < len(sharded)

    @property
    def is_ascending(self) -> bool:
        """True where the ranks ascend in row-major order."""
        return all(low < high for low, high in pairwise(self.side.ranks))

    @property
    def is_strided(self) -> bool:
        """True where some rank's local tensor is not contiguous in memory."""
        wide = [max(map(total_length, dim), default=0) > 1 for dim in self.runs]
        strided = {"transposed": sum(wide) > 1, "sliced": any(wide[:-1]), "interleaved": any(wide)}
        kinds = {self.side.memory_of(rank) for rank in self.side.ranks}
        return 0 not in self.shape and any(strided.get(kind, False) for kind in kinds)


@dataclass(frozen=True)
class Geometry:
    """Both sides of a case, and the relation between them."""

    case: Case

    @cached_property
    def src(self) -> SideGeometry:
        """The source side."""
        return SideGeometry(self.case.src, self.case.shape)

    @cached_property
    def dst(self) -> SideGeometry:
        """The destination side."""
        return SideGeometry(self.case.dst, self.case.shape)

    @property
    def sides(self) -> tuple[SideGeometry, SideGeometry]:
        """Source and destination."""
        return self.src, self.dst

    @property
    def relation(self) -> str:
        """The relation of the two sets of ranks: equal, disjoint or overlapping."""
        src, dst = set(self.case.src.ranks), set(self.case.dst.ranks)
        if src == dst:
            return "equal"
        return "overlapping" if src & dst else "disjoint"

    @property
    def has_idle_rank(self) -> bool:
        """True where some rank is in neither mesh."""
        return len({*self.case.src.ranks, *self.case.dst.ranks}) < self.case.world_size

    @property
    def is_striped(self) -> bool:
        """True where upstream's rule stripes the destination.

        Every nonempty replica group can split dim 0 of its shard evenly, and every transfer (the intersection of a source
        shard and a stripe, local ones included) is contiguous in the source shard or in the destination shard.
        """
        if not self.src.is_plain or not self.dst.is_plain:
            return False
        replicas = self.dst.replicas
        shards = [shard for shard in self.dst.shards if box_numel(shard)]
        if replicas < 2 or not shards or not self.case.shape:
            return False
        if any((shard[0][1] - shard[0][0]) % replicas for shard in shards):
            return False
        return all(self.transfers_are_contiguous(shard, replicas) for shard in shards)

    def transfers_are_contiguous(self, shard: Box, replicas: int) -> bool:
        for rows in chunk_intervals(shard[0], replicas):
            for source in self.src.shards:
                box = intersect_boxes(source, (rows, *shard[1:]))
                if box_numel(box) and not is_contiguous(box, source) and not is_contiguous(box, shard):
                    return False
        return True
