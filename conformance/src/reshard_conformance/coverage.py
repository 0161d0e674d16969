"""Classes of layouts, computed from a case alone, and how often a run has drawn each of them.

A fuzzer that draws easy cases proves nothing, so every class has a floor: the least share of the cases of a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from reshard_conformance.cases import DTYPES, Case
from reshard_conformance.contract import Level, Profile
from reshard_conformance.geometry import Geometry, SideGeometry

__all__ = ["CLASSES", "NCCL_DTYPES", "Class", "Coverage", "level"]

#: The element types that NCCL knows by itself.
NCCL_DTYPES = frozenset(DTYPES) - {
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("bool", "int16", "uint16", "complex32", "complex64", "complex128"),
}


@dataclass(frozen=True)
class Class:
    """A class of layouts with its floor, a share of all cases of a run.

    level: the lowest level of core that has such cases. ranks: the fewest ranks that one of its meshes needs.
    apart: whether it needs one more rank outside that mesh; below L3 every case does, as the meshes are disjoint there.
    profile: whose steered property has to reach the floor.
    """

    name: str
    floor: float
    level: Level
    ranks: int
    holds: Callable[[Geometry], bool]
    apart: bool = False
    profile: Profile = Profile.CORE

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


def cut_again(kind: str) -> Callable[[SideGeometry], bool]:
    """Whether a plain shard comes after one of this kind on the same tensor dim."""

    def holds(side: SideGeometry) -> bool:
        found = [(dim, p.kind) for dim, p in zip(side.dims, side.placements, strict=True)]
        return any((dim, kind) in found[:place] for place, (dim, later) in enumerate(found) if later == "S")

    return holds


def has(kind: str) -> Callable[[SideGeometry], bool]:
    """Whether a side has a shard of this kind."""
    return lambda side: any(placement.kind == kind for placement in side.placements)


def of(kind: str, holds: Callable[[SideGeometry], bool]) -> Callable[[Geometry], bool]:
    """Whether one of the sides has a shard of this kind, and `holds` of it."""
    return either(lambda side: has(kind)(side) and holds(side))


def several_strided(side: SideGeometry) -> bool:
    dims = [dim for dim, placement in zip(side.dims, side.placements, strict=True) if placement.kind == "SS"]
    return len(set(dims)) < len(dims)


def beyond(side: SideGeometry) -> bool:
    """Whether a dim is to be cut into more pieces than it has elements."""
    dims = zip(side.dims, side.placements, strict=True)
    return any(dim is not None and p.factor > side.shape[dim] > 0 for dim, p in dims)


def undivided(side: SideGeometry) -> bool:
    """Whether a mesh dim does not divide a segment."""
    sizes = zip(side.side.mesh_shape, side.placements, strict=True)
    return any(segment % parts for parts, placement in sizes for segment in placement.sizes)


def in_pieces(side: SideGeometry) -> bool:
    """Whether a rank holds a tensor dim in several runs."""
    return any(len(runs) > 1 for dim in side.runs for runs in dim)


L0, L1, L2, L3 = Level
STRIDED, SEGMENTED = Profile.STRIDED, Profile.SEGMENTED
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
    Class("strided source", 0.40, L2, 1, lambda both: has("SS")(both.src), profile=STRIDED),
    Class("strided destination", 0.40, L2, 1, lambda both: has("SS")(both.dst), profile=STRIDED),
    Class("a strided shard of several runs", 0.30, L2, 2, of("SS", in_pieces), profile=STRIDED),
    Class("uneven strided shards", 0.25, L2, 2, of("SS", lambda side: side.is_uneven), profile=STRIDED),
    Class("an empty strided shard", 0.08, L2, 2, of("SS", lambda side: side.has_empty_shard), profile=STRIDED),
    Class("a strided dim cut again", 0.20, L2, 1, either(cut_again("SS")), profile=STRIDED),
    Class("several strided mesh dims on one tensor dim", 0.08, L2, 1, either(several_strided), profile=STRIDED),
    Class("a split factor beyond the dim", 0.05, L2, 1, of("SS", beyond), profile=STRIDED),
    Class("segmented source", 0.40, L2, 1, lambda both: has("SG")(both.src), profile=SEGMENTED),
    Class("segmented destination", 0.40, L2, 1, lambda both: has("SG")(both.dst), profile=SEGMENTED),
    Class("a segmented shard of several runs", 0.30, L2, 2, of("SG", in_pieces), profile=SEGMENTED),
    Class("a segment that its mesh dim does not divide", 0.25, L2, 2, of("SG", undivided), profile=SEGMENTED),
    Class(
        "an empty segment",
        0.08,
        L2,
        1,
        either(lambda side: any(0 in p.sizes for p in side.placements)),
        profile=SEGMENTED,
    ),
    Class("an empty segmented shard", 0.08, L2, 2, of("SG", lambda side: side.has_empty_shard), profile=SEGMENTED),
    Class("a segmented dim cut again", 0.10, L2, 1, either(cut_again("SG")), profile=SEGMENTED),
)


def level(case: Case) -> Level:
    """The lowest level of core that holds the case (every argument legal, strided and segmented shards set aside)."""
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
        """The classes of core that count for the level and the world sizes."""
        return self.of(Profile.CORE)

    def of(self, profile: Profile) -> tuple[Class, ...]:
        """The classes that count for a property of the profile: its own, or those of core where it has none."""
        own = [kind for kind in CLASSES if kind.profile is profile] or CLASSES
        core = Profile.CORE if own is CLASSES else profile
        return tuple(kind for kind in own if kind.profile is core and kind.admitted(self.claimed, self.sizes))

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

    def lagging(self, margin: float = 1.0, profile: Profile = Profile.CORE) -> tuple[str, ...]:
        """The names of a profile's classes below `margin` times their floor, those that lag most first."""
        low = [kind for kind in self.of(profile) if self.share(kind) < margin * kind.floor]
        return tuple(kind.name for kind in sorted(low, key=lambda kind: self.share(kind) / kind.floor))
