"""Cases and the other steps of a run as plain JSON (format 1), so that a bug report is a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from reshard_conformance.fields import (
    CaseError,
    NestedInts,
    expect_keys,
    expect_members,
    expect_no_null,
    expect_object,
    frozen,
    unique,
)
from reshard_conformance.steps import (
    DTYPES,
    MEMORIES,
    VIEWED,
    Batch,
    Case,
    Clear,
    Destroy,
    Fault,
    Flow,
    Placement,
    Side,
    Step,
    read_placement,
)

__all__ = [
    "DTYPES",
    "MEMORIES",
    "VIEWED",
    "Batch",
    "Case",
    "CaseError",
    "Clear",
    "Destroy",
    "Fault",
    "Flow",
    "NestedInts",
    "Placement",
    "Side",
    "Step",
    "dump",
    "load",
    "packaged",
    "parse",
    "read_placement",
    "save",
]

REQUIRED = ("format", "world_size", "shape", "dtype", "src", "dst", "expect")
OPTIONAL = ("name", "why", "source", "fault", "group")


def parse(text: str, place: str = "") -> Step:
    """Read one step from JSON text; `place` (file and line) goes into the message of a CaseError."""
    try:
        return read_step(json.loads(text, object_pairs_hook=unique))
    except json.JSONDecodeError as error:
        raise CaseError("(whole text)", f"one JSON object ({error})", text[:80], place) from None
    except CaseError as error:
        raise error.at(place) from None


def load(path: Path | str) -> list[tuple[Step, ...]]:
    """Read a case file: the scripts in it, each to be played in order on one set of ranks with caches kept.

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
    places = [f"{path.name}, line {number}" for number, _ in lines]
    steps = [parse(line, place) for (_, line), place in zip(lines, places, strict=True)]
    if path.name.startswith("seq_"):
        return [check_script(tuple(steps), places or [path.name])]
    return [check_script((step,), [place]) for step, place in zip(steps, places, strict=True)]


def dump(step: Step) -> str:
    """The step as one line of JSON text; `parse` gives it back."""
    return json.dumps(to_json(step))


def save(path: Path, steps: Iterable[Step]) -> None:
    """Write a script as a file that `load` reads back: one step to .json, several to seq_*.jsonl."""
    lines = [dump(step) + "\n" for step in steps]
    path.write_text("".join(lines), encoding="utf-8")


def packaged() -> tuple[Path, ...]:
    """The case files that come with this package."""
    root = Path(str(resources.files("reshard_conformance"))) / "cases"
    return tuple(sorted(path for path in root.rglob("*.json*")))


def read_step(value: object) -> Step:
    fields = expect_object("(whole text)", value)
    if fields.get("format") != 1 or isinstance(fields.get("format"), bool):
        raise CaseError("format", "1", fields.get("format"))
    op = fields.get("op")
    if "op" not in fields:
        return read_case(fields)
    if op == "clear":
        expect_keys(fields, ("format", "op"), ("ranks", "all_groups", "group"))
        return Clear(**{key: frozen(fields[key]) for key in fields if key not in ("format", "op")})
    if op == "batch":
        expect_keys(fields, ("format", "op", "cases"), ())
        return Batch(read_cases(fields["cases"]))
    if op == "destroy":
        expect_keys(fields, ("format", "op", "group"), ("clear",))
        return Destroy(fields["group"], fields.get("clear", True))
    if op == "flow":
        expect_keys(fields, ("format", "op", "cases", "streams", "scene"), ())
        return Flow(read_cases(fields["cases"]), frozen(fields["streams"]), fields["scene"])
    raise CaseError("op", "one of clear, batch, destroy, flow", op)


def read_case(fields: dict[str, Any]) -> Case:
    expect_keys(fields, REQUIRED, OPTIONAL)
    expect_no_null(fields)
    values = {key: frozen(value) for key, value in fields.items() if key not in ("format", "src", "dst", "fault")}
    fault = read_part("fault", Fault, fields, ("side", "ranks", "what"), ("value",)) if "fault" in fields else None
    sides = {side: read_part(side, Side, fields, ("mesh", "placements"), ("memory",)) for side in ("src", "dst")}
    return Case(**values, **sides, fault=fault)


def read_cases(value: object) -> tuple[Case, ...]:
    if not isinstance(value, list):
        raise CaseError("cases", "a list of cases", value)
    cases = []
    for number, item in enumerate(value):
        try:
            case = read_step(item)
        except CaseError as error:
            raise error.inside(f"cases[{number}]") from None
        if not isinstance(case, Case):
            raise CaseError(f"cases[{number}]", "a case", item)
        cases.append(case)
    return tuple(cases)


def read_part(
    name: str, kind: type[Any], fields: dict[str, Any], required: tuple[str, ...], optional: tuple[str, ...]
) -> Any:
    part = expect_object(name, fields[name])
    try:
        expect_keys(part, required, optional)
        expect_no_null(part)
        return kind(**{key: frozen(value) for key, value in part.items()})
    except CaseError as error:
        raise error.inside(name) from None


def to_json(step: Step) -> dict[str, object]:
    if isinstance(step, Clear):
        return {"format": 1, "op": "clear", "ranks": step.ranks, "all_groups": step.all_groups, **group_key(step)}
    if isinstance(step, Batch):
        return {"format": 1, "op": "batch", "cases": [to_json(case) for case in step.cases]}
    if isinstance(step, Flow):
        cases = [to_json(case) for case in step.cases]
        return {"format": 1, "op": "flow", "scene": step.scene, "streams": step.streams, "cases": cases}
    if isinstance(step, Destroy):
        return {"format": 1, "op": "destroy", "group": step.group} | ({} if step.clear else {"clear": False})
    fields: dict[str, object] = {"format": 1}
    fields |= {"name": step.name} if step.name else {}
    fields |= {"world_size": step.world_size, "shape": step.shape, "dtype": step.dtype}
    fields |= {"src": asdict(step.src), "dst": asdict(step.dst), "expect": step.expect}
    fields |= {key: getattr(step, key) for key in ("why", "source") if getattr(step, key)}
    if step.fault is not None:
        fields["fault"] = {key: value for key, value in asdict(step.fault).items() if value is not None}
    return fields | group_key(step)


def group_key(step: Case | Clear) -> dict[str, object]:
    return {"group": step.group} if step.group else {}


def check_script(steps: tuple[Step, ...], places: list[str]) -> tuple[Step, ...]:
    """Refuse a script whose steps do not fit one set of ranks."""
    sizes = [step.world_size for step in steps if isinstance(step, Case | Batch | Flow)]
    if not sizes:
        raise CaseError("(whole file)", "at least one case or batch", [dump(step) for step in steps], places[0])
    for step, place in zip(steps, places, strict=True):
        try:
            check_fit(step, sizes[0])
        except CaseError as error:
            raise error.at(place) from None
    return steps


def check_fit(step: Step, world_size: int) -> None:
    if isinstance(step, Case | Batch | Flow) and step.world_size != world_size:
        raise CaseError("world_size", f"{world_size} as in the first case of the sequence", step.world_size)
    if isinstance(step, Clear) and step.ranks is not None:
        expect_members("ranks", step.ranks, world_size)
