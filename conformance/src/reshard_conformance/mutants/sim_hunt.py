"""All mutants that world sim can kill, and the hunt for one: each has a fault that real implementations have had.

Faults that only CUDA streams show are in device_hunt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from reshard_conformance.contract import Level, Profile
from reshard_conformance.mutants import caches, data, errors, layouts
from reshard_conformance.mutants.plain import Plain
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.run.plan import WORLD_SIZES, Chunk, plan_chunks
from reshard_conformance.run.workers import ChunkPlayer
from reshard_conformance.verdict.results import Failure

__all__ = ["MUTANTS", "Kill", "hunt"]

MUTANTS: dict[str, type[Plain]] = {
    kind.name: kind
    for module in (data, layouts, errors, caches)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Plain) and kind is not Plain
}


@dataclass(frozen=True)
class Kill:
    """The result of hunting a mutant: the failure that killed it, or None, and the number of scripts played."""

    failure: Failure | None
    scripts: int

    @property
    def shown_requirements(self) -> frozenset[str]:
        """The requirements that the failed property shows."""
        return frozenset() if self.failure is None else frozenset(PROPERTIES[self.failure.prop].requirements)


def hunt(kind: type[Plain]) -> Kill:
    """Play the fixed part of a quick run in sim until something fails, beginning with properties that show `kind.breaks`."""
    scripts = 0
    with closing(ChunkPlayer(kind(), Level.L3, kind)) as player:
        for chunk in ordered_chunks(kind.breaks):
            part = player.play(chunk)
            scripts += part.scripts
            if part.failure is not None and not part.failure.advisory:
                return Kill(part.failure, scripts)
    return Kill(None, scripts)


def ordered_chunks(requirement: str) -> Iterator[Chunk]:
    """Yield the chunks of the fixed part: those that show the requirement, then all others, alternating properties."""
    chunks = [
        chunk
        for chunk in plan_chunks({"sim": WORLD_SIZES["sim"]}, tuple(Profile), Level.L3, "quick", 0)
        if not chunk.fresh
    ]
    yield from sorted(chunks, key=lambda chunk: (requirement not in PROPERTIES[chunk.prop].requirements, chunk.seed))
