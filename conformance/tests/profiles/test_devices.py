"""What the properties of devices draw and judge, as far as that shows without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings

from reshard_conformance.case.files import Batch, Case, Destroy, Side, StreamScenario, dump, parse
from reshard_conformance.case.steps import STREAM_USAGES
from reshard_conformance.contract import Profile
from reshard_conformance.generate.cases import Space
from reshard_conformance.judge.large_tensors import is_large
from reshard_conformance.judge.outcomes import Outcome, RankReport
from reshard_conformance.judge.trace import Event
from reshard_conformance.profiles import PROPERTIES, efficient, large, soak, streams
from reshard_conformance.search.bench import Bench, Finding, Script, open_groups

SPACE = Space((2, 3, 4))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(streams.flows(SPACE, STREAM_USAGES))
def test_flows_are_cold_or_warm_and_survive_a_file(script: Script) -> None:
    *before, flow = script
    assert isinstance(flow, StreamScenario)
    assert set(before) <= {flow.cases[0]}
    assert [parse(dump(step)) for step in script] == list(script)


def test_calls_are_warm_once_every_holder_has_had_its_turn() -> None:
    dst = Side((3,), ("R",))
    assert len(streams.warm(Case(4, (4,), "int8", Side((0, 1, 2), ("R",)), dst))) == 3
    assert len(streams.warm(Case(4, (4,), "int8", Side((0, 1), ("S(0)",)), dst))) == 1


@settings(deadline=None, derandomize=True, max_examples=30)
@given(streams.neighbours(SPACE))
def test_neighbours_are_two_groups_on_two_streams(script: Script) -> None:
    flow = script[-1]
    assert isinstance(flow, StreamScenario)
    assert {(case.group, stream) for case, stream in zip(flow.cases, flow.streams, strict=True)} == {(0, 1), (1, 2)}
    assert open_groups(script) == [0, 1]


def test_every_scene_is_drawn_by_some_property() -> None:
    drawn: set[str] = set()
    for prop in PROPERTIES.values():
        if prop.profile is Profile.STREAMS:

            @settings(deadline=None, derandomize=True, max_examples=60, database=None)
            @given(prop.draws(SPACE, ()))  # type: ignore[attr-defined]  # all of them are Drawn
            def look(script: Script) -> None:
                drawn.update(step.usage for step in script if isinstance(step, StreamScenario))

            look()
    assert drawn == set(STREAM_USAGES)


@pytest.mark.requirement("RS-LAYOUT-9", "RS-BATCH-5")
@settings(database=None)
@given(large.vast(SPACE), large.vast_batch(SPACE))
def test_large_cases_exceed_what_32_bits_count(script: Script, batches: Script) -> None:
    assert all(isinstance(step, Case) and is_large(step) for step in script)
    rows, columns = large.SHAPE
    assert rows * columns > 2**31
    assert isinstance(batches[0], Batch)
    assert len(batches[0].cases) * rows * columns > 2**32


@pytest.mark.requirement("RS-TRAFFIC-4")
@pytest.mark.parametrize(("records", "peak", "good"), [(False, 1, False), (True, 300, True), (True, 301, False)])
def test_records_may_take_memory_where_they_are_measured(records: bool, peak: int, good: bool) -> None:
    case = Case(2, (4,), "int8", Side((0,), ("R",)), Side((1,), ("R",)))
    report = RankReport(0, events=(Event("exchange", "0", 2, 0, 0, None, 100),), peak=peak)
    assert (efficient.staging(case, [report], records=records) == []) == good


class Leaking:
    """A session in which every call takes some bytes of rank 1's device, and call number `breaks` fails."""

    def __init__(self, leak: int, breaks: int = 0) -> None:
        self.leak, self.breaks, self.calls, self.ended = leak, breaks, 0, 0

    def play(self, step: Any, *, memory: bool = False) -> Outcome:
        if isinstance(step, Destroy):
            self.ended += 1
            return Outcome("pass")
        self.calls += 1
        if self.calls == self.breaks:
            return Outcome("fail", ("rank 0: 1 of 4 elements differ",))
        held = (5_000_000, 5_000_000 + self.calls * self.leak) if memory else (None, None)
        return Outcome("pass", (), tuple(RankReport(rank, held=held[rank]) for rank in (0, 1)))

    def close(self) -> None: ...


def soaked(session: Leaking) -> Bench:
    class Place:
        name, max_size = "nccl", 2
        versions: Mapping[int, Mapping[str, str]] = {}

        def open(self, *_: object, **__: object) -> Any:
            return session

        def close(self) -> None: ...

    case = Case(2, (4,), "int8", Side((0,), ("R",)), Side((1,), ("R",)))
    bench = Bench(Place(), "golden", Space((2,)))
    soak.Soak().judge(bench, (case,))
    return bench


@pytest.mark.requirement("RS-CACHE-13")
def test_a_soak_plays_all_its_calls_in_one_group_and_ends_it() -> None:
    session = Leaking(0)
    assert soaked(session).scripts == 1
    assert (session.calls, session.ended) == (soak.CALLS, 1)


@pytest.mark.requirement("RS-CACHE-13")
def test_a_soak_finds_memory_that_grows() -> None:
    with pytest.raises(
        Finding, match="rank 1: 8000000 bytes more of its device are in use after 10000 calls than after 2000"
    ):
        soaked(Leaking(1000))


def test_a_soak_finds_a_call_that_fails() -> None:
    with pytest.raises(Finding, match="1 of 4 elements differ; this is call 77 of one group"):
        soaked(Leaking(0, breaks=77))
