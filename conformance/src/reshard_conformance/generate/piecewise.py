"""Hypothesis strategies for cases with strided and segmented shards, which consist of several runs.

Each case is drawn as in `generate.cases`; then some placements are exchanged. The wanted classes are those of the profile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

from hypothesis import strategies as st

from reshard_conformance.case.files import Case, Side, read_placement
from reshard_conformance.generate.cases import Drawing, Space, sampled
from reshard_conformance.generate.meshes import renumber_ranks

__all__ = ["segmented_cases", "strided_cases"]

T = TypeVar("T")
Shape: TypeAlias = tuple[int, ...]

LENGTHS = (6, 8, 5, 7, 12, 3, 9, 2, 16, 17, 1, 24, 11, 13, 14, 15, 20, 33)
FACTORS = (2, 3, 4, 1, 8, 5, 16)
#: The forms of a strided side: over a plain shard (FSDP2 over tensor parallelism), one alone, on every mesh dim, or after
#: a plain shard.
FORMS = ("over", "alone", "over", "every", "after")
GOAL_FORMS = {"a strided dim cut again": "over", "several strided mesh dims on one tensor dim": "every"}
#: Goals that need a mesh of two dims.
TWO_MESH_DIM_GOALS = frozenset({*GOAL_FORMS, "a segmented dim cut again"})
EMPTY_SHARD_GOALS = frozenset({"an empty strided shard", "an empty segmented shard"})
SEVERAL_RUNS_GOALS = frozenset({"a strided shard of several runs", "a segmented shard of several runs"})
#: Goals that need a mesh dim of two ranks: the widest one, which core's goals leave to replicas.
WIDE_MESH_GOALS = (
    SEVERAL_RUNS_GOALS | EMPTY_SHARD_GOALS | {"uneven strided shards", "a segment that its mesh dim does not divide"}
)
EXCESS_FACTOR_GOAL = "a split factor beyond the dim"


@st.composite
def strided_cases(
    draw: Callable[..., Any], space: Space, wanted: Sequence[str] = (), *, full: bool = False
) -> tuple[Case]:
    """Draw a case with a strided shard on at least one side; full: both meshes have all ranks of the world."""
    piecewise = PiecewiseDrawing(draw, space, wanted, full=full)
    return (piecewise.case(piecewise.with_strided_shard, ("strided source", "strided destination")),)


@st.composite
def segmented_cases(
    draw: Callable[..., Any], space: Space, wanted: Sequence[str] = (), *, full: bool = False
) -> tuple[Case]:
    """Draw a case with a segmented shard on at least one side; full: both meshes have all ranks of the world."""
    piecewise = PiecewiseDrawing(draw, space, wanted, full=full)
    return (piecewise.case(piecewise.with_segmented_shard, ("segmented source", "segmented destination")),)


class PiecewiseDrawing:
    """Draws one case; most of them aim at one or two of the wanted classes.

    main_dim: the tensor dim that both sides are likely to cut.
    """

    def __init__(self, draw: Callable[..., Any], space: Space, wanted: Sequence[str], *, full: bool) -> None:
        has_goals = wanted and draw(sampled((False, True, True, True)))
        self.goals: set[str] = {draw(sampled(tuple(wanted))) for _ in range(2)} if has_goals else set()
        core_goals = ["mesh of 2 dims"] if self.goals & TWO_MESH_DIM_GOALS else []
        core_goals += ["source replicated", "destination replicated"] if self.goals & WIDE_MESH_GOALS else []
        self.main_dim = 0
        self.space, self.drawing = space, Drawing(draw, space, core_goals, full=full)

    def choose(self, options: Sequence[T]) -> T:
        return self.drawing.choose(options)

    def case(self, add_shard: Callable[[Side, Shape], Side], names: tuple[str, str]) -> Case:
        """Draw a case and add shards to the sides that the goals name, or to one or both of them.

        names: the coverage classes of such a source and of such a destination.
        """
        case = self.drawing.case()
        shape = self.shape(case.shape or (1,))  # a tensor of no dims has nothing to shard
        chosen = self.choose((names, names, names[:1], names[1:]))
        chosen = tuple(name for name in names if name in self.goals) or chosen
        src = add_shard(case.src, shape) if names[0] in chosen else case.src
        dst = add_shard(case.dst, shape) if names[1] in chosen else case.dst
        case = replace(case, shape=shape, src=src, dst=dst)
        return case if self.space.few is None else renumber_ranks((case,), self.space.few)[0]

    def shape(self, shape: Shape) -> Shape:
        """Choose the main dim, and draw another size for it."""
        self.main_dim = self.choose(range(len(shape)))
        sizes = (1, 2, 3) if self.goals & EMPTY_SHARD_GOALS else LENGTHS
        return (*shape[: self.main_dim], self.choose(sizes), *shape[self.main_dim + 1 :])

    def dim(self, shape: Shape) -> tuple[int, int]:
        """Draw a tensor dim; return it counted from the front, and as the placement spells it, perhaps negative."""
        use_main = bool(self.goals) or self.choose((True, True, False))
        dim = self.main_dim if use_main else self.choose(range(len(shape)))
        return dim, dim - self.choose((0, 0, len(shape)))

    def mesh_dim(self, mesh_shape: Shape) -> int:
        """Draw a mesh dim; the largest one where a goal needs two ranks."""
        if self.goals & WIDE_MESH_GOALS:
            return mesh_shape.index(max(mesh_shape))
        return self.choose(range(len(mesh_shape)))

    def with_strided_shard(self, side: Side, shape: Shape) -> Side:
        """Return the side with a strided shard of one tensor dim."""
        (dim, spelled_dim), mesh_sizes = self.dim(shape), side.mesh_shape
        texts = list(side.placements)
        goal_forms = [form for goal, form in GOAL_FORMS.items() if goal in self.goals]
        form = goal_forms[0] if goal_forms else "alone" if self.goals & WIDE_MESH_GOALS else self.choose(FORMS)
        mesh_dim = self.mesh_dim(mesh_sizes)
        if form == "every":
            every = tuple(self.strided_text(spelled_dim, shape[dim], mesh_sizes) for _ in mesh_sizes)
            return replace(side, placements=every)
        if form == "over" and len(mesh_sizes) > 1:
            mesh_dim = self.choose(range(len(mesh_sizes) - 1))
            later_dim = self.choose(range(mesh_dim + 1, len(mesh_sizes)))
            texts[later_dim] = f"S({spelled_dim})"
            mesh_sizes = (mesh_sizes[later_dim],)
        if form == "after" and mesh_dim > 0:
            texts[0] = f"S({spelled_dim})"
        texts[mesh_dim] = self.strided_text(spelled_dim, shape[dim], mesh_sizes)
        return replace(side, placements=tuple(texts))

    def strided_text(self, spelled_dim: int, size: int, mesh_sizes: Shape) -> str:
        """Draw a strided shard; its factor is often the size of a mesh dim, as in FSDP2."""
        factor = self.choose((*mesh_sizes, *mesh_sizes, *FACTORS))
        if EXCESS_FACTOR_GOAL in self.goals:
            factor = size + self.choose((1, 2, 5))
        elif self.goals & SEVERAL_RUNS_GOALS:
            factor = self.choose((2, 3))
        return f"SS({spelled_dim},{factor})"

    def with_segmented_shard(self, side: Side, shape: Shape) -> Side:
        """Return the side with a segmented shard, which is the first shard of its tensor dim."""
        (dim, spelled_dim), mesh_sizes = self.dim(shape), side.mesh_shape
        texts, cut_again = list(side.placements), "a segmented dim cut again" in self.goals
        mesh_dim = 0 if cut_again else self.mesh_dim(mesh_sizes)
        for earlier_dim in range(mesh_dim):
            placement = read_placement(texts[earlier_dim])
            if placement.kind != "R" and placement.dim % len(shape) == dim:
                texts[earlier_dim] = "R"
        has_later_dim = len(mesh_sizes) > mesh_dim + 1
        if has_later_dim and (cut_again or (not self.goals & WIDE_MESH_GOALS and self.choose((False, True)))):
            texts[mesh_dim + 1] = f"S({spelled_dim})"
        sizes = ",".join(map(str, self.sizes(shape[dim], mesh_sizes[mesh_dim])))
        texts[mesh_dim] = f"SG({spelled_dim},[{sizes}])"
        return replace(side, placements=tuple(texts))

    def sizes(self, length: int, parts: int) -> Shape:
        """Draw segments: equal (experts, gate and up), one large and two small (a fused projection), or any."""
        style = self.choose(("any", "equal", "heads", "any"))
        divisors = [count for count in range(2, 9) if length % count == 0]
        if style == "equal" and divisors and "an empty segment" not in self.goals:
            count = self.choose(divisors)
            return (length // count,) * count
        if style == "heads" and length >= 2 * parts and "an empty segment" not in self.goals:
            small = self.choose(range(1, length // 2 + 1))
            return length - 2 * (small // 2), small // 2, small // 2
        ends = sorted(self.choose(range(length + 1)) for _ in range(self.choose((1, 2, 3, 4))))
        segments = tuple(high - low for low, high in pairwise((0, *ends, length)))
        return (*segments, 0) if "an empty segment" in self.goals else segments
