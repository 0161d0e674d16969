"""Profile strided: the placements of FSDP2 over tensor parallelism, and all other strided shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from reshard_conformance.case.files import Case, Side
from reshard_conformance.contract import Level, Profile
from reshard_conformance.generate.cases import Drawing, Space
from reshard_conformance.generate.defects import with_fault
from reshard_conformance.generate.piecewise import strided_cases
from reshard_conformance.profiles.core import judge_bytes
from reshard_conformance.search.bench import Bench, Drawn, Property, Script

__all__ = ["PROPERTIES"]


@st.composite
def unfit(draw: Callable[..., Any], space: Space) -> Script:
    """Draw a call with a shard dim out of range or with local tensors of wrong shapes, between two valid calls."""
    (good,) = draw(strided_cases(space, full=True))
    drawing = Drawing(draw, space)
    name = drawing.choose(("src", "dst"))
    if drawing.choose((False, True)):
        return good, with_fault(drawing, good, "local_shape", range(good.world_size), name), good
    side: Side = getattr(good, name)
    ndim, place = len(good.shape), drawing.choose(range(len(side.placements)))
    texts = list(side.placements)
    texts[place] = drawing.choose((f"SS({ndim},2)", f"SS({-ndim - 1},2)", f"SS({ndim + 3},1)"))
    return good, spoiled(good, name, replace(side, placements=tuple(texts))), good


def spoiled(case: Case, name: str, side: Side) -> Case:
    src, dst = (side, case.dst) if name == "src" else (case.src, side)
    return replace(case, src=src, dst=dst, expect="error:placement")


PROPERTIES: tuple[Property, ...] = (
    Drawn(
        "strided",
        Profile.STRIDED,
        {
            "RS-LAYOUT-10": (
                "a strided shard of several runs",
                "uneven strided shards",
                "a split factor beyond the dim",
            ),
            "RS-LAYOUT-12": ("a strided dim cut again", "several strided mesh dims on one tensor dim"),
        },
        strided_cases,
        judge_bytes,
        steered=True,
        traced=False,
        least=Level.L2,
    ),
    Drawn(
        "refuses-strided",
        Profile.STRIDED,
        {"RS-LAYOUT-13": ()},
        lambda space, _: unfit(space),
        Bench.play,
        least=Level.L3,
    ),
)
