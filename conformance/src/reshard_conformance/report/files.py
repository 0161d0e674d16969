"""Writes a run as report.json, junit.xml, index.html and one case file per failure; verifies such a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from reshard_conformance import SPECIFICATION
from reshard_conformance.case.files import CaseError, load
from reshard_conformance.report.environment import environment
from reshard_conformance.report.templates import render_template
from reshard_conformance.verdict.results import Failure, Result, Tally

__all__ = ["FORMAT", "failure_json", "replay_command", "verify_report", "write_failures", "write_report"]

#: The version of report.json.
FORMAT = 1
KEYS = {
    *("format", "specification", "implementation", "profiles", "effort", "worlds", "seed", "started", "seconds"),
    *("environment", "requirements", "properties", "failures", "stopped", "problems", "badge", "line", "exit_code"),
    *("name", "files", "digest"),
}


def write_report(result: Result, folder: Path, name: str) -> None:
    """Write the whole report into the folder, which is made if it is missing. name: that the user gave the implementation."""
    folder.mkdir(parents=True, exist_ok=True)
    content = report_json(result, name)
    page = render_template("index.html", report=content, command=replay_command, badge=badge_svg(content))
    texts = {"index.html": page, "junit.xml": junit_xml(content), **case_files(result.failures)}
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    content["files"] = {file: sha256(text) for file, text in sorted(texts.items())}
    content["digest"] = report_digest(content)
    (folder / "report.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_failures(failures: list[Failure], folder: Path) -> None:
    """Write only the case files of the failures."""
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in case_files(failures).items():
        (folder / file).write_text(text, encoding="utf-8")


def case_files(failures: list[Failure]) -> dict[str, str]:
    return {failure.file: "".join(line + "\n" for line in failure.script) for failure in failures}


def replay_command(file: str, name: str, failure: Mapping[str, Any]) -> str:
    """Return the command that replays a failing case."""
    return (
        f"reshard-conformance replay {file} --implementation {name} "
        f"--world {failure['world']} --property {failure['property']}"
    )


def report_json(result: Result, name: str) -> dict[str, Any]:
    """Return the report as plain values, without `files` and `digest`."""
    claims = result.claims
    return {
        "format": FORMAT,
        "specification": SPECIFICATION,
        "name": name,
        "implementation": {
            "name": result.implementation,
            "version": result.version,
            "level": claims.level.name,
            "profiles": sorted(profile.value for profile in claims.profiles),
            "worlds": sorted(claims.worlds),
        },
        "profiles": [profile.value for profile in result.profiles],
        "effort": result.effort,
        "worlds": {world: world_json(result, world) for world in result.worlds},
        "seed": result.seed,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(result.seconds, 1),
        "environment": environment() | result.rank_versions,
        "requirements": [
            {
                "id": verdict.requirement.id,
                "strength": verdict.requirement.strength,
                "profile": verdict.requirement.profile and verdict.requirement.profile.value,
                "title": verdict.requirement.title,
                "verdict": verdict.verdict,
                "scripts": verdict.scripts,
            }
            for verdict in result.verdicts
        ],
        "properties": [tally_json(tally) for tally in result.tallies.values()],
        "failures": [failure_json(failure) for failure in result.failures],
        "stopped": result.stopped,
        "problems": result.problems,
        "badge": result.badge,
        "line": result.line,
        "exit_code": result.exit_code,
    }


def badge_svg(content: Mapping[str, Any]) -> str:
    """Return an SVG image that names level, profiles and the version of the specification."""
    good = content["exit_code"] == 0
    subject = f"reshard specification {content['specification']}"
    text = content["badge"] if good else "not certified"
    left, right = (len(words) * 7 + 14 for words in (subject, text))
    return render_template("badge.svg", subject=subject, text=text, left=left, right=right, good=good)


def world_json(result: Result, world: str) -> dict[str, Any]:
    return {
        "sizes": list(result.worlds[world]),
        "layouts": len(result.layouts.get(world, ())),
        "fresh_layouts": len(result.fresh.get(world, ())),
        "golden_beside": len(result.in_lockstep.get(world, ())),
        "dtypes": sorted(result.dtypes.get(world, ())),
    }


def tally_json(tally: Tally) -> dict[str, Any]:
    classes = [
        {"class": kind.name, "cases": tally.coverage.counts[kind.name], "share": share, "floor": kind.floor}
        for kind in tally.classes
        for share in [round(tally.coverage.share(kind), 4)]
    ]
    return {
        "world": tally.world,
        "property": tally.prop,
        "profile": tally.profile.value,
        "requirements": sorted(tally.requirements),
        "scripts": tally.scripts,
        "cases": tally.coverage.total,
        "failed": tally.failed,
        "coverage": classes if tally.floors else [],
    }


def failure_json(failure: Failure) -> dict[str, Any]:
    waiver = failure.waiver
    return {
        "file": failure.file,
        "world": failure.world,
        "property": failure.prop,
        "profile": failure.profile.value,
        "verdict": failure.verdict,
        "faults": list(failure.faults),
        "script": [json.loads(line) for line in failure.script],
        "seed": failure.seed,
        "fresh": failure.fresh,
        "again": failure.again,
        "advisory": failure.advisory,
        "waiver": waiver and {"bug": waiver.bug, "expires": waiver.expires.isoformat(), "reason": waiver.reason},
    }


def junit_xml(content: Mapping[str, Any]) -> str:
    """Return JUnit XML: one test case per property and world, one per requirement."""
    suite = ET.Element("testsuite", name=f"reshard-conformance of {content['implementation']['name']}")
    for prop in content["properties"]:
        case = ET.SubElement(suite, "testcase", classname=f"{prop['world']}.{prop['profile']}", name=prop["property"])
        for failure in content["failures"]:
            if (failure["world"], failure["property"]) == (prop["world"], prop["property"]):
                node = ET.SubElement(
                    case, "skipped" if is_excused(failure) else "failure", message=failure["faults"][0]
                )
                node.text = "\n".join((failure["file"], *failure["faults"]))
    for entry in content["requirements"]:
        case = ET.SubElement(suite, "testcase", classname="requirements", name=f"{entry['id']} {entry['title']}")
        if entry["verdict"] == "failed":
            ET.SubElement(case, "failure", message=entry["title"])
        elif entry["verdict"] != "passed":
            ET.SubElement(case, "skipped", message=entry["verdict"])
    for problem in content["problems"]:
        case = ET.SubElement(suite, "testcase", classname="certificate", name=problem)
        ET.SubElement(case, "failure", message=problem)
    for count, tag in (("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped")):
        suite.set(count, str(len(list(suite.iter(tag)))))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def is_excused(failure: Mapping[str, Any]) -> bool:
    return failure["advisory"] or failure["waiver"] is not None


def verify_report(folder: Path) -> list[str]:
    """Return one sentence for each fault of a report; an empty list for a whole one."""
    path = folder / "report.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        return [f"{path}: expected a readable JSON report ({error})"]
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return [f"{path}: expected a report of format {FORMAT}"]
    if set(content) != KEYS:
        return [
            f"{path}: expected the keys {', '.join(sorted(KEYS))}, differing in {', '.join(sorted(set(content) ^ KEYS))}"
        ]
    if content["digest"] != report_digest(content):
        return [f"{path}: its digest does not fit its content; it was changed after it was written"]
    return [*file_faults(content, folder), *verdict_faults(content)]


def file_faults(content: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the files of the report that are missing, changed, or not cases."""
    faults = []
    expected = {"index.html", "junit.xml", *(failure["file"] for failure in content["failures"])}
    if set(content["files"]) != expected:
        faults.append(f"files: expected {', '.join(sorted(expected))}, got {', '.join(sorted(content['files']))}")
    for file, wanted in content["files"].items():
        path = folder / file
        if not path.is_file():
            faults.append(f"{path}: is missing")
        elif sha256(path.read_text(encoding="utf-8")) != wanted:
            faults.append(f"{path}: was changed after it was written")
    for failure in content["failures"]:
        try:
            load(folder / failure["file"])
        except CaseError as error:
            faults.append(f"{folder / failure['file']}: {error}")
    return faults


