"""Strategies for calls that have to be refused, each with the kind of error that follows from its first defect.

The kinds stand in the order of the specification's table. A defect is either in the layouts, which every rank sees by
itself, or in what some ranks hand over (a `Fault`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from hypothesis import assume
from hypothesis import strategies as st

from reshard_conformance.cases import DTYPES, Case, Fault, Side, read_placement
from reshard_conformance.generator import Drawing, Space, mesh
from reshard_conformance.geometry import Geometry

__all__ = ["HANDED", "LAYOUTS", "astray", "faulty", "faulty_case", "misfit", "two_defects"]

Spoil: TypeAlias = Callable[[Drawing, Side, Case], Side]


def unsupported(drawing: Drawing, side: Side, _case: Case) -> Side:
    """One placement of a kind that nobody has to support."""
    place = drawing.choose(range(len(side.placements)))
    return replace(side, placements=(*side.placements[:place], "P(sum)", *side.placements[place + 1 :]))


def out_of_range(drawing: Drawing, side: Side, case: Case) -> Side:
    """One shard dim that the tensor does not have."""
    place, ndim = drawing.choose(range(len(side.placements))), len(case.shape)
    text = drawing.choose((f"S({ndim})", f"S({-ndim - 1})", f"S({ndim + 3})"))
    return replace(side, placements=(*side.placements[:place], text, *side.placements[place + 1 :]))


def number(drawing: Drawing, side: Side, _case: Case) -> Side:
    """A placement too many, or one too few."""
    more = (*side.placements, "R")
    return replace(side, placements=drawing.choose((more, side.placements[1:])) if len(side.placements) > 1 else more)


def ranks(drawing: Drawing, side: Side, case: Case) -> Side:
    """A rank that the group does not have, or one that is named twice."""
    outside = case.world_size + drawing.choose((0, 1, 5))
    wrong = drawing.choose((outside, side.ranks[0])) if len(side.ranks) > 1 else outside
    return replace(side, mesh=mesh(side.mesh_shape, (*side.ranks[:-1], wrong)))


#: What can be wrong with a layout: the kind of error, and what spoils one side; in the order of precedence.
LAYOUTS: dict[str, tuple[str, Spoil]] = {
    "unsupported placement": ("placement", unsupported),
    "shard dim out of range": ("placement", out_of_range),
    "number of placements": ("layout", number),
    "ranks of a mesh": ("layout", ranks),
}
#: What can be wrong with what a rank hands over, and the kind of error; in the order of precedence.
HANDED = {
    "absent": "missing",
    "stray": "missing",
    "device": "device",
    "dtype": "dtype",
    "local_shape": "shape",
    "global_shape": "shape",
    "alias": "aliasing",
}


def spoiled(drawing: Drawing, case: Case, defect: str) -> Case:
    """The case with a defect in one of its layouts."""
    kind, spoil = LAYOUTS[defect]
    name = drawing.choose(("src", "dst"))
    side = spoil(drawing, getattr(case, name), case)
    bad = replace(case, src=side) if name == "src" else replace(case, dst=side)
    return replace(bad, expect=f"error:{kind}")


@st.composite
def misfit(draw: Callable[..., Any], space: Space, defects: Sequence[str]) -> tuple[Case, ...]:
    """One call with one of these defects in its layouts, between two good ones on the same group."""
    drawing = Drawing(draw, space)
    good = drawing.case()
    return good, spoiled(drawing, good, drawing.choose(defects)), good


@st.composite
def two_defects(draw: Callable[..., Any], space: Space) -> tuple[Case, ...]:
    """One call with two defects, of which the first of the table counts, between two good ones."""
    drawing = Drawing(draw, space, full=True)
    good, names = drawing.case(), list(LAYOUTS)
    first = drawing.choose(range(len(names)))
    later = drawing.choose((*names[first + 1 :], "absent", "device", "dtype", "local_shape"))
    if later in LAYOUTS:
        return good, spoiled(drawing, spoiled(drawing, good, later), names[first]), good
    bad = spoiled(drawing, good, names[first])
    left = [rank for rank in range(bad.world_size) if rank in bad.src.ranks]
    assume(left)
    return good, replace(faulty_case(drawing, bad, later, left), expect=bad.expect), good


@st.composite
def faulty(draw: Callable[..., Any], space: Space, defects: Sequence[str], *, everywhere: bool) -> tuple[Case, ...]:
    """One call in which ranks hand over something wrong, between two good ones on the same group.

    everywhere: all ranks do, so that each of them sees the fault by itself; else some of those that can.
    """
    drawing = Drawing(draw, space, full=everywhere)
    good, what = drawing.case(), drawing.choose(defects)
    name = drawing.choose(("src", "dst"))
    able = tuple(holders(good, what, name))
    assume(able if not everywhere else len(able) == good.world_size)
    chosen = able if everywhere else some(drawing, able)
    return good, faulty_case(drawing, good, what, chosen, name), good


def some(drawing: Drawing, ranks: Sequence[int]) -> tuple[int, ...]:
    """One of the ranks, or some in a row, or all."""
    start = drawing.choose(range(len(ranks)))
    return tuple(ranks[start : start + drawing.choose((1, 1, 2, len(ranks)))])


def holders(case: Case, what: str, name: str) -> Iterator[int]:
    """The ranks that can have this fault on this side."""
    both = Geometry(case)
    empty = 0 in case.shape or both.src.has_empty_shard or both.dst.has_empty_shard
    for rank in range(case.world_size):
        inside = rank in getattr(case, name).ranks
        if (what == "alias" and not empty and rank in case.src.ranks and rank in case.dst.ranks) or (
            what != "alias" and inside != (what == "stray")
        ):
            yield rank


def faulty_case(drawing: Drawing, case: Case, what: str, ranks: Sequence[int], name: str = "src") -> Case:
    """The case with a fault of these ranks."""
    value: tuple[int, ...] | tuple[str, ...] | str | None = None
    if what == "dtype":
        value = drawing.choose([dtype for dtype in DTYPES if dtype != case.dtype])
    elif what in {"local_shape", "global_shape"}:
        value = tuple(size + 1 for size in case.shape) or (1,)
    fault = Fault("src" if what == "alias" else name, tuple(ranks), what, value)
    return replace(case, fault=fault, expect=f"error:{HANDED[what]}")


@st.composite
def astray(draw: Callable[..., Any], space: Space) -> tuple[Case, ...]:
    """One call in which some ranks, but not all, believe in other placements, between two good ones."""
    drawing = Drawing(draw, space)
    good = drawing.case()
    name = drawing.choose(("src", "dst"))
    other = drawing.placed(getattr(good, name), len(good.shape)).placements
    assume(meaning(other, good) != meaning(getattr(good, name).placements, good) and good.world_size > 1)
    ranks = some(drawing, range(good.world_size))[: good.world_size - 1]
    return good, replace(good, fault=Fault(name, ranks, "placements", other), expect="error:agreement"), good


def meaning(placements: Sequence[str], case: Case) -> tuple[object, ...]:
    """The placements with their dims counted from the front."""
    read = [read_placement(text) for text in placements]
    return tuple(None if placement.kind == "R" else placement.dim % len(case.shape) for placement in read)
