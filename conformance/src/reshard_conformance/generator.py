"""Hypothesis strategies for cases: everything that the specification names, at the claimed level of core.

A strategy may be told which coverage classes lag; most of its cases then aim at one of them. The wanted classes are
fixed when the strategy is made, so that what hypothesis draws under a seed stays the same and failures shrink.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st

from reshard_conformance.cases import DTYPES, VIEWED, Case, NestedInts, Side
from reshard_conformance.contract import Level
from reshard_conformance.coverage import CLASSES, NCCL_DTYPES
from reshard_conformance.geometry import SideGeometry

__all__ = ["Drawing", "Space", "batches", "cases", "one_of", "renumbered", "scripts", "viewed"]

T = TypeVar("T")
Shape: TypeAlias = tuple[int, ...]
Dims: TypeAlias = tuple[int | None, ...]

# What comes first in a tuple is what hypothesis shrinks to; what comes twice is drawn twice as often.
SIZES = (2, 3, 5, 7, 4, 1, 6, 11, 3, 8, 13, 5, 9, 2, 10, 17, 7, 16, 12, 31, 37, 23, 64, 97, 0)
FEW_SIZES = (2, 3, 5, 4, 1, 2, 3, 7, 6, 2, 3, 0)  # for tensors of many dims
MULTIPLES = (1, 2, 3, 5)
MEMORIES = ("contiguous", "contiguous", "transposed", "sliced", "mixed")
PLAIN_DTYPES = tuple(sorted(NCCL_DTYPES, key=lambda name: (name != "float32", name)))
OTHER_DTYPES = tuple(name for name in DTYPES if name not in NCCL_DTYPES)

# What a goal (the name of a coverage class) asks of a draw.
GOALS = {kind.name: kind for kind in CLASSES}
RELATIONS = {"meshes equal": "equal", "meshes disjoint": "disjoint", "meshes overlapping": "overlapping"}
TARGETS = frozenset({"destination replicated", "destination striped"})
SHARDED = frozenset({"uneven on a sharded dim", "an empty shard", "negative shard dim"})
NESTED = "several mesh dims on one tensor dim"
NDIMS = (1, 2, 3, 2, 2, 3, 4, 5, 0)
GOAL_NDIMS = {
    "tensor of 0 dims": (0,),
    "tensor of 4 or more dims": (4, 5),
    **dict.fromkeys(("non-contiguous source", "non-contiguous destination"), (2, 3, 4)),
    **dict.fromkeys((*SHARDED, NESTED, "destination striped", "a dim of size 0", "a dim of size 1"), NDIMS[:-1]),
}
MESH_NDIMS = (1, 2, 2, 3)
GOAL_MESH_NDIMS = {"mesh of 2 dims": (2,), "mesh of 3 dims": (3,), NESTED: (2, 3)}
PINNED = {"a dim of size 0": 0, "a dim of size 1": 1}
ROUGH = SHARDED | PINNED.keys()  # not to be had with even sizes


@dataclass(frozen=True)
class Space:
    """Where cases are drawn from.

    sizes: the world sizes. level: the level of core that no case goes beyond. elements: about the most elements of a
    tensor; a shape that has to be even may need a few times more. few: a number that picks the few mesh shapes and orders
    of ranks that scripts share, for worlds in which a communicator for new replica groups is dear; None: any.
    """

    sizes: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    level: Level = Level.L3
    elements: int = 2048
    few: int | None = None

    def __post_init__(self) -> None:
        least = 1 if self.level is Level.L3 else 2  # below L3 meshes are disjoint
        if not self.sizes or min(self.sizes) < least:
            raise ValueError(
                f"Space.sizes: expected world sizes of at least {least} at {self.level!r}, got {self.sizes}"
            )

    def at(self, size: int) -> Space:
        """The part of the space with one world size."""
        return replace(self, sizes=(size,))


@st.composite
def cases(draw: Callable[..., Any], space: Space, wanted: Sequence[str] = ()) -> Case:
    """One case; most of them aim at one or two of the wanted coverage classes."""
    aimed = wanted and draw(one_of((False, True, True, True)))
    goals = {draw(one_of(tuple(wanted))) for _ in range(2)} if aimed else ()
    return Drawing(draw, space, goals).case()


@st.composite
def scripts(draw: Callable[..., Any], space: Space, wanted: Sequence[str] = ()) -> tuple[Case, ...]:
    """One to four cases on one group: what a cache that forgets a part of its key confuses comes right after."""
    first = draw(cases(space, wanted))
    script = [first]
    for _ in range(draw(one_of((0, 0, 0, 0, 0, 1, 1, 3)))):
        script.append(follow(draw, space, draw(one_of(tuple(script)))))
    return tuple(script) if space.few is None else renumbered(script, space.few)


@st.composite
def batches(draw: Callable[..., Any], space: Space) -> tuple[Case, ...]:
    """Two to eight cases for one call on one group, zero-sized ones among them."""
    size = draw(one_of(space.sizes))
    count = draw(one_of((2, 3, 4, 5, 8)))
    zero = draw(one_of((False, False, True))) and space.level >= Level.L2
    goals = [("a dim of size 0",) if zero and number == 1 else () for number in range(count)]
    drawn = [Drawing(draw, space.at(size), goal).case() for goal in goals]
    if space.few is None:
        return tuple(drawn)
    return tuple(case for one in drawn for case in renumbered((one,), space.few))


@st.composite
def viewed(draw: Callable[..., Any], space: Space, src: Sequence[str], dst: Sequence[str]) -> tuple[Case, ...]:
    """One case whose local tensors are of these kinds (see `Side.memory`), of a dtype that has such views."""
    drawing = Drawing(draw, space)
    case, kinds = drawing.case(), (drawing.choose(src), drawing.choose(dst))
    dtypes = [dtype for dtype in DTYPES if all(dtype in VIEWED.get(kind, DTYPES) for kind in kinds)]
    dtype = case.dtype if case.dtype in dtypes else drawing.choose(dtypes)
    return (replace(case, dtype=dtype, src=replace(case.src, memory=kinds[0]), dst=replace(case.dst, memory=kinds[1])),)


def follow(draw: Callable[..., Any], space: Space, case: Case) -> Case:
    """Another call on the group of `case`, most often close to it."""
    drawing = Drawing(draw, space.at(case.world_size))
    change = draw(one_of(("again", "dtype", "shape", "ranks", "swap", "placements", "new")))
    if change == "dtype":
        return replace(case, dtype=drawing.dtype())
    if change == "shape":
        return replace(case, shape=drawing.shape(len(case.shape), case.src, case.dst))
    if change == "ranks" and space.level >= Level.L1:
        return replace(case, src=mirrored(case.src), dst=mirrored(case.dst))
    if change == "swap":
        return replace(case, src=case.dst, dst=case.src)
    if change == "placements" and space.level >= Level.L2:
        return replace(
            case, src=drawing.placed(case.src, len(case.shape)), dst=drawing.placed(case.dst, len(case.shape))
        )
    return case if change == "again" else drawing.case()


class Drawing:
    """Draws the parts of one case; `goals` name coverage classes that it should belong to, where they can be had.

    full: both meshes have all ranks of the world.
    """

    def __init__(
        self, draw: Callable[..., Any], space: Space, goals: Collection[str] = (), *, full: bool = False
    ) -> None:
        self.draw, self.space, self.full = draw, space, full
        self.goals = frozenset(goal for goal in goals if GOALS[goal].level <= space.level)
        self.target_pair = not self.goals.isdisjoint(TARGETS)
        self.source_pair = any(GOALS[goal].ranks > 1 for goal in self.goals - TARGETS)

    def asked(self, table: Mapping[str, T], default: T) -> T:
        """What the table says about the goals, the first in its order."""
        return next((value for goal, value in table.items() if goal in self.goals), default)

    def choose(self, options: Sequence[T]) -> T:
        return self.draw(one_of(tuple(options)))  # type: ignore[no-any-return]

    def case(self) -> Case:
        world = self.world()
        src_grid, dst_grid, start = self.grids(world)
        src_ranks, dst_ranks = self.ranks(world, math.prod(src_grid), math.prod(dst_grid), start)
        ndim = self.choose(self.asked(GOAL_NDIMS, NDIMS))
        src = self.side(mesh(src_grid, src_ranks), ndim, "source")
        dst = self.side(mesh(dst_grid, dst_ranks), ndim, "destination")
        return Case(world, self.shape(ndim, src, dst), self.dtype(), src, dst)

    def world(self) -> int:
        least = max((GOALS[goal].least(self.space.level) for goal in self.goals), default=1)
        sizes = tuple(size for size in self.space.sizes if size >= least) or self.space.sizes
        return self.choose([*sizes, *(size for size in sizes if size > 4)])  # large worlds have more layouts

    def relation(self, world: int) -> str:
        if self.space.level < Level.L3:
            return "disjoint"
        if world == 1 or self.full:
            return "equal"
        if world == 2 and (self.source_pair or self.target_pair):
            return self.asked(RELATIONS, "equal")
        return self.asked(RELATIONS, "") or self.choose(("disjoint", "overlapping", "equal", "overlapping"))

    def grids(self, world: int) -> tuple[Shape, Shape, int]:
        """Both mesh shapes, and where in the order of ranks the destination starts; the source starts at 0."""
        world -= "idle ranks" in self.goals
        relation = self.relation(world)
        if relation == "equal":
            least = world if self.full or world == 2 else 1 + (self.source_pair or self.target_pair)
            src = self.grid(least, world)
            return src, self.grid(math.prod(src), math.prod(src)), 0
        if relation == "disjoint":
            src = self.grid(1 + self.source_pair, world - 1 - self.target_pair)
            start = math.prod(src)
            rest = 1 + self.target_pair if self.space.level >= Level.L3 else world - start
            return src, self.grid(rest, world - start), start
        src = self.grid(1 + self.source_pair, world - self.target_pair)
        start = self.choose(range(min(math.prod(src), world - self.target_pair)))
        return src, self.grid(1 + self.target_pair, world - start, other_than=0 if start else math.prod(src)), start

    def grid(self, low: int, high: int, other_than: int = 0) -> Shape:
        ndim = 1 if self.space.level is Level.L0 else self.choose(self.asked(GOAL_MESH_NDIMS, MESH_NDIMS))
        shapes = grids(ndim, low, high, other_than) or grids(ndim, 1, max(high, 1), other_than)
        if self.space.few is None:
            return self.choose(shapes)
        return min(shapes, key=lambda shape: zlib.crc32(f"{self.space.few} {shape}".encode()))

    def ranks(self, world: int, src: int, dst: int, start: int) -> tuple[Sequence[int], Sequence[int]]:
        """The ranks of both sides, in mesh order."""
        styles = ("ascending", "scattered", "any", "any")[: 2 if self.space.level is Level.L0 else None]
        style = "any" if "ranks not ascending" in self.goals else self.choose(styles)
        order = tuple(range(world)) if style == "ascending" else self.draw(permutations(world))
        one, other = order[:src], order[start : start + dst]
        if style == "scattered":
            return sorted(one), sorted(other)
        if "ranks not ascending" in self.goals:
            return sorted(one, reverse=True), other
        return one, other[::-1] if style == "any" and self.choose((False, True)) else other

    def side(self, ranks: NestedInts, ndim: int, name: str) -> Side:
        bare = Side(ranks, (), self.memory(name))
        return self.placed(bare, ndim, name)

    def placed(self, side: Side, ndim: int, name: str = "") -> Side:
        """The same mesh with placements drawn anew."""
        dims = self.dims(side.mesh_shape, ndim, name)
        negative = "negative shard dim" in self.goals or self.choose((False, False, False, True))
        shift = ndim if negative else 0
        return replace(side, placements=tuple("R" if dim is None else f"S({dim - shift})" for dim in dims))

    def dims(self, grid: Shape, ndim: int, name: str) -> Dims:
        """For every mesh dim the tensor dim that it shards, or None."""
        striped = "destination striped" in self.goals and ndim > 0
        options = (None, 0) if striped else (None,) * (1 + ndim // 2) + tuple(range(ndim))
        dims = [self.choose(options) for _ in grid]
        widest = grid.index(max(grid))
        if NESTED in self.goals and len(grid) > 1 and ndim:
            dims[0] = dims[1] = 0 if striped else self.choose(range(ndim))
        if f"{name} replicated" in self.goals or (striped and name == "destination"):
            dims[widest] = None
        elif self.goals & SHARDED and dims[widest] is None and ndim:
            dims[widest] = 0 if striped else self.choose(range(ndim))
        return tuple(dims)

    def shape(self, ndim: int, src: Side, dst: Side) -> Shape:
        """Sizes that fit both sides' placements; even ones where the level or the goal asks for them."""
        cuts = [(cut(src, ndim, dim), cut(dst, ndim, dim)) for dim in range(ndim)]
        if "destination striped" in self.goals and cuts:
            cuts[0] = cuts[0][0], cuts[0][1] * cut(dst, ndim, None)
        even = self.space.level < Level.L2 or "destination striped" in self.goals
        even = even or (self.goals.isdisjoint(ROUGH) and self.choose((False, False, True)))
        sizes: list[int] = []
        for pair in cuts:
            room = self.space.elements // max(1, math.prod(sizes))
            sizes.append(self.size(pair, even, FEW_SIZES if ndim > 3 else SIZES, max(1, room)))
        return self.pinned(sizes, [dim for dim in range(ndim) if not even or cuts[dim] == (1, 1)])

    def size(self, cuts: tuple[int, int], even: bool, sizes: Shape, room: int) -> int:
        """The size of one tensor dim that the two sides cut into so many pieces."""
        whole, most = math.lcm(*cuts), max(cuts)
        if even and whole > 1:
            size = whole * self.choose(MULTIPLES)
            return size if size <= room else whole
        if "an empty shard" in self.goals and most > 1:
            return self.choose(range(1, most))
        if "uneven on a sharded dim" in self.goals and whole > 1:
            return self.choose([size for size in sizes if size % whole])
        return min(room, self.choose(sizes if self.space.level >= Level.L2 else sizes[:-1]))

    def pinned(self, sizes: list[int], free: Sequence[int]) -> Shape:
        """The sizes, one of the free dims set to what the goal asks for."""
        if not self.goals.isdisjoint(PINNED) and free:
            sizes[self.choose(free)] = self.asked(PINNED, 1)
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
def one_of(options: tuple[T, ...]) -> st.SearchStrategy[T]:
    return st.sampled_from(options)


