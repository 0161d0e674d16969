"""Rank processes: the transport, what becomes of ranks that hang or die, and sessions that follow each other."""

from __future__ import annotations

import pytest
import torch

from reshard_conformance import registry
from reshard_conformance.case.files import Batch, Case, Clear, Destroy, Fault, Side, Step
from reshard_conformance.worlds.gloo import GlooWorld

CASE = Case(3, (7, 2), "int16", Side((0, 1, 2), ("S(0)",), "sliced"), Side((2, 0), ("S(1)",), "transposed"))
REFUSED = Case(3, (7, 2), "int16", Side((0, 0, 2), ("S(0)",)), Side((2, 0), ("S(1)",)), expect="error:layout")


def test_the_transport_follows_the_protocol(gloo: GlooWorld) -> None:
    with gloo.open(3, "strange:probe") as session:
        outcome = session.play(CASE)
    assert outcome.faults == ()
    assert outcome.verdict == "pass"
    assert {"split", "send", "recv", "all_gather", "exchange"} <= {event.op for event in outcome.reports[0].events}


def test_a_group_that_is_not_traced_brings_a_torch_process_group(gloo: GlooWorld) -> None:
    with gloo.open(2, "strange:plain", traced=False) as session:
        outcome = session.play(Case(2, (3,), "bool", Side((0,), ("R",)), Side((1,), ("R",))))
    assert outcome.faults == ()


@pytest.mark.parametrize("group", [0, 1])
def test_steps_of_every_kind_run_on_groups_of_their_own(gloo: GlooWorld, group: int) -> None:
    case = Case(3, (5,), "float32", CASE.src, Side((1,), ("R",)), group=group)
    with gloo.open(3, "golden") as session:
        steps: list[Step] = [
            case,
            Clear(group=group),
            case,
            Destroy(group),
            case,
            Clear(all_groups=True),
            Clear((1,)),
            case,
        ]
        verdicts = [session.play(step, lockstep=True, memory=True).verdict for step in steps]
        batch = session.play(Batch((case, case)))
    assert verdicts == ["pass"] * len(steps)
    assert batch.verdict == "unsupported"


def test_a_refusal_is_judged_by_the_trace_too(gloo: GlooWorld) -> None:
    with gloo.open(3, "golden") as session:
        outcome = session.play(REFUSED)
    assert outcome.verdict == "pass"
    assert {report.kind for report in outcome.reports} == {"layout"}


@pytest.mark.parametrize(
    ("name", "verdict", "faults"),
    [
        (
            "waiting",
            "hang",
            ["rank 0 did not end within 1 s: ", "rank 1 did not end within 1 s: ", "strange.py", "(before_call)"],
        ),
        ("dying", "fail", ["rank 1 died with exit code 3"]),
        ("raising", "hang", ["rank 1: raised ZeroDivisionError: odd one out", "rank 0 did not end"]),
        ("exiting", "fail", ["ranks 0, 1, 2: raised SystemExit: bye"]),
    ],
)
def test_ranks_that_do_not_answer_are_a_failure_and_the_next_step_runs(
    plugins: str, name: str, verdict: str, faults: list[str]
) -> None:
    world = GlooWorld(registry.place_of, size=3, limit=1.0, grace=0.5)
    try:
        with world.open(3, f"strange:{name}") as session:
            outcome = session.play(CASE)
        with world.open(3, "golden") as session:
            after = session.play(CASE)
    finally:
        world.close()
    for part in faults:
        assert any(part in sentence for sentence in outcome.faults)
    assert outcome.faults[0].startswith(faults[0])
    assert outcome.verdict == verdict
    assert after.faults == ()


def test_a_session_goes_on_after_a_failure(plugins: str) -> None:
    world = GlooWorld(registry.place_of, size=2, limit=5.0, grace=0.1)
    case = Case(2, (3,), "int8", Side((0,), ("R",)), Side((1,), ("R",)))
    fault = Case(2, (3,), "int8", case.src, case.dst, "error:missing", fault=Fault("src", (0,), "absent"))
    try:
        with world.open(2, "golden") as session:
            verdicts = [session.play(step).verdict for step in (case, fault, case)]
    finally:
        world.close()
    assert verdicts == ["pass", "hang", "pass"]


def test_an_implementation_that_cannot_be_loaded_is_an_error(plugins: str) -> None:
    world = GlooWorld(registry.place_of, size=2)
    with pytest.raises(RuntimeError, match="do not start: rank 0: LoadError: nowhere:at_all: module 'nowhere'"):
        world.open(2, "nowhere:at_all")
    world.close()


def test_an_object_is_no_name(gloo: GlooWorld) -> None:
    with pytest.raises(TypeError, match="loads an implementation by name"):
        gloo.open(2, registry.load("golden"))


@pytest.mark.parametrize("size", [0, 4])
def test_a_session_fits_the_pool(gloo: GlooWorld, size: int) -> None:
    with pytest.raises(ValueError, match="1 to 3 ranks"):
        gloo.open(size, "golden")


def test_one_session_at_a_time(gloo: GlooWorld) -> None:
    with gloo.open(2, "golden"), pytest.raises(RuntimeError, match="still open"):
        gloo.open(2, "golden")


def test_only_the_processes_that_a_session_needs_are_started(plugins: str) -> None:
    world = GlooWorld(registry.place_of, size=3)
    try:
        with world.open(1, "golden"):
            assert len(world.pool.processes) == 1
        first = world.pool.processes[0].process.pid
        with world.open(2, "golden") as session:
            assert len(world.pool.processes) == 2
            assert session.play(Case(2, (3,), "int8", Side((0,), ("R",)), Side((1,), ("R",)))).verdict == "pass"
        assert world.pool.processes[0].process.pid == first
    finally:
        world.close()
    assert world.versions == {rank: {"torch": torch.__version__} for rank in (0, 1)}
