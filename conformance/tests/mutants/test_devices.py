"""The breaks that world nccl has to catch, as far as they show without a device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from reshard_conformance.cases import Case, Side
from reshard_conformance.contract import Profile
from reshard_conformance.flowing import FLOOD, Flowing
from reshard_conformance.mutants import devices
from reshard_conformance.mutants.devices import BREAKS, FEW, Break, hunt
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.requirements import requirements
from reshard_conformance.steps import Flow
from reshard_conformance.worlds.sim import SimWorld

ANYWHERE = [one for one in BREAKS if PROPERTIES[one.prop].profile is not Profile.STREAMS]
RIGHT = {
    "balanced": "local shape",
    "reversed": "elements differ",
    "skipping": "collective call 0 is missing",
    "writer": "source was written",
    "swapped": "elements differ",
    "quiet": "expected an error of kind agreement, but the call returned",
}


@pytest.mark.parametrize("one", ANYWHERE, ids=lambda one: one.kind.name)
def test_a_break_is_killed_for_what_is_wrong_with_it(one: Break, sim: SimWorld) -> None:
    found = hunt(sim, one, devices.EXAMPLES)
    assert (found.word, found.good) == ("killed", True)
    assert found.failure is not None
    assert RIGHT[one.kind.name] in found.failure.faults[0]


@pytest.mark.parametrize("one", ANYWHERE, ids=lambda one: one.kind.name)
def test_what_they_break_passes(one: Break, sim: SimWorld) -> None:
    found = hunt(sim, Break(Plain, one.prop, one.size), FEW)
    assert (found.word, found.good, found.scripts) == ("passed", True, FEW)


def test_what_a_world_cannot_play_kills_nothing(sim: SimWorld) -> None:
    found = hunt(sim, next(one for one in BREAKS if one.prop == "ordered"), FEW)
    assert (found.word, found.good) == ("unsupported", False)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_hang_catches_only_what_may_hang(hangs: bool, sim: SimWorld) -> None:
    found = hunt(sim, BREAKS[0], devices.EXAMPLES)
    assert found.failure is not None
    hung = replace(found, sought=replace(found.sought, hangs=hangs), failure=replace(found.failure, verdict="hang"))
    assert (hung.word, hung.good) == ("hang", hangs)
    assert not replace(hung, sought=replace(hung.sought, kind=Plain)).good


def test_there_are_nine_and_each_shows_what_it_breaks() -> None:
    ids = {entry.id for entry in requirements()}
    assert len(BREAKS) == 9
    for one in BREAKS:
        if one.prop != "turns":  # there for its equal messages: others of unequal sizes would hang
            assert one.kind.breaks in PROPERTIES[one.prop].requirements
        assert one.kind.breaks in ids
        assert type(getattr(devices, one.kind.name)) is one.kind
    assert not hasattr(devices, "unheard-of")


@pytest.mark.requirement("RS-STREAM-5")
@pytest.mark.parametrize("written", [False, True])
def test_memory_that_was_handed_out_again_is_watched(written: bool) -> None:
    flowing = object.__new__(Flowing)
    case = Case(1, (), "int8", Side((0,), ("R",)), Side((0,), ("R",)))
    flowing.flow, flowing.sides, flowing.shots, flowing.works = Flow((case,), (1,), "freed"), [], {}, []
    flowing.dropped, flowing.idle = [], 0
    flowing.floods = [torch.full((4,), FLOOD, dtype=torch.uint8) for _ in range(3)]
    flowing.floods[1][2] ^= written
    assert flowing.faults() == ["memory that was free when a call returned was written afterwards"] * written
