"""The packaged cases, played again; and files from elsewhere."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from reshard_conformance.cases import Batch, Case, Clear, Fault, Side, packaged, save
from reshard_conformance.contract import Profile
from reshard_conformance.replay import Replayed, needs, replay
from reshard_conformance.worlds.gloo import GlooWorld
from reshard_conformance.worlds.sim import SimWorld

CASE = Case(2, (4, 6), "float32", Side((0,), ("S(0)",)), Side((1,), ("S(1)",)), name="there")
BACK = Case(2, (4, 6), "float32", Side((1,), ("S(0)",)), Side((0,), ("S(1)",)))
UNEVEN = Case(2, (3,), "float32", Side((0, 1), ("S(0)",)), Side((1,), ("R",)))


def verdicts(found: list[Replayed]) -> Counter[str]:
    return Counter("not claimed" if each.outcome is None else each.outcome.verdict for each in found)


def test_golden_is_right_on_every_packaged_case_that_it_claims(sim: SimWorld) -> None:
    found = list(replay("golden", sim))
    plain = [each for each in found if each.path.parent.name != "faults" and not each.missing]
    assert {each.path.parent.name for each in plain} >= {"cases", "sequences", "strided", "segmented"}
    assert len(plain) >= 70
    assert [(each.name, each.outcome.faults) for each in plain if each.outcome and each.outcome.faults] == []
    assert verdicts(plain) == {"pass": len(plain)}


def test_what_golden_does_not_claim_is_told_apart(sim: SimWorld) -> None:
    faults = list(replay("golden", sim, [path for path in packaged() if path.parent.name == "faults"]))
    assert verdicts(faults) == {"not claimed": len(faults)}
    assert {each.missing for each in faults} == {(Profile.AGREEMENT,)}


def test_the_toy_plays_what_it_can(sim: SimWorld, gloo: GlooWorld, plugins: str, tmp_path: Path) -> None:
    save(tmp_path / "seq_there_and_back.jsonl", [CASE, Clear(), BACK])
    for world in (sim, gloo):
        assert verdicts(list(replay("toy", world, [tmp_path / "seq_there_and_back.jsonl"]))) == {"pass": 3}


def test_what_the_toy_gets_wrong_is_a_failure(sim: SimWorld, plugins: str, tmp_path: Path) -> None:
    save(tmp_path / "uneven.json", [UNEVEN])
    (found,) = replay("toy", sim, [tmp_path / "uneven.json"])
    assert found.outcome is not None
    assert found.outcome.verdict == "fail"


def test_a_step_has_a_name(sim: SimWorld, tmp_path: Path) -> None:
    save(tmp_path / "seq_a.jsonl", [CASE, Clear(), BACK])
    names = [each.name for each in replay("golden", sim, [tmp_path / "seq_a.jsonl"])]
    assert names[0] == "there"
    assert names[1].startswith('{"format": 1, "op": "clear"')
    assert names[2].startswith('{"format": 1, "world_size": 2')


@pytest.mark.parametrize(
    ("step", "profiles"),
    [
        (CASE, set()),
        (Clear(), set()),
        (Clear((0,)), {Profile.AGREEMENT}),
        (Batch((CASE,)), {Profile.BATCH}),
        (Case(2, (4,), "int8", Side((0,), ("SS(0,2)",)), Side((1,), ("R",))), {Profile.STRIDED}),
        (Case(2, (4,), "int8", Side((0,), ("R",)), Side((1,), ("SG(-1,[3,1])",))), {Profile.SEGMENTED}),
        (
            Case(2, (4,), "int8", CASE.src, CASE.dst, "error:missing", fault=Fault("src", (0,), "absent")),
            {Profile.AGREEMENT},
        ),
    ],
)
def test_a_step_needs_profiles(step: Case | Clear | Batch, profiles: set[Profile]) -> None:
    assert set(needs([step])) == profiles