@cache
def permutations(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.permutations(range(size)).map(tuple)


@cache
def grids(ndim: int, low: int, high: int, other_than: int) -> tuple[Shape, ...]:
    """Every mesh shape of `ndim` dims with `low` to `high` ranks, but for one number of ranks; few ranks first."""
    shapes = (shape for shape in product(range(1, high + 1), repeat=ndim) if low <= math.prod(shape) <= high)
    return tuple(sorted((s for s in shapes if math.prod(s) != other_than), key=lambda s: (math.prod(s), s)))


def mesh(grid: Shape, ranks: Sequence[int]) -> NestedInts:
    """Ranks in row-major order as nested tuples."""
    if len(grid) == 1:
        return tuple(ranks)
    step = len(ranks) // grid[0]
    return tuple(mesh(grid[1:], ranks[i * step : (i + 1) * step]) for i in range(grid[0]))


def renumbered(script: Sequence[Case], number: int) -> tuple[Case, ...]:
    """The same cases with other ranks: the first destination is in rank order, or in the one other order of this number."""
    world, ranks = script[0].world_size, script[0].dst.ranks
    order = list(range(world))
    if list(ranks) != sorted(ranks):
        random.Random(f"{number} {world}").shuffle(order)  # noqa: S311 - no secret
        order[:2] = sorted(order[:2], reverse=True)  # so that no two of them ascend
    others = [rank for rank in range(world) if rank not in ranks]
    new = dict(zip((*ranks, *others), order, strict=True))

    def moved(side: Side) -> Side:
        return replace(side, mesh=mesh(side.mesh_shape, [new[rank] for rank in side.ranks]))

    return tuple(replace(case, src=moved(case.src), dst=moved(case.dst)) for case in script)


def mirrored(side: Side) -> Side:
    """The same mesh shape with the ranks in the opposite order."""
    return replace(side, mesh=mesh(side.mesh_shape, side.ranks[::-1]))


def cut(side: Side, ndim: int, dim: int | None) -> int:
    """Into how many pieces a side's mesh cuts a tensor dim; for None, how many replicas it holds."""
    dims = SideGeometry(side, (0,) * ndim).dims
    return math.prod(size for size, sharded in zip(side.mesh_shape, dims, strict=True) if sharded == dim)
