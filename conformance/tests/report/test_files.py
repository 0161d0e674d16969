"""Reports: what is in them, and that a changed one is found out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from reshard_conformance import SPECIFICATION, __version__
from reshard_conformance.case.files import Case, Clear, Side, dump, load
from reshard_conformance.contract import Claims, Level, Profile
from reshard_conformance.generate.coverage import CLASSES, Coverage
from reshard_conformance.report.files import FORMAT, replay_command, verify_report, write_failures, write_report
from reshard_conformance.verdict.requirements import requirements
from reshard_conformance.verdict.results import Failure, Result, Tally
from reshard_conformance.verdict.waivers import Waiver

CASE = Case(2, (3,), "int32", Side((0, 1), ("S(0)",)), Side((1, 0), ("R",)))
SHOWN = {entry.id: () for entry in requirements() if entry.profile is Profile.CORE and not entry.planned}
SCRIPT = (dump(CASE), dump(Clear()))
FAILURE = Failure("sim", "exact", Profile.CORE, "fail", ("rank 0: <7> differ",), SCRIPT, 4, False, True)


def result(*failures: Failure) -> Result:
    coverage = Coverage(Level.L3, (8,), 200)
    coverage.counts.update({kind.name: 100 for kind in CLASSES})
    tally = Tally("sim", "exact", Profile.CORE, SHOWN, coverage, floors=True, scripts=60, failed=len(failures))
    claims = Claims(Level.L3, frozenset({Profile.CORE, Profile.BATCH}))
    found = Result("thing", "1.2", claims, (Profile.CORE,), {"sim": (1, 8)}, "quick", 77)
    found.tallies, found.layouts, found.fresh = {("sim", "exact"): tally}, {"sim": {b"a", b"b"}}, {"sim": {b"c"}}
    found.dtypes = {"sim": {"float32", "bool"}}
    found.failures, found.seconds = list(failures), 12.345
    return found


def read(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return content


def test_a_report_says_what_the_ranks_ran_on(tmp_path: Path) -> None:
    found = result()
    found.versions = {
        "nccl": {1: {"torch": "2", "gpu": "b"}, 2: {"torch": "2", "gpu": "a"}, 0: {"torch": "2", "gpu": "a"}}
    }
    write_report(found, tmp_path, "mine:thing")
    told = {key: value for key, value in read(tmp_path)["environment"].items() if key.startswith("nccl ranks")}
    assert told == {"nccl ranks 0, 2": "torch 2, gpu a", "nccl ranks 1": "torch 2, gpu b"}


def test_a_report_says_what_was_claimed_run_and_found(tmp_path: Path) -> None:
    write_report(result(), tmp_path, "mine:thing")
    content = read(tmp_path)
    assert (content["format"], content["specification"]) == (FORMAT, SPECIFICATION)
    assert content["environment"]["reshard-conformance"] == __version__
    assert content["implementation"]["profiles"] == ["batch", "core"]
    world = {"sizes": [1, 8], "layouts": 2, "fresh_layouts": 1, "golden_beside": 0, "dtypes": ["bool", "float32"]}
    assert content["worlds"] == {"sim": world}
    assert content["seed"] == 77
    assert content["line"] == "certified: thing 1.2 core L3 over 2 layouts (sim 2), 0 failures"
    assert content["exit_code"] == 0
    verdicts = {entry["id"]: entry["verdict"] for entry in content["requirements"]}
    assert (verdicts["RS-EXACT-1"], verdicts["RS-BATCH-1"]) == ("passed", "not run")
    core = [kind.name for kind in CLASSES if kind.profile is Profile.CORE]
    assert [row["class"] for row in content["properties"][0]["coverage"]] == core
    assert verify_report(tmp_path) == []


def test_the_page_stands_alone_and_escapes(tmp_path: Path) -> None:
    write_report(result(FAILURE), tmp_path, "mine:thing")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "rank 0: &lt;7&gt; differ" in page
    assert "not certified: thing 1.2: 1 failure" in page
    assert "RS-LAYOUT-5" in page
    assert "an empty shard" in page
    assert "replay" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page
    assert "<link" not in page


def test_the_badge_names_level_profiles_and_specification(tmp_path: Path) -> None:
    write_report(result(), tmp_path, "x")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert f"reshard specification {SPECIFICATION}: core L3" in page


def test_junit_counts_what_it_holds(tmp_path: Path) -> None:
    write_report(result(FAILURE), tmp_path, "x")
    suite = ET.parse(tmp_path / "junit.xml").getroot()  # noqa: S314 - written by us just now
    assert suite.tag == "testsuite"
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases)
    exact = next(case for case in cases if case.attrib["name"] == "exact")
    failure = exact.find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "rank 0: <7> differ"
    assert FAILURE.file in str(failure.text)
    assert int(suite.attrib["failures"]) == len(list(suite.iter("failure")))


def test_failing_cases_are_files_that_are_read_back(tmp_path: Path) -> None:
    write_report(result(FAILURE), tmp_path, "x")
    assert load(tmp_path / FAILURE.file) == [(CASE, Clear())]
    assert verify_report(tmp_path) == []
    assert read(tmp_path)["exit_code"] == 1


def test_failing_cases_alone_can_be_written(tmp_path: Path) -> None:
    write_failures([FAILURE], tmp_path / "new" / "folder")
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [FAILURE.file]


def test_the_replay_command_names_file_implementation_world_and_property() -> None:
    command = replay_command("there.json", "a.b:c", {"world": "gloo", "property": "traffic"})
    expected = "reshard-conformance replay there.json --implementation a.b:c --world gloo --property traffic"
    assert command == expected


def test_a_waived_failure_is_shown_with_its_bug(tmp_path: Path) -> None:
    waiver = Waiver("RS-EXACT-1", "differ", "https://example.org/bug/1", date(2999, 1, 1), "theirs")
    write_report(result(replace(FAILURE, waiver=waiver)), tmp_path, "x")
    assert verify_report(tmp_path) == []
    assert read(tmp_path)["exit_code"] == 0
    assert "https://example.org/bug/1" in (tmp_path / "index.html").read_text(encoding="utf-8")


def edit(folder: Path, change: Callable[[dict[str, Any]], object], *, resign: bool) -> None:
    from reshard_conformance.report.files import report_digest

    content = read(folder)
    change(content)
    if resign:
        content["digest"] = report_digest(content)
    (folder / "report.json").write_text(json.dumps(content), encoding="utf-8")


def failing(content: dict[str, Any]) -> None:
    content["requirements"][0]["verdict"] = "failed"


@pytest.mark.parametrize(
    ("change", "resign", "fault"),
    [
        (lambda content: content.update(exit_code=1), False, "its digest does not fit its content"),
        (lambda content: content.update(exit_code=1), True, "do not say the same"),
        (lambda content: content.update(line="certified?"), True, "do not say the same"),
        (lambda content: content.update(format=9), True, "expected a report of format 1"),
        (lambda content: content.pop("seed"), True, "differing in seed"),
        (lambda content: content.update(more=1), True, "differing in more"),
        (failing, True, "requirement RS-LAYOUT-1"),
        (lambda content: content["properties"][0]["coverage"][0].update(share=0.1), True, "coverage of uneven"),
        (lambda content: content["properties"][0].update(scripts=0), True, "core in sim was not run"),
        (lambda content: content.update(stopped=True), True, "it stopped early"),
        (lambda content: content.update(profiles=[]), True, "nothing was run"),
        (lambda content: content["files"].pop("junit.xml"), True, "files: expected index.html, junit.xml"),
    ],
)
def test_a_changed_report_is_found_out(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], resign: bool, fault: str
) -> None:
    write_report(result(), tmp_path, "x")
    edit(tmp_path, change, resign=resign)
    assert fault in "; ".join(verify_report(tmp_path))


def test_missing_and_changed_files_are_found_out(tmp_path: Path) -> None:
    write_report(result(FAILURE), tmp_path, "x")
    (tmp_path / "junit.xml").unlink()
    (tmp_path / FAILURE.file).write_text("{}", encoding="utf-8")
    faults = verify_report(tmp_path)
    assert len(faults) == 3
    assert "junit.xml: is missing" in faults[0]
    assert f"{FAILURE.file}: was changed" in faults[1]
    assert "field 'format'" in faults[2]  # and no case any more


@pytest.mark.parametrize("text", [None, "[1]", "{", "{}"])
def test_what_is_no_report_is_one_sentence(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "report.json").write_text(text, encoding="utf-8")
    (fault,) = verify_report(tmp_path)
    assert "expected a re" in fault
