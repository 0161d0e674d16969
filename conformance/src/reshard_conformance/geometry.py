"""Which part of a tensor each rank of a case holds, in the suite's own arithmetic with the semantics of torch.chunk."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, product
from typing import TypeAlias

from reshard_conformance.cases import Case, Placement, Side, read_placement

__all__ = ["Box", "Geometry", "SideGeometry", "chunks", "common", "elements", "is_contiguous"]

Interval: TypeAlias = tuple[int, int]
Box: TypeAlias = tuple[Interval, ...]
#: What a rank holds of a tensor dim: nonempty intervals, one after another in its local tensor.
Runs: TypeAlias = tuple[Interval, ...]
#: The kinds of placements that shard a dim.
SHARDS = frozenset({"S", "SS", "SG"})


def chunks(interval: Interval, parts: int) -> list[Interval]:
    """Cut a half-open interval as torch.chunk does, the empty chunks at the end included."""
    low, high = interval
    step = -(-(high - low) // parts)
    return [(min(low + i * step, high), min(low + i * step + step, high)) for i in range(parts)]


def elements(box: Box) -> int:
    return math.prod(high - low for low, high in box)


def common(one: Box, other: Box) -> Box:
    """The intersection; a dim in which the two do not meet becomes empty."""
    return tuple((max(a, c), max(min(b, d), a, c)) for (a, b), (c, d) in zip(one, other, strict=True))


def is_contiguous(box: Box, parent: Box) -> bool:
    """Whether a nonempty box lies in one piece inside its parent, row-major."""
    whole = True  # every later dim is covered from end to end
    for part, all_of_it in zip(reversed(box), reversed(parent), strict=True):
        if not whole and part[1] - part[0] > 1:
            return False
        whole = whole and part == all_of_it
    return True


def length(runs: Iterable[Interval]) -> int:
    return sum(high - low for low, high in runs)


def section(runs: Runs, low: int, high: int) -> Runs:
    """The elements `low` to `high` of the runs, counted one after another; runs that touch become one."""
    found: list[Interval] = []
    for start, end in runs:
        first, last = start + max(low, 0), min(start + high, end)
        if first < last and found and found[-1][1] == first:
            found[-1] = (found[-1][0], last)
        elif first < last:
            found.append((first, last))
        low, high = low - (end - start), high - (end - start)
    return tuple(found)


def pieces(placement: Placement, size: int) -> list[Interval]:
    """What a placement cuts by itself of a tensor dim with so many elements left."""
    if placement.kind == "SS":
        return chunks((0, size), placement.factor)
    if placement.kind == "SG":
        return list(pairwise(accumulate(placement.sizes, initial=0)))
    return [(0, size)]


def shards(runs: Runs, placement: Placement, parts: int) -> list[Runs]:
    """What the placement makes of some runs for each index of a mesh dim of `parts`."""
    cuts = [chunks(piece, parts) for piece in pieces(placement, length(runs))]
    return [merged(run for cut in cuts for run in section(runs, *cut[index])) for index in range(parts)]


def merged(runs: Iterable[Interval]) -> Runs:
    """The same elements in the same order, with runs that touch as one."""
    found = tuple(runs)
    return section(found, 0, length(found))


@dataclass(frozen=True)
class SideGeometry:
    """What one side of a case makes of the global shape; the layout has to be legal."""

    side: Side
    shape: tuple[int, ...]

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """The placements as they are read."""
        return tuple(map(read_placement, self.side.placements))

    @cached_property
    def dims(self) -> tuple[int | None, ...]:
        """The tensor dim that each mesh dim shards, None where it replicates."""
        return tuple(p.dim % len(self.shape) if p.kind in SHARDS else None for p in self.placements)

    @property
    def is_plain(self) -> bool:
        """Whether every rank holds one box: no shard is strided or segmented."""
        return all(placement.kind in {"R", "S"} for placement in self.placements)

    @cached_property
    def runs(self) -> tuple[list[Runs], ...]:
        """For every tensor dim the runs of its shards."""
        found: tuple[list[Runs], ...] = tuple([((0, size),) if size else ()] for size in self.shape)
        for size, dim, placement in zip(self.side.mesh_shape, self.dims, self.placements, strict=True):
            if dim is not None:
                found[dim][:] = [shard for whole in found[dim] for shard in shards(whole, placement, size)]
        return found

    @cached_property
    def spans(self) -> tuple[list[Interval], ...]:
        """For every tensor dim the intervals of its shards, where they are plain; an empty one lies anywhere."""
        return tuple([runs[0] if runs else (0, 0) for runs in dim] for dim in self.runs)

    @cached_property
    def boxes(self) -> dict[int, Box]:
        """The box of the global tensor that each rank of the mesh holds, where the shards are plain."""
        boxes = {}
        for rank, coordinate in zip(self.side.ranks, product(*map(range, self.side.mesh_shape)), strict=True):
            places = [0] * len(self.shape)
            for index, size, dim in zip(coordinate, self.side.mesh_shape, self.dims, strict=True):
                if dim is not None:
                    places[dim] = places[dim] * size + index
            boxes[rank] = tuple(intervals[place] for intervals, place in zip(self.spans, places, strict=True))
        return boxes

    @property
    def shards(self) -> Iterator[Box]:
        """The distinct plain shards, as boxes of the global tensor; each is held by `replicas` ranks."""
        return product(*self.spans)

    @property
    def replicas(self) -> int:
        """How many ranks hold each shard."""
        return math.prod(size for size, dim in zip(self.side.mesh_shape, self.dims, strict=True) if dim is None)

    @property
    def is_uneven(self) -> bool:
        """Whether the shards of some tensor dim differ in size."""
        return any(len(set(map(length, dim))) > 1 for dim in self.runs)

    @property
    def has_empty_shard(self) -> bool:
        """Whether a rank holds nothing of a tensor that has elements."""
        return 0 not in self.shape and any(not runs for dim in self.runs for runs in dim)

    @property
    def is_nested(self) -> bool:
        """Whether several mesh dims shard one tensor dim."""
        sharded = [dim for dim in self.dims if dim is not None]
        return len(set(sharded)) < len(sharded)

    @property
    def is_ascending(self) -> bool:
        """Whether the ranks ascend in row-major order."""
        return all(low < high for low, high in pairwise(self.side.ranks))

    @property
    def is_strided(self) -> bool:
        """Whether some rank's local tensor is not contiguous in memory."""
        wide = [max(map(length, dim), default=0) > 1 for dim in self.runs]
        strided = {"transposed": sum(wide) > 1, "sliced": any(wide[:-1]), "interleaved": any(wide)}
        kinds = {self.side.memory_of(rank) for rank in self.side.ranks}
        return 0 not in self.shape and any(strided.get(kind, False) for kind in kinds)