def verdict_faults(content: Mapping[str, Any]) -> list[str]:
    """Return the reasons why the verdict does not follow from the report."""
    good = content["exit_code"] == 0
    faults = []
    if good != (not content["problems"]) or good != content["line"].startswith("certified: "):
        faults.append("exit code, problems and last line do not say the same")
    reasons = [f"failure {failure['file']}" for failure in content["failures"] if not is_excused(failure)]
    reasons += [
        f"requirement {entry['id']}"
        for entry in content["requirements"]
        if (entry["strength"], entry["verdict"]) == ("MUST", "failed")
    ]
    reasons += [
        f"coverage of {row['class']} in {prop['world']}"
        for prop in content["properties"]
        for row in prop["coverage"]
        if prop["scripts"] and row["share"] + 5e-5 < row["floor"]
    ]
    planned = {(prop["world"], prop["profile"]) for prop in content["properties"]}
    ran = {(prop["world"], prop["profile"]) for prop in content["properties"] if prop["scripts"]}
    reasons += [f"{p} in {w} was not run" for w, p in sorted(planned - ran)]
    reasons += ["it stopped early"] if content["stopped"] else []
    if good and (reasons or not ran or not content["profiles"]):
        faults.append(f"it certifies in spite of: {', '.join(reasons) or 'nothing was run'}")
    return faults


def report_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all keys but the digest itself, as JSON with sorted keys."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")))


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
