"""The index of requirements: those of docs/spec, as data."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from reshard_conformance.contract import Profile

__all__ = ["Requirement", "requirements"]


@dataclass(frozen=True)
class Requirement:
    """One requirement of the specification.

    strength: "MUST" or "SHOULD". profile: whose properties show it; None where only restripe's own tests do.
    status: "tested", or "planned" while no test shows it.
    """

    id: str
    strength: str
    profile: Profile | None
    chapter: str
    title: str
    status: str

    def __post_init__(self) -> None:
        if self.strength not in {"MUST", "SHOULD"} or self.status not in {"tested", "planned"}:
            raise ValueError(
                f"{self.id}: expected MUST or SHOULD, tested or planned, got {self.strength}, {self.status}"
            )
        if not self.id.startswith(f"RS-{self.chapter}-"):
            raise ValueError(f"{self.id}: expected an id RS-{self.chapter}-<number>")

    @property
    def planned(self) -> bool:
        """True while no test shows it."""
        return self.status == "planned"


@cache
def requirements() -> tuple[Requirement, ...]:
    """Return all requirements in the order of the index."""
    text = resources.files("reshard_conformance").joinpath("data", "requirements.toml").read_text(encoding="utf-8")
    return tuple(
        Requirement(**{**entry, "profile": Profile(entry["profile"]) if entry["profile"] else None})
        for entry in tomllib.loads(text)["requirement"]
    )
