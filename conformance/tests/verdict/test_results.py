"""Verdicts, and the last line that follows from them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date

import pytest

from reshard_conformance.contract import Claims, Level, Profile
from reshard_conformance.generate.coverage import CLASSES, Coverage
from reshard_conformance.verdict.requirements import requirements
from reshard_conformance.verdict.results import Failure, Result, Tally
from reshard_conformance.verdict.waivers import Waiver

SHOWN = {entry.id: () for entry in requirements() if entry.profile is Profile.CORE and not entry.planned}
FAILURE = Failure("sim", "all", Profile.CORE, "fail", ("rank 3: 7 of 9 differ",), ('{"a": 1}',), 4, False, True)
WAIVER = Waiver("RS-EXACT-1", "differ", "https://example.org/bug/1", date(2999, 1, 1), "not theirs")


def result(*profiles: Profile, level: Level = Level.L3, claimed: tuple[Profile, ...] = (Profile.CORE,)) -> Result:
    """A run of core in sim and gloo in which all was played and nothing failed."""
    found = Result(
        *("thing", "1.2", Claims(level, frozenset(claimed)), profiles or (Profile.CORE,)),
        {"sim": (8,), "gloo": (4,)},
        *("quick", 7),
    )
    for world in found.worlds:
        coverage = Coverage(level, found.worlds[world], 100, type(Coverage(level, (8,)).counts)())
        coverage.counts.update({kind.name: 50 for kind in CLASSES})
        found.tallies[world, "all"] = Tally(world, "all", Profile.CORE, SHOWN, coverage, floors=True, scripts=60)
    found.layouts = {"sim": {b"a", b"b"}, "gloo": {b"c"}}
    return found


def words(found: Result, *ids: str) -> list[str]:
    verdicts = {verdict.requirement.id: verdict.verdict for verdict in found.verdicts}
    return [verdicts[id_] for id_ in ids]


def test_a_good_run_is_certified_in_the_fixed_form() -> None:
    found = result()
    assert found.problems == []
    assert found.exit_code == 0
    assert found.line == "certified: thing 1.2 core L3 over 3 layouts (sim 2, gloo 1), 0 failures"
    planned = next(entry.id for entry in requirements() if entry.profile and entry.planned)
    assert words(found, "RS-LAYOUT-1", planned, "RS-BATCH-1") == ["passed", "planned", "not claimed"]


def test_a_property_answers_for_the_classes_of_its_profile() -> None:
    """Of core's where the profile has none; those of other profiles have no say."""
    coverage = Coverage(Level.L3, (8,), 100)
    coverage.counts.update({kind.name: 50 for kind in CLASSES if kind.profile is Profile.STRIDED})
    shown = {"RS-LAYOUT-12": ("a strided dim cut again",)}
    tallies = [Tally("sim", "all", profile, shown, coverage, floors=True, scripts=60) for profile in Profile]
    under = {tally.profile for tally in tallies if tally.floor_faults}
    assert under == set(Profile) - {Profile.STRIDED}
    assert [tally.profile for tally in tallies if tally.shows("RS-LAYOUT-12")] == [Profile.STRIDED]


def test_profiles_are_named_in_their_order() -> None:
    found = result(Profile.CORE, Profile.BATCH, claimed=(Profile.CORE, Profile.BATCH))
    batch = {entry.id: () for entry in requirements() if entry.profile is Profile.BATCH and not entry.planned}
    for world in ("sim", "gloo"):
        found.tallies[world, "b"] = Tally(world, "b", Profile.BATCH, batch, Coverage(Level.L3, (8,)), scripts=1)
    assert found.line.startswith("certified: thing 1.2 core L3, batch over")


def test_a_level_below_core_does_not_earn_core() -> None:
    assert result(level=Level.L1).badge == "level L1"


def test_a_failure_stands_against_a_certificate() -> None:
    found = result()
    found.failures.append(FAILURE)
    assert found.exit_code == 1
    assert found.line == "not certified: thing 1.2: 1 failure"
    assert words(found, "RS-EXACT-1") == ["failed"]


def test_refusals_of_what_is_claimed_are_counted_apart() -> None:
    found = result()
    found.failures += [FAILURE, replace(FAILURE, verdict="unsupported", prop="other")]
    assert found.line.endswith(": 2 failures (1 unsupported)")


def test_a_waived_failure_does_not_and_is_named() -> None:
    found = result()
    found.failures.append(replace(FAILURE, waiver=WAIVER))
    assert found.exit_code == 0
    assert found.line.endswith(", 0 failures, 1 waived")
    assert words(found, "RS-EXACT-1") == ["waived"]