@dataclass(frozen=True)
class Geometry:
    """Both sides of a case and how they lie to each other."""

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
        """How the two sets of ranks lie: equal, disjoint or overlapping."""
        src, dst = set(self.case.src.ranks), set(self.case.dst.ranks)
        if src == dst:
            return "equal"
        return "overlapping" if src & dst else "disjoint"

    @property
    def has_idle_rank(self) -> bool:
        """Whether some rank is in neither mesh."""
        return len({*self.case.src.ranks, *self.case.dst.ranks}) < self.case.world_size

    @property
    def is_striped(self) -> bool:
        """Whether upstream's rule stripes the destination.

        Every nonempty replica group can split dim 0 of its shard evenly, and every transfer (a source shard met with a
        stripe, local ones included) lies in one piece within the source shard or within the destination shard.
        """
        if not self.src.is_plain or not self.dst.is_plain:
            return False
        replicas = self.dst.replicas
        shards = [shard for shard in self.dst.shards if elements(shard)]
        if replicas < 2 or not shards or not self.case.shape:
            return False
        if any((shard[0][1] - shard[0][0]) % replicas for shard in shards):
            return False
        return all(self.lands_directly(shard, replicas) for shard in shards)

    def lands_directly(self, shard: Box, replicas: int) -> bool:
        for rows in chunks(shard[0], replicas):
            for source in self.src.shards:
                box = common(source, (rows, *shard[1:]))
                if elements(box) and not is_contiguous(box, source) and not is_contiguous(box, shard):
                    return False
        return True
