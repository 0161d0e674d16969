"""The packaged_files cases, played again; and files from elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from reshard_conformance.case.files import Batch, Case, Clear, Fault, Side, packaged_files, save
from reshard_conformance.contract import Profile
from reshard_conformance.run import replay
from reshard_conformance.run.replay import (
    PACKAGED_FOLDER,
    NoCasesError,
    Replayed,
    find_scripts,
    needed_profiles,
    replay_cases,
)
from reshard_conformance.worlds.gloo import GlooWorld
from reshard_conformance.worlds.sim import SimWorld

CASE = Case(2, (4, 6), "float32", Side((0,), ("S(0)",)), Side((1,), ("S(1)",)), name="there")
BACK = Case(2, (4, 6), "float32", Side((1,), ("S(0)",)), Side((0,), ("S(1)",)))
UNEVEN = Case(2, (3,), "float32", Side((0, 1), ("S(0)",)), Side((1,), ("R",)))


def verdicts(steps: list[Replayed]) -> Counter[str]:
    return Counter("not claimed" if step.outcome is None else step.outcome.verdict for step in steps)


def test_golden_is_right_on_every_packaged_case_that_it_claims(sim: SimWorld) -> None:
    steps = list(replay_cases("golden", sim))
    claimed = [step for step in steps if step.path.parent.name != "faults" and not step.missing]
    assert {step.path.parent.name for step in claimed} >= {"cases", "sequences", "strided", "segmented"}
    assert len(claimed) >= 70
    assert [(step.name, step.outcome.faults) for step in claimed if step.outcome and step.outcome.faults] == []
    assert verdicts(claimed) == {"pass": len(claimed)}


def test_what_golden_does_not_claim_is_told_apart(sim: SimWorld) -> None:
    faults = list(replay_cases("golden", sim, [path for path in packaged_files() if path.parent.name == "faults"]))
    assert verdicts(faults) == {"not claimed": len(faults)}
    assert {step.missing for step in faults} == {(Profile.AGREEMENT,)}


def test_the_toy_plays_what_it_can(sim: SimWorld, gloo: GlooWorld, plugins: str, tmp_path: Path) -> None:
    save(tmp_path / "seq_there_and_back.jsonl", [CASE, Clear(), BACK])
    for world in (sim, gloo):
        assert verdicts(list(replay_cases("toy", world, [tmp_path / "seq_there_and_back.jsonl"]))) == {"pass": 3}


def test_what_the_toy_gets_wrong_is_a_failure(sim: SimWorld, plugins: str, tmp_path: Path) -> None:
    save(tmp_path / "uneven.json", [UNEVEN])
    (step,) = replay_cases("toy", sim, [tmp_path / "uneven.json"])
    assert step.outcome is not None
    assert step.outcome.verdict == "fail"


def test_a_step_has_a_name(sim: SimWorld, tmp_path: Path) -> None:
    save(tmp_path / "seq_a.jsonl", [CASE, Clear(), BACK])
    names = [step.name for step in replay_cases("golden", sim, [tmp_path / "seq_a.jsonl"])]
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
    assert set(needed_profiles([step])) == profiles


def test_packaged_files_are_in_the_folder_that_an_error_names() -> None:
    files = {path for path, _ in find_scripts()}
    assert files == set(PACKAGED_FOLDER.rglob("*.json*"))


def test_a_replay_without_cases_says_where_it_looked(
    sim: SimWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n", encoding="utf-8")
    with pytest.raises(NoCasesError, match=re.escape(f"no case to replay: looked in {empty};")):
        list(replay_cases("golden", sim, [empty]))
    with pytest.raises(NoCasesError, match="looked in an empty list of files"):
        list(replay_cases("golden", sim, []))
    monkeypatch.setattr(replay, "packaged_files", tuple)
    with pytest.raises(NoCasesError, match=re.escape(f"looked in {PACKAGED_FOLDER};")):
        list(replay_cases("golden", sim))