def test_a_failure_against_a_should_only_does_not_either() -> None:
    found = result()
    found.failures.append(replace(FAILURE, advisory=True))
    assert found.exit_code == 0
    assert words(found, "RS-EXACT-1") == ["failed"]


def test_a_failure_speaks_only_of_requirements_whose_classes_it_has() -> None:
    found = result()
    for tally in found.tallies.values():
        tally.requirements = {**SHOWN, "RS-LAYOUT-3": ("idle ranks",), "RS-LAYOUT-7": ("an empty shard",)}
    found.failures.append(replace(FAILURE, classes=frozenset({"idle ranks"})))
    assert words(found, "RS-LAYOUT-3", "RS-LAYOUT-7", "RS-EXACT-1") == ["failed", "passed", "failed"]


def test_a_class_under_its_floor_stands_against_a_certificate() -> None:
    found = result()
    found.tallies["gloo", "all"].coverage.counts["idle ranks"] = 9
    assert found.problems == ["gloo drew 9.0% of class 'idle ranks', under its floor 10%"]


def test_floors_hold_only_where_they_are_asked_for() -> None:
    found = result()
    found.tallies["gloo", "all"].floors = False
    found.tallies["gloo", "all"].coverage.counts["idle ranks"] = 9
    assert found.problems == []


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda found: found.tallies.clear(), "sim, gloo: none of these worlds shows any of the profiles"),
        (lambda found: setattr(found.tallies["gloo", "all"], "scripts", 0), "core: nothing was run in gloo"),
        (lambda found: setattr(found, "profiles", ()), "no profile is claimed"),
        (lambda found: setattr(found, "stopped", True), "stopped early"),
    ],
)
def test_what_was_not_run_is_not_certified(spoil: object, problem: str) -> None:
    found = result()
    spoil(found)  # type: ignore[operator]
    assert problem in found.problems
    assert found.exit_code == 1


def test_a_requirement_that_no_property_of_these_worlds_shows_is_told_apart() -> None:
    found = result()
    for tally in found.tallies.values():
        tally.requirements = {id_: needed for id_, needed in SHOWN.items() if id_ != "RS-EXACT-4"}
    assert words(found, "RS-EXACT-4") == ["not shown here"]


def test_a_profile_that_these_worlds_cannot_show_is_not_in_the_certificate() -> None:
    found = result(Profile.CORE, Profile.BATCH, claimed=(Profile.CORE, Profile.BATCH))
    assert found.line.startswith("certified: thing 1.2 core L3 over")


def test_a_requirement_that_is_admitted_but_not_drawn_is_not_certified() -> None:
    found = result()
    for tally in found.tallies.values():
        tally.requirements = {**SHOWN, "RS-LAYOUT-3": ("idle ranks",)}
        tally.floors = False
        tally.coverage.counts["idle ranks"] = 0
    assert words(found, "RS-LAYOUT-3") == ["not run"]
    assert found.problems == ["RS-LAYOUT-3: not run"]


def test_what_level_or_worlds_do_not_admit_is_out_of_reach() -> None:
    found = result(level=Level.L1)
    for tally in found.tallies.values():
        tally.requirements = {**SHOWN, "RS-LAYOUT-7": ("an empty shard",)}
    assert words(found, "RS-LAYOUT-7") == ["out of reach"]
    for tally in found.tallies.values():
        tally.reached = False
    assert words(found, "RS-EXACT-1") == ["out of reach"]


def test_a_case_file_is_named_after_what_is_in_it() -> None:
    one, several = FAILURE, replace(FAILURE, script=('{"a": 1}', '{"b": 2}'))
    assert re.fullmatch(r"[0-9a-f]{12}\.json", one.file)
    assert re.fullmatch(r"seq_[0-9a-f]{12}\.jsonl", several.file)
    assert one.file == replace(FAILURE, seed=9, fresh=True).file
    assert one.file != replace(FAILURE, script=('{"a": 2}',)).file


def test_failures_of_one_kind_differ_in_numbers_only() -> None:
    assert FAILURE.kind == replace(FAILURE, faults=("rank 0: 12 of 40 differ",), seed=1).kind
    texts = (
        "ranks 0, 2: 1 differs, first at (0, 1): bytes fe, expected 0a",
        "rank 1: 1 differs, first at (3,): bytes e1, expected ff",
    )
    assert len({replace(FAILURE, faults=(text,)).kind for text in texts}) == 1
    texts = ("rank 0: deadlock: rank 0 waits for a", "ranks 0, 1: deadlock: rank 0 waits for a, rank 1 waits for a")
    assert len({replace(FAILURE, faults=(text,)).kind for text in texts}) == 1
    assert FAILURE.kind != replace(FAILURE, faults=("rank 0: deadlock",)).kind
    assert FAILURE.kind != replace(FAILURE, prop="other").kind
