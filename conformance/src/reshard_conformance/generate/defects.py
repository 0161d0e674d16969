"""Strategies for calls that have to be refused, with the kind of error that their first defect asks for.

A defect is in the layouts, which every rank sees by itself, or in the arguments of some ranks (a `Fault`). Where a call
has several, the first in the order of the specification's table decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from hypothesis import assume
from hypothesis import strategies as st

from reshard_conformance.case.files import DTYPES, Case, Fault, Side, read_placement
from reshard_conformance.case.geometry import Geometry
from reshard_conformance.generate.cases import Drawing, Space
from reshard_conformance.generate.meshes import nest_ranks

__all__ = [
    "ARGUMENT_FAULTS",
    "LAYOUT_DEFECTS",
    "argument_fault_scripts",
    "diverging_layout_scripts",
    "layout_defect_scripts",
    "two_defect_scripts",
    "with_fault",
]

SideDefect: TypeAlias = Callable[[Drawing, Side, Case], Side]


def unsupported_placement(drawing: Drawing, side: Side, _case: Case) -> Side:
    """Exchange one placement for a kind that nobody has to support."""
    return replace_placement(side, drawing.choose(range(len(side.placements))), "P(sum)")


def dim_out_of_range(drawing: Drawing, side: Side, case: Case) -> Side:
    """Exchange one placement for a shard of a dim that the tensor does not have."""
    mesh_dim, ndim = drawing.choose(range(len(side.placements))), len(case.shape)
    text = drawing.choose((f"S({ndim})", f"S({-ndim - 1})", f"S({ndim + 3})"))
    return replace_placement(side, mesh_dim, text)


def replace_placement(side: Side, mesh_dim: int, text: str) -> Side:
    return replace(side, placements=(*side.placements[:mesh_dim], text, *side.placements[mesh_dim + 1 :]))


def wrong_placement_count(drawing: Drawing, side: Side, _case: Case) -> Side:
    """Add a placement, or take one away."""
    more = (*side.placements, "R")
    return replace(side, placements=drawing.choose((more, side.placements[1:])) if len(side.placements) > 1 else more)


def wrong_rank(drawing: Drawing, side: Side, case: Case) -> Side:
    """Exchange the last rank for one that the group does not have, or for one that is in the mesh already."""
    outside = case.world_size + drawing.choose((0, 1, 5))
    wrong = drawing.choose((outside, side.ranks[0])) if len(side.ranks) > 1 else outside
    return replace(side, mesh=nest_ranks(side.mesh_shape, (*side.ranks[:-1], wrong)))


#: The defects of a layout: the kind of error, and the function that puts the defect into one side; first ones decide.
LAYOUT_DEFECTS: dict[str, tuple[str, SideDefect]] = {
    "unsupported placement": ("placement", unsupported_placement),
    "shard dim out of range": ("placement", dim_out_of_range),
    "number of placements": ("layout", wrong_placement_count),
    "ranks of a mesh": ("layout", wrong_rank),
}
#: The faults of a rank's arguments, and the kind of error; first ones decide.
ARGUMENT_FAULTS = {
    "absent": "missing",
    "stray": "missing",
    "device": "device",
    "dtype": "dtype",
    "local_shape": "shape",
    "global_shape": "shape",
    "alias": "aliasing",
}


def with_layout_defect(drawing: Drawing, case: Case, defect: str) -> Case:
    """Return the case with a defect in one of its layouts."""
    kind, add_defect = LAYOUT_DEFECTS[defect]
    name = drawing.choose(("src", "dst"))
    side = add_defect(drawing, getattr(case, name), case)
    bad = replace(case, src=side) if name == "src" else replace(case, dst=side)
    return replace(bad, expect=f"error:{kind}")


@st.composite
def layout_defect_scripts(draw: Callable[..., Any], space: Space, defects: Sequence[str]) -> tuple[Case, ...]:
    """Draw a call with one of these defects in its layouts, between two good calls on the same group."""
    drawing = Drawing(draw, space)
    good = drawing.case()
    return good, with_layout_defect(drawing, good, drawing.choose(defects)), good


@st.composite
def two_defect_scripts(draw: Callable[..., Any], space: Space) -> tuple[Case, ...]:
    """Draw a call with two defects, of which the first in the table decides, between two good calls."""
    drawing = Drawing(draw, space, full=True)
    good, names = drawing.case(), list(LAYOUT_DEFECTS)
    index = drawing.choose(range(len(names)))
    later_defect = drawing.choose((*names[index + 1 :], "absent", "device", "dtype", "local_shape"))
    if later_defect in LAYOUT_DEFECTS:
        return good, with_layout_defect(drawing, with_layout_defect(drawing, good, later_defect), names[index]), good
    bad = with_layout_defect(drawing, good, names[index])
    src_ranks = [rank for rank in range(bad.world_size) if rank in bad.src.ranks]
    assume(src_ranks)
    return good, replace(with_fault(drawing, bad, later_defect, src_ranks), expect=bad.expect), good


@st.composite
def argument_fault_scripts(
    draw: Callable[..., Any], space: Space, defects: Sequence[str], *, everywhere: bool
) -> tuple[Case, ...]:
    """Draw a call with wrong arguments on some ranks, between two good calls on the same group.

    everywhere: on all ranks, so that each of them sees the fault by itself.
    """
    drawing = Drawing(draw, space, full=everywhere)
    good, what = drawing.case(), drawing.choose(defects)
    name = drawing.choose(("src", "dst"))
    possible = tuple(possible_ranks(good, what, name))
    assume(possible if not everywhere else len(possible) == good.world_size)
    chosen = possible if everywhere else some_ranks(drawing, possible)
    return good, with_fault(drawing, good, what, chosen, name), good


def some_ranks(drawing: Drawing, ranks: Sequence[int]) -> tuple[int, ...]:
    """Draw one of the ranks, or some in a row, or all."""
    start = drawing.choose(range(len(ranks)))
    return tuple(ranks[start : start + drawing.choose((1, 1, 2, len(ranks)))])


def possible_ranks(case: Case, what: str, name: str) -> Iterator[int]:
    """Yield the ranks that can have this fault on this side."""
    both = Geometry(case)
    empty = 0 in case.shape or both.src.has_empty_shard or both.dst.has_empty_shard
    for rank in range(case.world_size):
        inside = rank in getattr(case, name).ranks
        if (what == "alias" and not empty and rank in case.src.ranks and rank in case.dst.ranks) or (
            what != "alias" and inside != (what == "stray")
        ):
            yield rank


def with_fault(drawing: Drawing, case: Case, what: str, ranks: Sequence[int], name: str = "src") -> Case:
    """Return the case with a fault on these ranks."""
    value: tuple[int, ...] | tuple[str, ...] | str | None = None
    if what == "dtype":
        value = drawing.choose([dtype for dtype in DTYPES if dtype != case.dtype])
    elif what in {"local_shape", "global_shape"}:
        value = tuple(size + 1 for size in case.shape) or (1,)
    fault = Fault("src" if what == "alias" else name, tuple(ranks), what, value)
    return replace(case, fault=fault, expect=f"error:{ARGUMENT_FAULTS[what]}")


@st.composite
def diverging_layout_scripts(draw: Callable[..., Any], space: Space) -> tuple[Case, ...]:
    """Draw a call in which some ranks, but not all, pass other placements, between two good calls."""
    drawing = Drawing(draw, space)
    good = drawing.case()
    name = drawing.choose(("src", "dst"))
    side: Side = getattr(good, name)
    other = drawing.with_new_placements(side, len(good.shape)).placements
    assume(normalized_dims(other, good) != normalized_dims(side.placements, good) and good.world_size > 1)
    ranks = some_ranks(drawing, range(good.world_size))[: good.world_size - 1]
    return good, replace(good, fault=Fault(name, ranks, "placements", other), expect="error:agreement"), good


def normalized_dims(placements: Sequence[str], case: Case) -> tuple[object, ...]:
    """Return the tensor dim of each placement, counted from the front; None for a replicate."""
    parsed = [read_placement(text) for text in placements]
    return tuple(None if placement.kind == "R" else placement.dim % len(case.shape) for placement in parsed)
