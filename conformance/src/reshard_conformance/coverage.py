"""Classes of layouts, computed from a case alone, and how often a run has drawn each of them.

A fuzzer that draws easy cases proves nothing, so every class has a floor: the least share of the cases of a run.
The arithmetic here is the suite's own, with the semantics of torch.chunk.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from typing import TypeAlias

from reshard_conformance.cases import DTYPES, Case, Side, read_placement
from reshard_conformance.contract import Level

__all__ = [
    "CLASSES",
    "NCCL_DTYPES",
    "Box",
    "Class",
    "Coverage",
    "Geometry",
    "SideGeometry",
    "chunks",
    "common",
    "elements",
    "is_contiguous",
    "level",
]

Interval: TypeAlias = tuple[int, int]
Box: TypeAlias = tuple[Interval, ...]

#: The element types that NCCL knows by itself.
NCCL_DTYPES = frozenset(DTYPES) - {
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("bool", "int16", "uint16", "complex32", "complex64", "complex128"),
}


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


@dataclass(frozen=True)
class SideGeometry:
    """What one side of a case makes of the global shape; only Shard and Replicate."""

    side: Side
    shape: tuple[int, ...]

    @cached_property
    def dims(self) -> tuple[int | None, ...]:
        """The tensor dim that each mesh dim shards, None where it replicates."""
        read = (read_placement(text) for text in self.side.placements)
        return tuple(p.dim % len(self.shape) if p.kind == "S" else None for p in read)

    @cached_property
    def spans(self) -> tuple[list[Interval], ...]:
        """For every tensor dim the intervals of its shards."""
        spans = [[(0, size)] for size in self.shape]
        for size, dim in zip(self.side.mesh_shape, self.dims, strict=True):
            if dim is not None:
                spans[dim] = [piece for whole in spans[dim] for piece in chunks(whole, size)]
        return tuple(spans)

    @cached_property
    def boxes(self) -> dict[int, Box]:
        """The box of the global tensor that each rank of the mesh holds."""
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
        """The distinct shards, as boxes of the global tensor; each is held by `replicas` ranks."""
        return product(*self.spans)

    @property
    def replicas(self) -> int:
        """How many ranks hold each shard."""
        return math.prod(size for size, dim in zip(self.side.mesh_shape, self.dims, strict=True) if dim is None)

    @property
    def is_uneven(self) -> bool:
        """Whether the shards of some tensor dim differ in size."""
        return any(len({high - low for low, high in intervals}) > 1 for intervals in self.spans)

    @property
    def has_empty_shard(self) -> bool:
        """Whether a rank holds nothing of a tensor that has elements."""
        return 0 not in self.shape and any(low == high for spans in self.spans for low, high in spans)

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
        wide = [max((high - low for low, high in intervals), default=0) > 1 for intervals in self.spans]
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


@dataclass(frozen=True)
class Class:
    """A class of layouts with its floor, a share of all cases of a run.

    level: the lowest level of core that has such cases. ranks: the fewest ranks that one of its meshes needs.
    apart: whether it needs one more rank outside that mesh; below L3 every case does, as the meshes are disjoint there.
    """

    name: str
    floor: float
    level: Level
    ranks: int
    holds: Callable[[Geometry], bool]
    apart: bool = False

    def least(self, claimed: Level) -> int:
        """The fewest ranks of a world that has such a case at this level."""
        return self.ranks + (self.apart or claimed < Level.L3)

    def admitted(self, claimed: Level, sizes: Iterable[int]) -> bool:
        """Whether a run at this level in worlds of these sizes can draw it."""
        return self.level <= claimed and self.least(claimed) <= max(sizes)


def either(holds: Callable[[SideGeometry], bool]) -> Callable[[Geometry], bool]:
    return lambda geometry: holds(geometry.src) or holds(geometry.dst)


def mesh_of(ndim: int) -> Callable[[Geometry], bool]:
    return either(lambda side: len(side.dims) == ndim)


L0, L1, L2, L3 = Level
CLASSES = (
    Class("uneven on a sharded dim", 0.25, L2, 2, either(lambda side: side.is_uneven)),
    Class("an empty shard", 0.08, L2, 2, either(lambda side: side.has_empty_shard)),
    Class("several mesh dims on one tensor dim", 0.15, L1, 1, either(lambda side: side.is_nested)),
    Class("mesh of 2 dims", 0.30, L1, 1, mesh_of(2)),
    Class("mesh of 3 dims", 0.10, L1, 1, mesh_of(3)),
    Class("ranks not ascending", 0.15, L1, 2, either(lambda side: not side.is_ascending)),
    Class("meshes disjoint", 0.20, L0, 1, lambda both: both.relation == "disjoint", apart=True),
    Class("meshes equal", 0.10, L3, 1, lambda both: both.relation == "equal"),
    Class("meshes overlapping", 0.15, L3, 2, lambda both: both.relation == "overlapping"),
    Class("idle ranks", 0.10, L3, 1, lambda both: both.has_idle_rank, apart=True),
    Class("source replicated", 0.25, L0, 2, lambda both: both.src.replicas > 1),
    Class("destination replicated", 0.25, L0, 2, lambda both: both.dst.replicas > 1),
    Class("destination striped", 0.06, L0, 2, lambda both: both.is_striped),
    Class("tensor of 0 dims", 0.01, L0, 1, lambda both: not both.case.shape),
    Class("tensor of 4 or more dims", 0.05, L0, 1, lambda both: len(both.case.shape) >= 4),
    Class("a dim of size 0", 0.03, L2, 1, lambda both: 0 in both.case.shape),
    Class("a dim of size 1", 0.10, L0, 1, lambda both: 1 in both.case.shape),
    Class("non-contiguous source", 0.15, L3, 1, lambda both: both.src.is_strided),
    Class("non-contiguous destination", 0.15, L3, 1, lambda both: both.dst.is_strided),
    Class("dtype outside NCCL's own", 0.10, L3, 1, lambda both: both.case.dtype not in NCCL_DTYPES),
    Class("negative shard dim", 0.05, L0, 1, either(lambda side: any("S(-" in text for text in side.side.placements))),
)


def level(case: Case) -> Level:
    """The lowest level of core that holds the case (only Shard and Replicate, every argument legal)."""
    both = Geometry(case)
    if both.relation != "disjoint" or both.has_idle_rank or case.dtype not in NCCL_DTYPES:
        return L3
    if any(side.side.memory != "contiguous" for side in both.sides):
        return L3
    if 0 in case.shape or any(side.is_uneven for side in both.sides):
        return L2
    plain = all(len(side.dims) == 1 and side.is_ascending for side in both.sides)
    return L0 if plain else L1


@dataclass
class Coverage:
    """How many cases a run has drawn, in all and of each class that its level and world sizes admit."""

    claimed: Level
    sizes: tuple[int, ...]
    total: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def classes(self) -> tuple[Class, ...]:
        """The classes whose floors apply."""
        return tuple(kind for kind in CLASSES if kind.admitted(self.claimed, self.sizes))

    def add(self, case: Case) -> None:
        """Count a case."""
        geometry = Geometry(case)
        self.total += 1
        self.counts.update(kind.name for kind in CLASSES if kind.holds(geometry))

    def merge(self, total: int, counts: Mapping[str, int]) -> None:
        """Count the cases of another part of the run."""
        self.total += total
        self.counts.update(counts)

    def share(self, kind: Class) -> float:
        """The share of a class among all cases so far."""
        return self.counts[kind.name] / self.total if self.total else 0.0

    def lagging(self, margin: float = 1.0) -> tuple[str, ...]:
        """The names of the classes below `margin` times their floor, those that lag most first."""
        low = [kind for kind in self.classes if self.share(kind) < margin * kind.floor]
        return tuple(kind.name for kind in sorted(low, key=lambda kind: self.share(kind) / kind.floor))
