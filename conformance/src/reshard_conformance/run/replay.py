"""Replays case files: packaged_files ones, reported ones, and those that a run has written for its failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from reshard_conformance import registry
from reshard_conformance.case.files import Batch, Case, Clear, Step, StreamScenario, dump, load, packaged_files
from reshard_conformance.contract import Implementation, Profile
from reshard_conformance.judge.outcomes import Outcome
from reshard_conformance.worlds import World

__all__ = ["NoCasesError", "Replayed", "find_scripts", "needed_profiles", "replay_cases"]

#: The folder of the packaged_files case files.
PACKAGED_FOLDER = Path(str(resources.files("reshard_conformance"))) / "data" / "cases"
#: Placements that need a profile, by the beginning of their text.
PLACEMENT_PROFILES = {"SS(": Profile.STRIDED, "SG(": Profile.SEGMENTED}


class NoCasesError(ValueError):
    """There is no case to replay; says where case files were looked for."""


@dataclass(frozen=True)
class Replayed:
    """One step of a file. outcome: None when it was not played, since the `missing` profiles are not claimed."""

    path: Path
    step: Step
    outcome: Outcome | None
    missing: tuple[Profile, ...] = ()

    @property
    def name(self) -> str:
        """The case's name, or the step's line in the file."""
        return (isinstance(self.step, Case) and self.step.name) or dump(self.step)


def replay_cases(
    implementation: str | Implementation, world: World, paths: Iterable[Path | str] | None = None
) -> Iterator[Replayed]:
    """Play the files (the packaged_files ones when None) in the world, one session per script, and yield each step's outcome.

    A script that needs a profile that is not claimed is not played. Raises CaseError for a file that holds no cases,
    and NoCasesError where there is none at all.
    """
    loaded = registry.load(implementation) if isinstance(implementation, str) else implementation
    for path, script in find_scripts(paths):
        missing = tuple(sorted(set(needed_profiles(script)) - loaded.claims.profiles))
        if missing:
            yield from (Replayed(path, step, None, missing) for step in script)
        else:
            yield from play_script(path, script, implementation, world)


def find_scripts(paths: Iterable[Path | str] | None = None) -> list[tuple[Path, tuple[Step, ...]]]:
    """Return the scripts of the files (the packaged_files ones when None), each with its file.

    Raises CaseError for a file that cannot be read, and NoCasesError where no script was found.
    """
    files = [Path(path) for path in (packaged_files() if paths is None else paths)]
    scripts = [(path, script) for path in files for script in load(path)]
    if not scripts:
        where = ", ".join(map(str, files)) or (str(PACKAGED_FOLDER) if paths is None else "an empty list of files")
        raise NoCasesError(f"no case to replay: looked in {where}; name a .json or .jsonl file that holds a case")
    return scripts


def play_script(
    path: Path, script: tuple[Step, ...], implementation: str | Implementation, world: World
) -> Iterator[Replayed]:
    """Play a script in one session; traced where a step must be refused."""
    cases = [case for step in script for case in step.cases]
    traced = any(case.expect != "equal" for case in cases)
    with world.open(cases[0].world_size, implementation, traced=traced) as session:
        for step in script:
            yield Replayed(path, step, session.play(step))


def needed_profiles(script: Iterable[Step]) -> Iterator[Profile]:
    """Yield the profiles other than core that an implementation must claim to play a script."""
    for step in script:
        if isinstance(step, Batch):
            yield Profile.BATCH
        if isinstance(step, StreamScenario):
            yield Profile.STREAMS
        if isinstance(step, Clear) and step.ranks is not None:
            yield Profile.AGREEMENT
        for case in step.cases:
            if case.fault is not None or case.expect == "error:agreement":
                yield Profile.AGREEMENT
            for text in case.src.placements + case.dst.placements:
                yield from (profile for start, profile in PLACEMENT_PROFILES.items() if text.startswith(start))
