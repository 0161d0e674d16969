"""Profile streams: the order of a call's work and its caller's on streams, and the safety of memory in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from reshard_conformance.case.files import Case, StreamScenario
from reshard_conformance.case.geometry import Geometry
from reshard_conformance.contract import Profile
from reshard_conformance.generate.cases import Drawing, Space, sampled
from reshard_conformance.search.bench import Bench, Drawn, Property, Script

__all__ = ["PROPERTIES"]


@st.composite
def flows(draw: Callable[..., Any], space: Space, scenes: Sequence[str]) -> Script:
    """Draw warm calls and one to three more of them, on one stream or several in turn; at times cold ones."""
    case = Drawing(draw, space).case()
    streams = draw(sampled(((1,), (1, 1), (1, 2), (1, 2, 3))))
    flow = StreamScenario((case,) * len(streams), streams, draw(sampled(tuple(scenes))))
    return (flow,) if draw(sampled((False, False, True))) else (*warm(case), flow)


@st.composite
def busy(draw: Callable[..., Any], space: Space) -> Script:
    """Draw warm calls on a busy stream."""
    case = Drawing(draw, space).case()
    return (*warm(case), StreamScenario((case,) * 3, (1, 1, 1), "unblocked"))


def warm(case: Case) -> tuple[Case, ...]:
    """Return the calls after which another is warm: one per holder of a source shard, since holders may take turns."""
    boxes = Geometry(case).src.boxes
    return (case,) * (len(boxes) // max(1, len(set(boxes.values()))))


@st.composite
def neighbours(draw: Callable[..., Any], space: Space) -> Script:
    """Draw calls that alternate between two groups on one device, each on its own stream."""
    drawing = Drawing(draw, space.at(draw(sampled(space.sizes))))
    pair = drawing.case(), replace(drawing.case(), group=1)
    times = draw(sampled((1, 2)))
    flow = StreamScenario(pair * times, (1, 2) * times, "given")
    return (flow,) if draw(sampled((False, True))) else (*pair, flow)


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
