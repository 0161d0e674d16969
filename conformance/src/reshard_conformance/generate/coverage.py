"""Coverage classes of layouts, computed from a case alone, and the share of each among the cases of a run.

A fuzzer that draws only easy cases proves nothing, so every class has a floor: its least share of the cases of a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from reshard_conformance.case.files import DTYPES, Case
from reshard_conformance.case.geometry import Geometry, SideGeometry
from reshard_conformance.contract import Level, Profile

__all__ = ["CLASSES", "NCCL_DTYPES", "Coverage", "CoverageClass", "case_level"]

#: The element types that NCCL knows by itself.
NCCL_DTYPES = frozenset(DTYPES) - {
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("bool", "int16", "uint16", "complex32", "complex64", "complex128"),
}


@dataclass(frozen=True)
class CoverageClass:
    """A class of layouts with its floor, a share of all cases of a run.

    level: the lowest level of core that has such cases. ranks: the fewest ranks that one of its meshes needs.
    needs_outside_rank: it needs one more rank outside that mesh; below L3, where meshes are disjoint, every class does.
    profile: the profile whose steered property has to reach the floor.
    """

    name: str
    floor: float
    level: Level
    ranks: int
    contains: Callable[[Geometry], bool]
    needs_outside_rank: bool = False
    profile: Profile = Profile.CORE

    def min_world_size(self, claimed: Level) -> int:
        """Return the size of the smallest world that has such a case at this level."""
        return self.ranks + (self.needs_outside_rank or claimed < Level.L3)

    def is_admitted(self, claimed: Level, sizes: Iterable[int]) -> bool:
        """Tell whether a run at this level in worlds of these sizes can draw it."""
        return self.level <= claimed and self.min_world_size(claimed) <= max(sizes)


L0, L1, L2, L3 = Level

GeometryTest = Callable[[Geometry], bool]
SideTest = Callable[[SideGeometry], bool]


def strided_class(name: str, floor: float, ranks: int, contains: GeometryTest) -> CoverageClass:
    return CoverageClass(name, floor, L2, ranks, contains, profile=Profile.STRIDED)


def segmented_class(name: str, floor: float, ranks: int, contains: GeometryTest) -> CoverageClass:
    return CoverageClass(name, floor, L2, ranks, contains, profile=Profile.SEGMENTED)


def either_side(test: SideTest) -> GeometryTest:
    return lambda geometry: test(geometry.src) or test(geometry.dst)


def has_kind(kind: str) -> SideTest:
    """Test for a shard of this kind on a side."""
    return lambda side: any(placement.kind == kind for placement in side.placements)


def side_with(kind: str, test: SideTest) -> GeometryTest:
    """Test for one side that has a shard of this kind and passes `test`."""
    return either_side(lambda side: has_kind(kind)(side) and test(side))


def has_mesh_ndim(ndim: int) -> GeometryTest:
    return either_side(lambda side: len(side.dims) == ndim)


def is_uneven(side: SideGeometry) -> bool:
    return side.is_uneven


def has_empty_shard(side: SideGeometry) -> bool:
    return side.has_empty_shard


def has_negative_dim(side: SideGeometry) -> bool:
    return any("S(-" in text for text in side.side.placements)


def has_empty_segment(side: SideGeometry) -> bool:
    return any(0 in placement.sizes for placement in side.placements)


def has_several_runs(side: SideGeometry) -> bool:
    """Tell whether a rank holds a tensor dim in several runs."""
    return any(len(runs) > 1 for dim in side.runs for runs in dim)


def has_nested_strides(side: SideGeometry) -> bool:
    """Tell whether several strided shards cut one tensor dim."""
    dims = [dim for dim, placement in zip(side.dims, side.placements, strict=True) if placement.kind == "SS"]
    return len(set(dims)) < len(dims)


def has_excess_factor(side: SideGeometry) -> bool:
    """Tell whether a split factor exceeds the elements of its dim."""
    dims = zip(side.dims, side.placements, strict=True)
    return any(dim is not None and placement.factor > side.shape[dim] > 0 for dim, placement in dims)


def has_undivided_segment(side: SideGeometry) -> bool:
    """Tell whether a mesh dim does not divide a segment."""
    sizes = zip(side.side.mesh_shape, side.placements, strict=True)
    return any(segment % parts for parts, placement in sizes for segment in placement.sizes)


def sharded_again_after(kind: str) -> SideTest:
    """Test for a plain shard after one of this kind on the same tensor dim."""

    def test(side: SideGeometry) -> bool:
        shards = [(dim, placement.kind) for dim, placement in zip(side.dims, side.placements, strict=True)]
        return any((dim, kind) in shards[:index] for index, (dim, later_kind) in enumerate(shards) if later_kind == "S")

    return test


CLASSES = (
    CoverageClass("uneven on a sharded dim", 0.25, L2, 2, either_side(is_uneven)),
    CoverageClass("an empty shard", 0.08, L2, 2, either_side(has_empty_shard)),
    CoverageClass("several mesh dims on one tensor dim", 0.15, L1, 1, either_side(lambda side: side.is_nested)),
    CoverageClass("mesh of 2 dims", 0.30, L1, 1, has_mesh_ndim(2)),
    CoverageClass("mesh of 3 dims", 0.10, L1, 1, has_mesh_ndim(3)),
    CoverageClass("ranks not ascending", 0.15, L1, 2, either_side(lambda side: not side.is_ascending)),
    CoverageClass("meshes disjoint", 0.20, L0, 1, lambda both: both.relation == "disjoint", needs_outside_rank=True),
    CoverageClass("meshes equal", 0.10, L3, 1, lambda both: both.relation == "equal"),
    CoverageClass("meshes overlapping", 0.15, L3, 2, lambda both: both.relation == "overlapping"),
    CoverageClass("idle ranks", 0.10, L3, 1, lambda both: both.has_idle_rank, needs_outside_rank=True),
    CoverageClass("source replicated", 0.25, L0, 2, lambda both: both.src.replicas > 1),
    CoverageClass("destination replicated", 0.25, L0, 2, lambda both: both.dst.replicas > 1),
    CoverageClass("destination striped", 0.06, L0, 2, lambda both: both.is_striped),
    CoverageClass("tensor of 0 dims", 0.01, L0, 1, lambda both: not both.case.shape),
    CoverageClass("tensor of 4 or more dims", 0.05, L0, 1, lambda both: len(both.case.shape) >= 4),
    CoverageClass("a dim of size 0", 0.03, L2, 1, lambda both: 0 in both.case.shape),
    CoverageClass("a dim of size 1", 0.10, L0, 1, lambda both: 1 in both.case.shape),
    CoverageClass("non-contiguous source", 0.15, L3, 1, lambda both: both.src.is_strided),
    CoverageClass("non-contiguous destination", 0.15, L3, 1, lambda both: both.dst.is_strided),
    CoverageClass("dtype outside NCCL's own", 0.10, L3, 1, lambda both: both.case.dtype not in NCCL_DTYPES),
    CoverageClass("negative shard dim", 0.05, L0, 1, either_side(has_negative_dim)),
    strided_class("strided source", 0.40, 1, lambda both: has_kind("SS")(both.src)),
    strided_class("strided destination", 0.40, 1, lambda both: has_kind("SS")(both.dst)),
    strided_class("a strided shard of several runs", 0.30, 2, side_with("SS", has_several_runs)),
    strided_class("uneven strided shards", 0.25, 2, side_with("SS", is_uneven)),
    strided_class("an empty strided shard", 0.08, 2, side_with("SS", has_empty_shard)),
    strided_class("a strided dim cut again", 0.20, 1, either_side(sharded_again_after("SS"))),
    strided_class("several strided mesh dims on one tensor dim", 0.08, 1, either_side(has_nested_strides)),
    strided_class("a split factor beyond the dim", 0.05, 1, side_with("SS", has_excess_factor)),
    segmented_class("segmented source", 0.40, 1, lambda both: has_kind("SG")(both.src)),
    segmented_class("segmented destination", 0.40, 1, lambda both: has_kind("SG")(both.dst)),
    segmented_class("a segmented shard of several runs", 0.30, 2, side_with("SG", has_several_runs)),
    segmented_class("a segment that its mesh dim does not divide", 0.25, 2, side_with("SG", has_undivided_segment)),
    segmented_class("an empty segment", 0.08, 1, either_side(has_empty_segment)),
    segmented_class("an empty segmented shard", 0.08, 2, side_with("SG", has_empty_shard)),
    segmented_class("a segmented dim cut again", 0.10, 1, either_side(sharded_again_after("SG"))),
)


def case_level(case: Case) -> Level:
    """Return the lowest level of core that holds the case, which is legal; strided and segmented shards do not count."""
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
    """The number of cases that a run has drawn, in all and of each class."""

    claimed: Level
    sizes: tuple[int, ...]
    total: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def classes(self) -> tuple[CoverageClass, ...]:
        """The classes of core that count for the level and the world sizes."""
        return self.classes_of(Profile.CORE)

    def classes_of(self, profile: Profile) -> tuple[CoverageClass, ...]:
        """Return the classes that count for a property of the profile: its own, or those of core where it has none."""
        own = [kind for kind in CLASSES if kind.profile is profile] or CLASSES
        core = Profile.CORE if own is CLASSES else profile
        return tuple(kind for kind in own if kind.profile is core and kind.is_admitted(self.claimed, self.sizes))

    def add(self, case: Case) -> None:
        """Count a case."""
        geometry = Geometry(case)
        self.total += 1
        self.counts.update(kind.name for kind in CLASSES if kind.contains(geometry))

    def merge(self, total: int, counts: Mapping[str, int]) -> None:
        """Count the cases of another part of the run."""
        self.total += total
        self.counts.update(counts)

    def share(self, kind: CoverageClass) -> float:
        """Return the share of a class among all cases so far."""
        return self.counts[kind.name] / self.total if self.total else 0.0

    def lagging(self, margin: float = 1.0, profile: Profile = Profile.CORE) -> tuple[str, ...]:
        """Return the names of a profile's classes below `margin` times their floor, those that lag most first."""
        low = [kind for kind in self.classes_of(profile) if self.share(kind) < margin * kind.floor]
        return tuple(kind.name for kind in sorted(low, key=lambda kind: self.share(kind) / kind.floor))
