"""All mutants, and the hunt for one: faults that people really make, each to be killed by the suite.

Those that only show on CUDA streams are not among them: a wrong stream, and staging that an allocator reuses too early.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from reshard_conformance.contract import Level, Profile
from reshard_conformance.mutants import keeping, moving, placing, refusing
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.plan import SIZES, Chunk, plan
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.results import Failure
from reshard_conformance.workers import Stage

__all__ = ["MUTANTS", "Kill", "hunt"]

MUTANTS: dict[str, type[Plain]] = {
    kind.name: kind
    for module in (moving, placing, refusing, keeping)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Plain) and kind is not Plain
}


@dataclass(frozen=True)
class Kill:
    """How the hunt for an implementation ended: the failure that was found, or None, after so many scripts."""

    failure: Failure | None
    scripts: int

    @property
    def aimed(self) -> frozenset[str]:
        """The requirements that the property which failed is to show."""
        return frozenset() if self.failure is None else frozenset(PROPERTIES[self.failure.prop].requirements)


def hunt(kind: type[Plain]) -> Kill:
    """Play the fixed part of a quick run on sim until something fails, the properties that show `kind.breaks` first."""
    scripts = 0
    with closing(Stage(kind(), Level.L3, kind)) as stage:
        for chunk in order(kind.breaks):
            part = stage.play(chunk)
            scripts += part.scripts
            if part.failure is not None and not part.failure.advisory:
                return Kill(part.failure, scripts)
    return Kill(None, scripts)


def order(requirement: str) -> Iterator[Chunk]:
    """The chunks of the fixed part: those that show the requirement, then all others, from every property in turn."""
    chunks = [chunk for chunk in plan({"sim": SIZES["sim"]}, tuple(Profile), Level.L3, "quick", 0) if not chunk.fresh]
    yield from sorted(chunks, key=lambda chunk: (requirement not in PROPERTIES[chunk.prop].requirements, chunk.seed))
