"""The index of requirements, held against the specification, the properties of the suite, and the tests."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest

from reshard_conformance import SPECIFICATION
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.verdict.requirements import Requirement, requirements

ROOT = Path(__file__).parents[3]
SPEC = ROOT / "docs" / "spec"
TESTS = [ROOT / folder / "tests" for folder in ("packages/restripe", "golden", "conformance")]
MARK = re.compile(r"mark\.requirement\(([^)]*)\)")
HEADING = re.compile(
    r"^### (RS-[A-Z]+-\d+) (.+)$\n+^\*(MUST|SHOULD), (?:profile (\w+)|(restripe) only)(, planned)?\.\*$", re.MULTILINE
)
IDS = {entry.id: entry for entry in requirements()}


def cited_by_tests() -> set[str]:
    texts = [path.read_text(encoding="utf-8") for folder in TESTS for path in folder.rglob("*.py")]
    return {id_ for text in texts for mark in MARK.findall(text) for id_ in re.findall(r"RS-[A-Z]+-\d+", mark)}


def cited_by_properties() -> set[str]:
    return {id_ for prop in PROPERTIES.values() for id_ in prop.requirements}


def test_ids_are_given_once_and_counted_without_gaps() -> None:
    assert len(IDS) == len(requirements())
    chapters = Counter(entry.chapter for entry in requirements())
    assert set(IDS) == {f"RS-{name}-{n}" for name, number in chapters.items() for n in range(1, number + 1)}


@pytest.mark.skipif(not SPEC.is_dir(), reason="the specification is in the repository, not in the sdist")
def test_the_specification_says_the_same_of_each_requirement() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(SPEC.glob("*.md")))
    found = {match[1]: match for match in HEADING.finditer(text)}
    assert set(re.findall(r"^### (RS-[A-Z]+-\d+)", text, re.MULTILINE)) == set(IDS)
    for id_, entry in IDS.items():
        match = found[id_]
        assert (match[2], match[3]) == (entry.title, entry.strength), id_
        assert match[4] == (entry.profile and entry.profile.value), id_
        assert bool(match[6]) == entry.planned, id_


def test_the_index_has_the_version_of_the_specification() -> None:
    text = resources.files("reshard_conformance").joinpath("data", "requirements.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["specification"] == SPECIFICATION


def test_whatever_is_cited_is_in_the_index() -> None:
    assert cited_by_properties() <= set(IDS)
    assert cited_by_tests() <= set(IDS)


def test_a_property_shows_requirements_of_its_own_profile() -> None:
    for prop in PROPERTIES.values():
        assert prop.requirements, prop.name
        for id_ in prop.requirements:
            assert IDS[id_].profile is prop.profile, (prop.name, id_)
            assert not IDS[id_].planned, (prop.name, id_)


def test_every_tested_requirement_of_a_profile_is_shown_by_the_suite() -> None:
    expected = {id_ for id_, entry in IDS.items() if entry.profile and not entry.planned}
    assert expected - cited_by_properties() == set()


def test_every_other_tested_requirement_is_shown_by_a_test_that_says_so() -> None:
    expected = {id_ for id_, entry in IDS.items() if entry.profile is None and not entry.planned}
    assert expected - cited_by_tests() == set()


@pytest.mark.parametrize(
    ("field", "value"), [("strength", "MAY"), ("status", "done"), ("id", "RS-LAYOUTS-1"), ("chapter", "EXACT")]
)
def test_a_requirement_refuses_bad_values_at_birth(field: str, value: str) -> None:
    fields = {**vars(requirements()[0]), field: value}
    with pytest.raises(ValueError, match="expected"):
        Requirement(**fields)
