"""Scripts of steps as JSON files (format 1), so that a bug report is a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from reshard_conformance.case.fields import CaseError, NestedInts, unique_fields
from reshard_conformance.case.sides import (
    DTYPES,
    MEMORIES,
    VIEW_DTYPES,
    Fault,
    Placement,
    Side,
    read_placement,
)
from reshard_conformance.case.steps import Batch, Case, Clear, Destroy, Step, StreamScenario, read_step

__all__ = [
    "DTYPES",
    "MEMORIES",
    "VIEW_DTYPES",
    "Batch",
    "Case",
    "CaseError",
    "Clear",
    "Destroy",
    "Fault",
    "NestedInts",
    "Placement",
    "Side",
    "Step",
    "StreamScenario",
    "dump",
    "load",
    "packaged_files",
    "parse",
    "read_placement",
    "save",
]


def parse(text: str, location: str = "") -> Step:
    """Read one step from JSON text; `location` (file and line) goes into the message of a CaseError."""
    try:
        return read_step(json.loads(text, object_pairs_hook=unique_fields))
    except json.JSONDecodeError as error:
        raise CaseError("(whole text)", f"one JSON object ({error})", text[:80], location) from None
    except CaseError as error:
        raise error.with_location(location) from None


def load(path: Path | str) -> list[tuple[Step, ...]]:
    """Read the scripts of a case file; each is to be played in order on one set of ranks with caches kept.

    A .json file and each line of a .jsonl file is a script of one step; a .jsonl file named seq_* is one script.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError("(whole file)", f"a readable UTF-8 text ({error})", path.name, path.name) from None
    if path.suffix != ".jsonl":
        return [check_script((parse(text, path.name),), [path.name])]
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    locations = [f"{path.name}, line {number}" for number, _ in lines]
    steps = [parse(line, location) for (_, line), location in zip(lines, locations, strict=True)]
    if path.name.startswith("seq_"):
        return [check_script(tuple(steps), locations or [path.name])]
    return [check_script((step,), [location]) for step, location in zip(steps, locations, strict=True)]


def dump(step: Step) -> str:
    """Return the step as one line of JSON text, which `parse` reads back."""
    return json.dumps(step.to_json())


def save(path: Path, steps: Iterable[Step]) -> None:
    """Write a script as a file that `load` reads back: one step to .json, several to seq_*.jsonl."""
    lines = [dump(step) + "\n" for step in steps]
    path.write_text("".join(lines), encoding="utf-8")


def packaged_files() -> tuple[Path, ...]:
    """Return the case files that come with this package."""
    root = Path(str(resources.files("reshard_conformance"))) / "data" / "cases"
    return tuple(sorted(path for path in root.rglob("*.json*")))


def check_script(steps: tuple[Step, ...], locations: list[str]) -> tuple[Step, ...]:
    """Return the steps; raise CaseError where they do not fit one set of ranks."""
    sizes = [case.world_size for step in steps for case in step.cases]
    if not sizes:
        raise CaseError("(whole file)", "at least one case or batch", [dump(step) for step in steps], locations[0])
    for step, location in zip(steps, locations, strict=True):
        try:
            step.check_world_size(sizes[0], f"{sizes[0]} as in the first case of the sequence")
        except CaseError as error:
            raise error.with_location(location) from None
    return steps
