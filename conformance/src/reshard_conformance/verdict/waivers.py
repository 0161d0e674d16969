"""Waivers: they excuse failures that a public bug of another project explains, for a limited time."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from reshard_conformance.verdict.requirements import requirements

__all__ = ["Waiver", "WaiverError", "load_waivers"]

KEYS = {"requirement", "fault", "bug", "expires", "reason"}


class WaiverError(ValueError):
    """A waiver file that cannot be used; names the file, the entry and what was expected."""


@dataclass(frozen=True)
class Waiver:
    """Excuses failures of properties that show `requirement` and whose first fault matches the pattern `fault`.

    bug: the public address of the bug. expires: the last day on which it holds. reason: one sentence.
    """

    requirement: str
    fault: str
    bug: str
    expires: date
    reason: str

    def __post_init__(self) -> None:
        if self.requirement not in {entry.id for entry in requirements()}:
            raise WaiverError(f"requirement: expected an id of the index, got {self.requirement!r}")
        if not re.fullmatch(r"https?://\S+", self.bug):
            raise WaiverError(f"bug: expected the public address of a bug, got {self.bug!r}")
        if type(self.expires) is not date:
            raise WaiverError(f"expires: expected a date such as 2030-01-31, got {self.expires!r}")
        if not self.reason.strip():
            raise WaiverError("reason: expected one sentence, got nothing")
        try:
            re.compile(self.fault)
        except re.error as error:
            raise WaiverError(f"fault: expected a regular expression ({error}), got {self.fault!r}") from None

    def excuses(self, shown: frozenset[str], fault: str, today: date) -> bool:
        """Return True if it holds today for a failure with this first fault, of a property that shows these requirements."""
        return self.requirement in shown and today <= self.expires and re.search(self.fault, fault) is not None


def load_waivers(path: Path) -> tuple[Waiver, ...]:
    """Read `[[waiver]]` tables; WaiverError when the file is not a list of waivers."""
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("waiver")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise WaiverError(f"{path.name}: expected a readable TOML file ({error})") from None
    if not isinstance(entries, list):
        raise WaiverError(f"{path.name}: expected tables [[waiver]], got none")
    return tuple(read(path.name, number, entry) for number, entry in enumerate(entries, 1))


def read(name: str, number: int, entry: object) -> Waiver:
    if not isinstance(entry, dict) or set(entry) != KEYS:
        raise WaiverError(f"{name}, waiver {number}: expected the keys {', '.join(sorted(KEYS))}, got {entry!r}")
    try:
        return Waiver(**entry)
    except WaiverError as error:
        raise WaiverError(f"{name}, waiver {number}, {error}") from None
