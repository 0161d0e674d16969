"""Profile core: every parameter class of real models, in the layouts of real trainers and generators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reshard_conformance.case.models import MAPPINGS, mapping_cases
from reshard_conformance.contract import Level, Profile
from reshard_conformance.generate.coverage import case_level
from reshard_conformance.search.bench import Bench, Property, Script

__all__ = ["PROPERTIES"]


@dataclass(frozen=True)
class Mapped:
    """The mappings of models; the seed selects one, and its world sizes are used whatever a run draws from."""

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
        """Play each case of the mapping that is within the claimed level of core."""
        del examples, wanted
        for case in mapping_cases(MAPPINGS[number % len(MAPPINGS)]):
            if case_level(case) <= bench.space.level:
                self.judge(bench, (case,))

    def judge(self, bench: Bench, script: Script) -> object:
        """See `Property`."""
        return bench.play(script)


PROPERTIES: tuple[Property, ...] = (Mapped(),)
