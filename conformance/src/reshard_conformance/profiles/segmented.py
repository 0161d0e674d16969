"""Profile segmented: tensor dims of several segments, each sharded by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from reshard_conformance.case.files import Case, Placement, Side, read_placement
from reshard_conformance.contract import Level, Profile
from reshard_conformance.generate.cases import Drawing, Space
from reshard_conformance.generate.piecewise import segmented_cases
from reshard_conformance.profiles.core import judge_bytes
from reshard_conformance.search.bench import Bench, Drawn, Property, Script

__all__ = ["PROPERTIES"]


@st.composite
def unfit(draw: Callable[..., Any], space: Space) -> Script:
    """Draw a call with segments that do not fit, between two valid calls."""
    (good,) = draw(segmented_cases(space))
    drawing = Drawing(draw, space)
    name, side = drawing.choose([(name, side) for name, side in sides(good) if segments(side)])
    place, placement = segments(side)[0]
    ndim, sizes = len(good.shape), placement.sizes
    texts, kind = list(side.placements), "placement"
    defect = drawing.choose(("dim", "sum", "order") if place else ("dim", "sum"))
    if defect == "dim":
        texts[place] = spelled(drawing.choose((ndim, -ndim - 1)), sizes)
    elif defect == "order":
        texts[0] = f"S({placement.dim})"
    else:
        texts[place], kind = (
            spelled(placement.dim, drawing.choose(((*sizes, 1), (*sizes[:-1], sizes[-1] + 2)))),
            "shape",
        )
    bad = replace(side, placements=tuple(texts))
    src, dst = (bad, good.dst) if name == "src" else (good.src, bad)
    return good, replace(good, src=src, dst=dst, expect=f"error:{kind}"), good


def sides(case: Case) -> tuple[tuple[str, Side], ...]:
    return ("src", case.src), ("dst", case.dst)


def segments(side: Side) -> list[tuple[int, Placement]]:
    """Return the segmented placements of a side, with their mesh dims."""
    read = map(read_placement, side.placements)
    return [(place, placement) for place, placement in enumerate(read) if placement.kind == "SG"]


def spelled(dim: int, sizes: tuple[int, ...]) -> str:
    return f"SG({dim},[{','.join(map(str, sizes))}])"


PROPERTIES: tuple[Property, ...] = (
    Drawn(
        "segmented",
        Profile.SEGMENTED,
        {
            "RS-LAYOUT-11": (
                *("a segmented shard of several runs", "a segment that its mesh dim does not divide"),
                "an empty segment",
            ),
            "RS-LAYOUT-14": ("a segmented dim cut again",),
        },
        segmented_cases,
        judge_bytes,
        steered=True,
        traced=False,
        least=Level.L2,
    ),
    Drawn(
        "refuses-segments",
        Profile.SEGMENTED,
        {"RS-LAYOUT-15": ()},
        lambda space, _: unfit(space),
        Bench.play,
        least=Level.L2,
    ),
)
