"""Mutants that world nccl must kill, as far as they show without a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from reshard_conformance.case.files import Case, Side
from reshard_conformance.case.steps import StreamScenario
from reshard_conformance.contract import Profile
from reshard_conformance.judge.streams import BLOCK_BYTE, StreamScenarioRun
from reshard_conformance.mutants import device_hunt
from reshard_conformance.mutants.device_hunt import FEW, TARGETS, Target, hunt
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.verdict.requirements import requirements
from reshard_conformance.worlds.sim import SimWorld

ANYWHERE = [target for target in TARGETS if PROPERTIES[target.prop].profile is not Profile.STREAMS]
FAULTS = {
    "balanced": "local shape",
    "reversed": "elements differ",
    "skipping": "collective call 0 is missing",
    "writer": "source was written",
    "swapped": "elements differ",
    "quiet": "expected an error of kind agreement, but the call returned",
}


@pytest.mark.parametrize("target", ANYWHERE, ids=lambda target: target.mutant.name)
def test_a_mutant_is_killed_for_its_fault(target: Target, sim: SimWorld) -> None:
    result = hunt(sim, target, device_hunt.EXAMPLES)
    assert (result.verdict, result.as_expected) == ("killed", True)
    assert result.failure is not None
    assert FAULTS[target.mutant.name] in result.failure.faults[0]


@pytest.mark.parametrize("target", ANYWHERE, ids=lambda target: target.mutant.name)
def test_the_unbroken_implementation_passes(target: Target, sim: SimWorld) -> None:
    result = hunt(sim, Target(Plain, target.prop, target.size), FEW)
    assert (result.verdict, result.as_expected, result.scripts) == ("passed", True, FEW)


def test_what_a_world_cannot_play_kills_nothing(sim: SimWorld) -> None:
    result = hunt(sim, next(target for target in TARGETS if target.prop == "ordered"), FEW)
    assert (result.verdict, result.as_expected) == ("unsupported", False)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_hang_catches_only_what_may_hang(hangs: bool, sim: SimWorld) -> None:
    result = hunt(sim, TARGETS[0], device_hunt.EXAMPLES)
    assert result.failure is not None
    hung = replace(result, target=replace(result.target, hangs=hangs), failure=replace(result.failure, verdict="hang"))
    assert (hung.verdict, hung.as_expected) == ("hang", hangs)
    assert not replace(hung, target=replace(hung.target, mutant=Plain)).as_expected


def test_there_are_nine_and_each_shows_what_it_breaks() -> None:
    ids = {entry.id for entry in requirements()}
    assert len(TARGETS) == 9
    for target in TARGETS:
        if target.prop != "turns":  # there for its equal messages: others of unequal sizes would hang
            assert target.mutant.breaks in PROPERTIES[target.prop].requirements
        assert target.mutant.breaks in ids
        assert type(getattr(device_hunt, target.mutant.name)) is target.mutant
    assert not hasattr(device_hunt, "unheard-of")


@pytest.mark.requirement("RS-STREAM-5")
@pytest.mark.parametrize("written", [False, True])
def test_memory_that_was_handed_out_again_is_watched(written: bool) -> None:
    flowing = object.__new__(StreamScenarioRun)
    case = Case(1, (), "int8", Side((0,), ("R",)), Side((0,), ("R",)))
    flowing.scenario, flowing.sides, flowing.snapshots, flowing.works = (
        StreamScenario((case,), (1,), "freed"),
        [],
        {},
        [],
    )
    flowing.dropped_storages, flowing.late_returns = [], 0
    flowing.written_blocks = [torch.full((4,), BLOCK_BYTE, dtype=torch.uint8) for _ in range(3)]
    flowing.written_blocks[1][2] ^= written
    assert flowing.faults() == ["memory that was free when a call returned was written afterwards"] * written
