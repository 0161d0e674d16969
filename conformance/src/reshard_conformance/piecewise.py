"""Hypothesis strategies for cases whose shards lie in several pieces: strided and segmented ones.

Each case is one of the generator's, in which some placements are exchanged; what is wanted are classes of their profile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st

from reshard_conformance.cases import Case, Side, read_placement
from reshard_conformance.generator import Drawing, Space, one_of, renumbered

__all__ = ["segmented", "strided"]

T = TypeVar("T")
Shape: TypeAlias = tuple[int, ...]

LENGTHS = (6, 8, 5, 7, 12, 3, 9, 2, 16, 17, 1, 24, 11, 13, 14, 15, 20, 33)
FACTORS = (2, 3, 4, 1, 8, 5, 16)
#: How a strided side may look: FSDP2 over tensor parallelism, one placement alone, on every mesh dim, after a plain shard.
FORMS = ("over", "alone", "over", "every", "after")
GOAL_FORMS = {"a strided dim cut again": "over", "several strided mesh dims on one tensor dim": "every"}
#: Goals that need a mesh of two dims.
NESTED = frozenset({*GOAL_FORMS, "a segmented dim cut again"})
EMPTY = frozenset({"an empty strided shard", "an empty segmented shard"})
SEVERAL = frozenset({"a strided shard of several runs", "a segmented shard of several runs"})
#: Goals that need a mesh dim of two ranks: the widest one, which core's goals leave to replicas.
WIDE = SEVERAL | EMPTY | {"uneven strided shards", "a segment that its mesh dim does not divide"}
BEYOND = "a split factor beyond the dim"


@st.composite
def strided(draw: Callable[..., Any], space: Space, wanted: Sequence[str] = (), *, full: bool = False) -> tuple[Case]:
    """One case with a strided shard on at least one side; full: both meshes have all ranks of the world."""
    piecewise = Piecewise(draw, space, wanted, full=full)
    return (piecewise.case(piecewise.strided, ("strided source", "strided destination")),)


@st.composite
def segmented(draw: Callable[..., Any], space: Space, wanted: Sequence[str] = (), *, full: bool = False) -> tuple[Case]:
    """One case with a segmented shard on at least one side; full: both meshes have all ranks of the world."""
    piecewise = Piecewise(draw, space, wanted, full=full)
    return (piecewise.case(piecewise.segmented, ("segmented source", "segmented destination")),)


class Piecewise:
    """Draws one case; most of them aim at one or two of the wanted classes.

    main: the tensor dim that both sides are likely to cut.
    """

    def __init__(self, draw: Callable[..., Any], space: Space, wanted: Sequence[str], *, full: bool) -> None:
        aimed = wanted and draw(one_of((False, True, True, True)))
        self.goals: set[str] = {draw(one_of(tuple(wanted))) for _ in range(2)} if aimed else set()
        core = ["mesh of 2 dims"] if self.goals & NESTED else []
        core += ["source replicated", "destination replicated"] if self.goals & WIDE else []
        self.main = 0
        self.space, self.drawing = space, Drawing(draw, space, core, full=full)

    def choose(self, options: Sequence[T]) -> T:
        return self.drawing.choose(options)

    def case(self, place: Callable[[Side, Shape], Side], names: tuple[str, str]) -> Case:
        """A case with the sides placed anew that the goals name, or one of them, or both."""
        case = self.drawing.case()
        shape = self.shape(case.shape or (1,))  # of no dims there is nothing to shard
        which = self.choose((names, names, names[:1], names[1:]))
        which = tuple(name for name in names if name in self.goals) or which
        src = place(case.src, shape) if names[0] in which else case.src
        dst = place(case.dst, shape) if names[1] in which else case.dst
        found = replace(case, shape=shape, src=src, dst=dst)
        return found if self.space.few is None else renumbered((found,), self.space.few)[0]

    def shape(self, shape: Shape) -> Shape:
        """The shape, one dim of it (which both sides are likely to cut) drawn anew."""
        self.main = self.choose(range(len(shape)))
        sizes = (1, 2, 3) if self.goals & EMPTY else LENGTHS
        return (*shape[: self.main], self.choose(sizes), *shape[self.main + 1 :])

    def dim(self, shape: Shape) -> tuple[int, int]:
        """A tensor dim, counted from the front, and as it is spelled."""
        dim = self.main if bool(self.goals) or self.choose((True, True, False)) else self.choose(range(len(shape)))
        return dim, dim - self.choose((0, 0, len(shape)))

    def place(self, grid: Shape) -> int:
        """A mesh dim."""
        return grid.index(max(grid)) if self.goals & WIDE else self.choose(range(len(grid)))

    def strided(self, side: Side, shape: Shape) -> Side:
        """The side with a strided shard of one tensor dim."""
        (dim, spelled), grid = self.dim(shape), side.mesh_shape
        texts = list(side.placements)
        wished = [form for goal, form in GOAL_FORMS.items() if goal in self.goals]
        form = wished[0] if wished else "alone" if self.goals & WIDE else self.choose(FORMS)
        place = self.place(grid)
        if form == "every":
            return replace(side, placements=tuple(self.strided_text(spelled, shape[dim], grid) for _ in grid))
        if form == "over" and len(grid) > 1:
            place = self.choose(range(len(grid) - 1))
            later = self.choose(range(place + 1, len(grid)))
            texts[later] = f"S({spelled})"
            grid = (grid[later],)
        if form == "after" and place > 0:
            texts[0] = f"S({spelled})"
        texts[place] = self.strided_text(spelled, shape[dim], grid)
        return replace(side, placements=tuple(texts))

    def strided_text(self, spelled: int, size: int, grid: Shape) -> str:
        """A strided shard: its factor is often the size of a mesh dim, as FSDP2 has it."""
        factor = self.choose((*grid, *grid, *FACTORS))
        if BEYOND in self.goals:
            factor = size + self.choose((1, 2, 5))
        elif self.goals & SEVERAL:
            factor = self.choose((2, 3))
        return f"SS({spelled},{factor})"

    def segmented(self, side: Side, shape: Shape) -> Side:
        """The side with a segmented shard of one tensor dim, the first of that dim."""
        (dim, spelled), grid = self.dim(shape), side.mesh_shape
        texts, again = list(side.placements), "a segmented dim cut again" in self.goals
        place = 0 if again else self.place(grid)
        for before in range(place):
            read = read_placement(texts[before])
            texts[before] = "R" if read.kind != "R" and read.dim % len(shape) == dim else texts[before]
        if len(grid) > place + 1 and (again or (not self.goals & WIDE and self.choose((False, True)))):
            texts[place + 1] = f"S({spelled})"
        sizes = ",".join(map(str, self.sizes(shape[dim], grid[place])))
        texts[place] = f"SG({spelled},[{sizes}])"
        return replace(side, placements=tuple(texts))

    def sizes(self, length: int, parts: int) -> Shape:
        """Segments of a dim: equal ones (experts, gate and up), a large one and two small ones (a fused projection), any."""
        style = self.choose(("any", "equal", "heads", "any"))
        equal = [count for count in range(2, 9) if length % count == 0]
        if style == "equal" and equal and "an empty segment" not in self.goals:
            count = self.choose(equal)
            return (length // count,) * count
        if style == "heads" and length >= 2 * parts and "an empty segment" not in self.goals:
            small = self.choose(range(1, length // 2 + 1))
            return length - 2 * (small // 2), small // 2, small // 2
        ends = sorted(self.choose(range(length + 1)) for _ in range(self.choose((1, 2, 3, 4))))
        found = tuple(high - low for low, high in pairwise((0, *ends, length)))
        return (*found, 0) if "an empty segment" in self.goals else found
