"""Hypothesis strategies for cases at the claimed level of core.

A strategy may get the coverage classes that lag; most of its cases then aim at one of them. The wanted classes are fixed
when the strategy is made, so that hypothesis draws the same under the same seed, and failures shrink.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st

from reshard_conformance.case.files import DTYPES, VIEW_DTYPES, Case, NestedInts, Side
from reshard_conformance.contract import Level
from reshard_conformance.generate.coverage import CLASSES, NCCL_DTYPES
from reshard_conformance.generate.meshes import (
    Shape,
    mesh_shapes,
    nest_ranks,
    piece_count,
    renumber_ranks,
    reverse_ranks,
)

__all__ = ["Drawing", "Space", "batches", "cases", "sampled", "scripts", "view_cases"]

T = TypeVar("T")
Dims: TypeAlias = tuple[int | None, ...]

# hypothesis shrinks towards the start of a tuple, and draws a value that stands in it twice twice as often.
SIZES = (2, 3, 5, 7, 4, 1, 6, 11, 3, 8, 13, 5, 9, 2, 10, 17, 7, 16, 12, 31, 37, 23, 64, 97, 0)
FEW_SIZES = (2, 3, 5, 4, 1, 2, 3, 7, 6, 2, 3, 0)  # for tensors of many dims
MULTIPLES = (1, 2, 3, 5)
MEMORIES = ("contiguous", "contiguous", "transposed", "sliced", "mixed")
PLAIN_DTYPES = tuple(sorted(NCCL_DTYPES, key=lambda name: (name != "float32", name)))
OTHER_DTYPES = tuple(name for name in DTYPES if name not in NCCL_DTYPES)

# The requirements of a goal, which is the name of a coverage class.
GOALS = {kind.name: kind for kind in CLASSES}
GOAL_RELATIONS = {"meshes equal": "equal", "meshes disjoint": "disjoint", "meshes overlapping": "overlapping"}
TARGET_GOALS = frozenset({"destination replicated", "destination striped"})
SHARDED_GOALS = frozenset({"uneven on a sharded dim", "an empty shard", "negative shard dim"})
NESTED_GOAL = "several mesh dims on one tensor dim"
NDIMS = (1, 2, 3, 2, 2, 3, 4, 5, 0)
GOAL_NDIMS = {
    "tensor of 0 dims": (0,),
    "tensor of 4 or more dims": (4, 5),
    **dict.fromkeys(("non-contiguous source", "non-contiguous destination"), (2, 3, 4)),
    **dict.fromkeys(
        (*SHARDED_GOALS, NESTED_GOAL, "destination striped", "a dim of size 0", "a dim of size 1"), NDIMS[:-1]
    ),
}
MESH_NDIMS = (1, 2, 2, 3)
GOAL_MESH_NDIMS = {"mesh of 2 dims": (2,), "mesh of 3 dims": (3,), NESTED_GOAL: (2, 3)}
PINNED_SIZES = {"a dim of size 0": 0, "a dim of size 1": 1}
UNEVEN_GOALS = SHARDED_GOALS | PINNED_SIZES.keys()  # even sizes rule them out


@dataclass(frozen=True)
class Space:
    """The cases that a strategy can draw.

    sizes: the world sizes. level: the level of core that no case exceeds. elements: roughly the most elements of a
    tensor; a shape that has to be even may need a few times more. few: a seed for a small selection of mesh shapes and
    orders of ranks, for worlds in which a communicator for new replica groups is expensive; None draws from all of them.
    """

    sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    level: Level = Level.L3
    elements: int = 2048
    few: int | None = None

    def __post_init__(self) -> None:
        minimum = 1 if self.level is Level.L3 else 2  # below L3 meshes are disjoint
        if not self.sizes or min(self.sizes) < minimum:
            raise ValueError(
                f"Space.sizes: expected world sizes of at least {minimum} at {self.level!r}, got {self.sizes}"
            )

    def at(self, size: int) -> Space:
        """Return the part of the space with one world size."""
        return replace(self, sizes=(size,))


@st.composite
def cases(draw: Callable[..., Any], space: Space, wanted: Sequence[str] = ()) -> Case:
    """Draw a case; most of them aim at one or two of the wanted coverage classes."""
    has_goals = wanted and draw(sampled((False, True, True, True)))
    goals = {draw(sampled(tuple(wanted))) for _ in range(2)} if has_goals else ()
    return Drawing(draw, space, goals).case()


@st.composite
def scripts(draw: Callable[..., Any], space: Space, wanted: Sequence[str] = ()) -> tuple[Case, ...]:
    """Draw one to four similar cases on one group, which a cache with an incomplete key confuses."""
    script = [draw(cases(space, wanted))]
    for _ in range(draw(sampled((0, 0, 0, 0, 0, 1, 1, 3)))):
        script.append(follow_up_case(draw, space, draw(sampled(tuple(script)))))
    return tuple(script) if space.few is None else renumber_ranks(script, space.few)


@st.composite
def batches(draw: Callable[..., Any], space: Space) -> tuple[Case, ...]:
    """Draw two to eight cases for one call on one group, zero-sized ones among them."""
    size = draw(sampled(space.sizes))
    count = draw(sampled((2, 3, 4, 5, 8)))
    zero = draw(sampled((False, False, True))) and space.level >= Level.L2
    goals = [("a dim of size 0",) if zero and number == 1 else () for number in range(count)]
    drawn = [Drawing(draw, space.at(size), goal).case() for goal in goals]
    if space.few is None:
        return tuple(drawn)
    return tuple(renumber_ranks((case,), space.few)[0] for case in drawn)


@st.composite
def view_cases(draw: Callable[..., Any], space: Space, src: Sequence[str], dst: Sequence[str]) -> tuple[Case, ...]:
    """Draw a case whose local tensors have one of these memories (see `Side`), of a dtype that has such views."""
    drawing = Drawing(draw, space)
    case, memories = drawing.case(), (drawing.choose(src), drawing.choose(dst))
    dtypes = [dtype for dtype in DTYPES if all(dtype in VIEW_DTYPES.get(memory, DTYPES) for memory in memories)]
    dtype = case.dtype if case.dtype in dtypes else drawing.choose(dtypes)
    src_side, dst_side = replace(case.src, memory=memories[0]), replace(case.dst, memory=memories[1])
    return (replace(case, dtype=dtype, src=src_side, dst=dst_side),)


def follow_up_case(draw: Callable[..., Any], space: Space, case: Case) -> Case:
    """Draw another call on the group of `case`, most often a similar one."""
    drawing = Drawing(draw, space.at(case.world_size))
    change = draw(sampled(("again", "dtype", "shape", "ranks", "swap", "placements", "new")))
    if change == "dtype":
        return replace(case, dtype=drawing.dtype())
    if change == "shape":
        return replace(case, shape=drawing.shape(len(case.shape), case.src, case.dst))
    if change == "ranks" and space.level >= Level.L1:
        return replace(case, src=reverse_ranks(case.src), dst=reverse_ranks(case.dst))
    if change == "swap":
        return replace(case, src=case.dst, dst=case.src)
    if change == "placements" and space.level >= Level.L2:
        return replace(
            case,
            src=drawing.with_new_placements(case.src, len(case.shape)),
            dst=drawing.with_new_placements(case.dst, len(case.shape)),
        )
    return case if change == "again" else drawing.case()


class Drawing:
    """Draws the parts of one case.

    goals: names of coverage classes that the case should belong to, where the space has such cases.
    full: both meshes have all ranks of the world.
    """

    def __init__(
        self, draw: Callable[..., Any], space: Space, goals: Collection[str] = (), *, full: bool = False
    ) -> None:
        self.draw, self.space, self.full = draw, space, full
        self.goals = frozenset(goal for goal in goals if GOALS[goal].level <= space.level)
        self.target_pair = not self.goals.isdisjoint(TARGET_GOALS)
        self.source_pair = any(GOALS[goal].ranks > 1 for goal in self.goals - TARGET_GOALS)

    def goal_value(self, table: Mapping[str, T], default: T) -> T:
        """Return the table's value for a goal, the first in the table's order."""
        return next((value for goal, value in table.items() if goal in self.goals), default)

    def choose(self, options: Sequence[T]) -> T:
        return self.draw(sampled(tuple(options)))  # type: ignore[no-any-return]

    def case(self) -> Case:
        world = self.world()
        src_shape, dst_shape, start = self.mesh_shapes(world)
        src_ranks, dst_ranks = self.ranks(world, math.prod(src_shape), math.prod(dst_shape), start)
        ndim = self.choose(self.goal_value(GOAL_NDIMS, NDIMS))
        src = self.side(nest_ranks(src_shape, src_ranks), ndim, "source")
        dst = self.side(nest_ranks(dst_shape, dst_ranks), ndim, "destination")
        return Case(world, self.shape(ndim, src, dst), self.dtype(), src, dst)

    def world(self) -> int:
        minimum = max((GOALS[goal].min_world_size(self.space.level) for goal in self.goals), default=1)
        sizes = tuple(size for size in self.space.sizes if size >= minimum) or self.space.sizes
        return self.choose([*sizes, *(size for size in sizes if size > 4)])  # large worlds have more layouts

    def relation(self, world: int) -> str:
        if self.space.level < Level.L3:
            return "disjoint"
        if world == 1 or self.full:
            return "equal"
        if world == 2 and (self.source_pair or self.target_pair):
            return self.goal_value(GOAL_RELATIONS, "equal")
        return self.goal_value(GOAL_RELATIONS, "") or self.choose(("disjoint", "overlapping", "equal", "overlapping"))

    def mesh_shapes(self, world: int) -> tuple[Shape, Shape, int]:
        """Draw both mesh shapes, and the destination's start in the order of ranks; the source starts at 0."""
        world -= "idle ranks" in self.goals
        relation = self.relation(world)
        if relation == "equal":
            minimum = world if self.full or world == 2 else 1 + (self.source_pair or self.target_pair)
            src = self.mesh_shape(minimum, world)
            return src, self.mesh_shape(math.prod(src), math.prod(src)), 0
        if relation == "disjoint":
            src = self.mesh_shape(1 + self.source_pair, world - 1 - self.target_pair)
            start = math.prod(src)
            minimum = 1 + self.target_pair if self.space.level >= Level.L3 else world - start
            return src, self.mesh_shape(minimum, world - start), start
        src = self.mesh_shape(1 + self.source_pair, world - self.target_pair)
        start = self.choose(range(min(math.prod(src), world - self.target_pair)))
        excluded_size = 0 if start else math.prod(src)  # the source's own ranks would make the meshes equal
        return src, self.mesh_shape(1 + self.target_pair, world - start, excluded_size), start

    def mesh_shape(self, low: int, high: int, excluded_size: int = 0) -> Shape:
        """Draw the shape of a mesh with `low` to `high` ranks."""
        ndim = 1 if self.space.level is Level.L0 else self.choose(self.goal_value(GOAL_MESH_NDIMS, MESH_NDIMS))
        shapes = mesh_shapes(ndim, low, high, excluded_size) or mesh_shapes(ndim, 1, max(high, 1), excluded_size)
        if self.space.few is None:
            return self.choose(shapes)
        return min(shapes, key=lambda shape: zlib.crc32(f"{self.space.few} {shape}".encode()))

    def ranks(self, world: int, src: int, dst: int, start: int) -> tuple[Sequence[int], Sequence[int]]:
        """Draw the ranks of both sides, in mesh order."""
        styles = ("ascending", "scattered", "any", "any")[: 2 if self.space.level is Level.L0 else None]
        style = "any" if "ranks not ascending" in self.goals else self.choose(styles)
        order = tuple(range(world)) if style == "ascending" else self.draw(permutations(world))
        src_ranks, dst_ranks = order[:src], order[start : start + dst]
        if style == "scattered":
            return sorted(src_ranks), sorted(dst_ranks)
        if "ranks not ascending" in self.goals:
            return sorted(src_ranks, reverse=True), dst_ranks
        return src_ranks, dst_ranks[::-1] if style == "any" and self.choose((False, True)) else dst_ranks

    def side(self, mesh: NestedInts, ndim: int, name: str) -> Side:
        return self.with_new_placements(Side(mesh, (), self.memory(name)), ndim, name)

    def with_new_placements(self, side: Side, ndim: int, name: str = "") -> Side:
        """Return the side with other placements on the same mesh."""
        dims = self.dims(side.mesh_shape, ndim, name)
        negative = "negative shard dim" in self.goals or self.choose((False, False, False, True))
        shift = ndim if negative else 0
        return replace(side, placements=tuple("R" if dim is None else f"S({dim - shift})" for dim in dims))

    def dims(self, mesh_shape: Shape, ndim: int, name: str) -> Dims:
        """Draw for every mesh dim the tensor dim that it shards, or None."""
        striped = "destination striped" in self.goals and ndim > 0
        options = (None, 0) if striped else (None,) * (1 + ndim // 2) + tuple(range(ndim))
        dims = [self.choose(options) for _ in mesh_shape]
        widest = mesh_shape.index(max(mesh_shape))
        if NESTED_GOAL in self.goals and len(mesh_shape) > 1 and ndim:
            dims[0] = dims[1] = 0 if striped else self.choose(range(ndim))
        if f"{name} replicated" in self.goals or (striped and name == "destination"):
            dims[widest] = None
        elif self.goals & SHARDED_GOALS and dims[widest] is None and ndim:
            dims[widest] = 0 if striped else self.choose(range(ndim))
        return tuple(dims)

    def shape(self, ndim: int, src: Side, dst: Side) -> Shape:
        """Draw sizes that fit both sides' placements; even ones where the level or the goal asks for them."""
        cuts = [(piece_count(src, ndim, dim), piece_count(dst, ndim, dim)) for dim in range(ndim)]
        if "destination striped" in self.goals and cuts:
            cuts[0] = cuts[0][0], cuts[0][1] * piece_count(dst, ndim, None)
        even = self.space.level < Level.L2 or "destination striped" in self.goals
        even = even or (self.goals.isdisjoint(UNEVEN_GOALS) and self.choose((False, False, True)))
        sizes: list[int] = []
        for pair in cuts:
            room = self.space.elements // max(1, math.prod(sizes))
            sizes.append(self.size(pair, even, FEW_SIZES if ndim > 3 else SIZES, max(1, room)))
        return self.pin_size(sizes, [dim for dim in range(ndim) if not even or cuts[dim] == (1, 1)])

    def size(self, cuts: tuple[int, int], even: bool, sizes: Shape, room: int) -> int:
        """Draw the size of one tensor dim that the two sides cut into so many pieces."""
        even_size, most_pieces = math.lcm(*cuts), max(cuts)
        if even and even_size > 1:
            size = even_size * self.choose(MULTIPLES)
            return size if size <= room else even_size
        if "an empty shard" in self.goals and most_pieces > 1:
            return self.choose(range(1, most_pieces))
        if "uneven on a sharded dim" in self.goals and even_size > 1:
            return self.choose([size for size in sizes if size % even_size])
        return min(room, self.choose(sizes if self.space.level >= Level.L2 else sizes[:-1]))

    def pin_size(self, sizes: list[int], free: Sequence[int]) -> Shape:
        """Return the sizes, with one of the free dims set to the size that the goal asks for."""
        if not self.goals.isdisjoint(PINNED_SIZES) and free:
            sizes[self.choose(free)] = self.goal_value(PINNED_SIZES, 1)
        return tuple(sizes)

    def dtype(self) -> str:
        if "dtype outside NCCL's own" in self.goals:
            return self.choose(OTHER_DTYPES)
        return self.choose(PLAIN_DTYPES + OTHER_DTYPES if self.space.level >= Level.L3 else PLAIN_DTYPES)

    def memory(self, name: str) -> str:
        if self.space.level < Level.L3:
            return "contiguous"
        return self.choose(MEMORIES[2:] if f"non-contiguous {name}" in self.goals else MEMORIES)


@cache
def sampled(options: tuple[T, ...]) -> st.SearchStrategy[T]:
    """Return the strategy that draws one of the options, made once for every tuple of options."""
    return st.sampled_from(options)


@cache
def permutations(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.permutations(range(size)).map(tuple)
