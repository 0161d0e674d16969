"""Plays case files again: packaged ones, reported ones, and those that a fuzzing run left behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reshard_conformance import registry
from reshard_conformance.cases import Batch, Case, Clear, Flow, Step, dump, load, packaged
from reshard_conformance.contract import Implementation, Profile
from reshard_conformance.playing import Outcome, cases_of
from reshard_conformance.worlds import World

__all__ = ["Replayed", "needs", "replay"]

#: How the placements begin that take a profile.
KINDS = {"SS(": Profile.STRIDED, "SG(": Profile.SEGMENTED}


@dataclass(frozen=True)
class Replayed:
    """One step of a file. outcome: None when it was not played, because `missing` profiles are not claimed."""

    path: Path
    step: Step
    outcome: Outcome | None
    missing: tuple[Profile, ...] = ()

    @property
    def name(self) -> str:
        """The case's name, or what stands in the file."""
        return (isinstance(self.step, Case) and self.step.name) or dump(self.step)


def replay(
    implementation: str | Implementation, world: World, paths: Iterable[Path | str] | None = None
) -> Iterator[Replayed]:
    """Play the files (the packaged ones when None) in the world, one session a script, and give each step's outcome.

    A script that needs a profile that is not claimed is not played. Raises CaseError for a file that is none.
    """
    found = registry.load(implementation) if isinstance(implementation, str) else implementation
    for path in packaged() if paths is None else paths:
        for script in load(path):
            missing = tuple(sorted(set(needs(script)) - found.claims.profiles))
            if missing:
                yield from (Replayed(Path(path), step, None, missing) for step in script)
            else:
                yield from play(Path(path), script, implementation, world)


def play(
    path: Path, script: tuple[Step, ...], implementation: str | Implementation, world: World
) -> Iterator[Replayed]:
    """Play a script in one session; the trace is needed where a step has to be refused."""
    cases = [case for step in script for case in cases_of(step)]
    traced = any(case.expect != "equal" for case in cases)
    with world.open(cases[0].world_size, implementation, traced=traced) as session:
        for step in script:
            yield Replayed(path, step, session.play(step))


def needs(script: Iterable[Step]) -> Iterator[Profile]:
    """The profiles beside core that an implementation has to claim for a script."""
    for step in script:
        if isinstance(step, Batch):
            yield Profile.BATCH
        if isinstance(step, Flow):
            yield Profile.STREAMS
        if isinstance(step, Clear) and step.ranks is not None:
            yield Profile.AGREEMENT
        for case in cases_of(step):
            if case.fault is not None or case.expect == "error:agreement":
                yield Profile.AGREEMENT
            for text in case.src.placements + case.dst.placements:
                yield from (profile for start, profile in KINDS.items() if text.startswith(start))
