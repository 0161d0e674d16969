"""Profile streams: what a call enqueues comes after and before what its caller enqueues, and memory in flight is safe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from reshard_conformance.cases import Case, Flow
from reshard_conformance.contract import Profile
from reshard_conformance.generator import Drawing, Space, one_of
from reshard_conformance.geometry import Geometry
from reshard_conformance.search import Bench, Drawn, Property, Script

__all__ = ["PROPERTIES"]


@st.composite
def flows(draw: Callable[..., Any], space: Space, scenes: Sequence[str]) -> Script:
    """A call, and then a flow of one to three like it, on one stream or on several in turn; cold at times."""
    case = Drawing(draw, space).case()
    streams = draw(one_of(((1,), (1, 1), (1, 2), (1, 2, 3))))
    flow = Flow((case,) * len(streams), streams, draw(one_of(tuple(scenes))))
    return (flow,) if draw(one_of((False, False, True))) else (*warm(case), flow)


@st.composite
def busy(draw: Callable[..., Any], space: Space) -> Script:
    """Warm calls on a stream that is busy."""
    case = Drawing(draw, space).case()
    return (*warm(case), Flow((case,) * 3, (1, 1, 1), "unblocked"))


def warm(case: Case) -> tuple[Case, ...]:
    """The calls after which another one is warm: the holders of a replicated source may take turns."""
    boxes = Geometry(case).src.boxes
    return (case,) * (len(boxes) // max(1, len(set(boxes.values()))))


@st.composite
def neighbours(draw: Callable[..., Any], space: Space) -> Script:
    """Two groups on one device, each on a stream of its own, called in turn."""
    drawing = Drawing(draw, space.at(draw(one_of(space.sizes))))
    pair = drawing.case(), replace(drawing.case(), group=1)
    times = draw(one_of((1, 2)))
    flow = Flow(pair * times, (1, 2) * times, "given")
    return (flow,) if draw(one_of((False, True))) else (*pair, flow)


def scenic(name: str, requirements: Sequence[str], *scenes: str) -> Drawn:
    """A property of flows of these scenes."""
    shown: dict[str, tuple[str, ...]] = dict.fromkeys(requirements, ())
    return Drawn(name, Profile.STREAMS, shown, lambda space, _: flows(space, scenes), Bench.play)


PROPERTIES: tuple[Property, ...] = (
    scenic("ordered", ("RS-STREAM-1",), "given", "current", "produced"),
    Drawn("unblocked", Profile.STREAMS, {"RS-STREAM-2": ()}, lambda space, _: busy(space), Bench.play),
    scenic("handles", ("RS-STREAM-3",), "handled"),
    scenic("reused", ("RS-STREAM-4", "RS-STREAM-5", "RS-STREAM-6"), "overwritten", "freed", "foreign"),
    Drawn("neighbours", Profile.STREAMS, {"RS-STREAM-9": ()}, lambda space, _: neighbours(space), Bench.play),
)
