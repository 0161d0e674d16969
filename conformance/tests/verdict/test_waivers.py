"""Waivers: what they excuse, until when, and files that are none."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from reshard_conformance.verdict.waivers import Waiver, WaiverError, load_waivers

GOOD = """
[[waiver]]
requirement = "RS-EXACT-2"
fault = "complex32"
bug = "https://github.com/pytorch/pytorch/issues/1"
expires = 2030-01-31
reason = "the op is missing"
"""
TODAY = date(2030, 1, 31)


def written(folder: Path, text: str) -> Path:
    path = folder / "waivers.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_waiver_excuses_a_matching_fault_until_it_expires(tmp_path: Path) -> None:
    (waiver,) = load_waivers(written(tmp_path, GOOD))
    shown = frozenset({"RS-EXACT-2", "RS-EXACT-1"})
    assert waiver.excuses(shown, "rank 0: no kernel for complex32", TODAY)
    assert not waiver.excuses(shown, "rank 0: no kernel for int8", TODAY)
    assert not waiver.excuses(frozenset({"RS-EXACT-1"}), "complex32", TODAY)
    assert not waiver.excuses(shown, "complex32", date(2030, 2, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"RS-EXACT-2"', '"RS-EXACT-99"', "waiver 1, requirement: expected an id of the index"),
        ('"https://github.com/pytorch/pytorch/issues/1"', '"a bug"', "waiver 1, bug: expected the public address"),
        ("2030-01-31", '"soon"', "waiver 1, expires: expected a date"),
        ("2030-01-31", "2030-01-31T10:00:00", "waiver 1, expires: expected a date"),
        ('"the op is missing"', '" "', "waiver 1, reason: expected one sentence"),
        ('"complex32"', '"("', "waiver 1, fault: expected a regular expression"),
        ("reason =", "because =", "waiver 1: expected the keys bug, expires, fault, reason, requirement"),
        ("[[waiver]]", "[waiver]", "expected tables"),
        ("[[waiver]]", "[[waiver", "expected a readable TOML file"),
    ],
)
def test_a_file_that_is_no_list_of_waivers_says_what_was_expected(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(WaiverError, match=r"waivers\.toml") as caught:
        load_waivers(written(tmp_path, GOOD.replace(old, new)))
    assert message in str(caught.value)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WaiverError, match=r"nowhere\.toml: expected a readable TOML file"):
        load_waivers(tmp_path / "nowhere.toml")


def test_a_waiver_refuses_bad_values_at_birth() -> None:
    with pytest.raises(WaiverError, match="bug"):
        Waiver("RS-EXACT-2", "", "ftp://x", TODAY, "why")
