"""Profile core: every parameter class of real models, moved as real trainers and generators hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reshard_conformance.contract import Level, Profile
from reshard_conformance.coverage import level
from reshard_conformance.models import MAPPINGS, cases
from reshard_conformance.search import Bench, Property, Script

__all__ = ["PROPERTIES"]


@dataclass(frozen=True)
class Mapped:
    """Nothing is drawn: the seed names one of the mappings, whatever the world sizes that a run draws from."""

    name: str = "models"
    profile: Profile = Profile.CORE
    requirements: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            "RS-EXACT-1": (),
            "RS-EXACT-6": ("destination replicated",),
            "RS-LAYOUT-3": ("idle ranks",),
        }
    )
    steered: bool = False
    traced: bool = False
    least: Level = Level.L0

    def search(self, bench: Bench, number: int, examples: int, wanted: Sequence[str]) -> None:
        """Play each case of the mapping that the claimed level of core holds."""
        del examples, wanted
        for case in cases(MAPPINGS[number % len(MAPPINGS)]):
            if level(case) <= bench.space.level:
                self.judge(bench, (case,))

    def judge(self, bench: Bench, script: Script) -> object:
        """See `Property`."""
        return bench.play(script)


PROPERTIES: tuple[Property, ...] = (Mapped(),)
