"""The steps of a script as frozen values, each with its cases, its groups and its JSON.

A step is one reshard (`Case`), several in one call (`Batch`), several on CUDA streams (`StreamScenario`), a clear of caches
(`Clear`) or the end of a group (`Destroy`). All of them have

- `cases`: the reshards that the step makes;
- `group` and `groups`: the number of its first group, and of all its groups in the order of their first calls;
- `from_json` and `to_json`;
- `check_world_size`, which raises CaseError where the step does not fit so many ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from reshard_conformance.case.fields import (
    CaseError,
    expect_bool,
    expect_choice,
    expect_int,
    expect_keys,
    expect_members,
    expect_no_null,
    expect_object,
    expect_ranks,
    expect_sizes,
    expect_text,
    expect_tuple,
    lists_to_tuples,
    read_object,
)
from reshard_conformance.case.sides import DTYPES, MEMORIES, VIEW_DTYPES, Fault, Side
from reshard_conformance.contract import KINDS

__all__ = ["STREAM_USAGES", "Batch", "Case", "Clear", "Destroy", "Step", "StreamScenario", "read_step"]

EXPECTATIONS = ("equal", *(f"error:{kind}" for kind in KINDS))
#: The ways in which the caller of a `StreamScenario` uses its streams.
STREAM_USAGES = ("given", "current", "produced", "overwritten", "freed", "foreign", "handled", "unblocked")


@dataclass(frozen=True)
class Case:
    """One reshard that every rank of the group calls.

    world_size: ranks of the group. shape: the global shape. group: the number of one of several groups over these ranks.
    expect: "equal", or "error:KIND" when every rank has to refuse.
    """

    world_size: int
    shape: tuple[int, ...]
    dtype: str
    src: Side
    dst: Side
    expect: str = "equal"
    name: str = ""
    why: str = ""
    source: str = ""
    fault: Fault | None = None
    group: int = 0

    def __post_init__(self) -> None:
        expect_int("world_size", self.world_size, 1)
        expect_sizes("shape", self.shape)
        expect_choice("dtype", self.dtype, DTYPES)
        expect_choice("expect", self.expect, EXPECTATIONS)
        expect_int("group", self.group, 0)
        for side in (self.src, self.dst):
            expect_choice("dtype", self.dtype, VIEW_DTYPES.get(side.memory, DTYPES))
        expect_choice("dst.memory", self.dst.memory, [memory for memory in MEMORIES if memory != "pending"])
        for field in ("name", "why", "source"):
            expect_text(field, getattr(self, field))
        if self.fault is not None and self.expect == "equal":
            raise CaseError("expect", "error:KIND beside a fault", self.expect)
        if self.fault is not None:
            expect_members("fault.ranks", self.fault.ranks, self.world_size)

    @property
    def cases(self) -> tuple[Case, ...]:
        return (self,)

    @property
    def groups(self) -> tuple[int, ...]:
        return (self.group,)

    @property
    def layout(self) -> tuple[object, ...]:
        """The parts that make a layout distinct in a report: world size, shape, both meshes, both placements."""
        return (
            self.world_size,
            self.shape,
            self.src.mesh,
            self.dst.mesh,
            self.src.placements,
            self.dst.placements,
        )

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Case:
        required = ("format", "world_size", "shape", "dtype", "src", "dst", "expect")
        expect_keys(fields, required, ("name", "why", "source", "fault", "group"))
        expect_no_null(fields)
        values = {key: lists_to_tuples(value) for key, value in fields.items() if key != "format"}
        if "fault" in fields:
            values["fault"] = read_object("fault", Fault, fields, ("side", "ranks", "what"), ("value",))
        for side in ("src", "dst"):
            values[side] = read_object(side, Side, fields, ("mesh", "placements"), ("memory",))
        return cls(**values)

    def to_json(self) -> dict[str, object]:
        fields: dict[str, object] = {"format": 1}
        fields |= {"name": self.name} if self.name else {}
        fields |= {"world_size": self.world_size, "shape": self.shape, "dtype": self.dtype}
        fields |= {"src": asdict(self.src), "dst": asdict(self.dst), "expect": self.expect}
        fields |= {key: getattr(self, key) for key in ("why", "source") if getattr(self, key)}
        if self.fault is not None:
            fields["fault"] = {key: value for key, value in asdict(self.fault).items() if value is not None}
        return fields | group_field(self.group)

    def check_world_size(self, world_size: int, expected: str) -> None:
        check_equal_size(self.world_size, world_size, expected)


@dataclass(frozen=True)
class Clear:
    """Every rank, or only `ranks`, clears the caches of the group, or of all its groups in order of creation."""

    ranks: tuple[int, ...] | None = None
    all_groups: bool = False
    group: int = 0

    def __post_init__(self) -> None:
        if self.ranks is not None:
            expect_ranks("ranks", self.ranks)
        expect_bool("all_groups", self.all_groups)
        expect_int("group", self.group, 0)

    @property
    def cases(self) -> tuple[Case, ...]:
        return ()

    @property
    def groups(self) -> tuple[int, ...]:
        return (self.group,)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Clear:
        expect_keys(fields, ("format", "op"), ("ranks", "all_groups", "group"))
        return cls(**{key: lists_to_tuples(value) for key, value in fields.items() if key not in {"format", "op"}})

    def to_json(self) -> dict[str, object]:
        fields = {"format": 1, "op": "clear", "ranks": self.ranks, "all_groups": self.all_groups}
        return fields | group_field(self.group)

    def check_world_size(self, world_size: int, _expected: str) -> None:
        if self.ranks is not None:
            expect_members("ranks", self.ranks, world_size)


@dataclass(frozen=True)
class Batch:
    """Several cases of one group in one call of the batch hook; an item without a name gets its number."""

    cases: tuple[Case, ...]

    def __post_init__(self) -> None:
        expect_tuple("cases", self.cases, Case, "a list of cases")
        if not self.cases:
            raise CaseError("cases", "at least one case", [])
        check_same_sizes(self.cases)
        for number, case in enumerate(self.cases):
            if case.group != self.group:
                raise CaseError(f"cases[{number}].group", f"{self.group} as in the first", case.group)

    @property
    def world_size(self) -> int:
        return self.cases[0].world_size

    @property
    def group(self) -> int:
        return self.cases[0].group

    @property
    def groups(self) -> tuple[int, ...]:
        return (self.group,)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Batch:
        expect_keys(fields, ("format", "op", "cases"), ())
        return cls(read_cases(fields["cases"]))

    def to_json(self) -> dict[str, object]:
        return {"format": 1, "op": "batch", "cases": [case.to_json() for case in self.cases]}

    def check_world_size(self, world_size: int, expected: str) -> None:
        check_equal_size(self.world_size, world_size, expected)


@dataclass(frozen=True)
class Destroy:
    """Every rank clears the group and drops it; a later step with its number gets a new group.

    clear: False drops the group without clearing it; then nothing may be called while it is collected.
    """

    group: int
    clear: bool = True

    def __post_init__(self) -> None:
        expect_int("group", self.group, 0)
        expect_bool("clear", self.clear)

    @property
    def cases(self) -> tuple[Case, ...]:
        return ()

    @property
    def groups(self) -> tuple[int, ...]:
        return (self.group,)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Destroy:
        expect_keys(fields, ("format", "op", "group"), ("clear",))
        return cls(fields["group"], fields.get("clear", True))

    def to_json(self) -> dict[str, object]:
        return {"format": 1, "op": "destroy", "group": self.group} | ({} if self.clear else {"clear": False})

    def check_world_size(self, _world_size: int, _expected: str) -> None:
        """Raise nothing: a group of any size can be destroyed."""


@dataclass(frozen=True)
class StreamScenario:
    """Several cases, called one after another on CUDA streams, with no wait for the device in between.

    streams: one number a case. Before a call its stream is busy, and then writes the tensors' content.
    usage (key "scene" in JSON): "current" makes the stream current and does not pass it; all others pass it. Besides that,

    - given: nothing more;
    - produced: the content is written on another stream, and the case's stream waits for that one;
    - overwritten: the source is overwritten on the stream after the call;
    - freed: the source is dropped after the call, and its memory is allocated and written again;
    - foreign: like freed, with tensors that were allocated on another stream;
    - handled: the destination is read on another stream, which waited for a work handle;
    - unblocked: the call has to return while the stream is still busy.
    """

    cases: tuple[Case, ...]
    streams: tuple[int, ...]
    usage: str

    def __post_init__(self) -> None:
        expect_tuple("cases", self.cases, Case, "a list of cases")
        expect_sizes("streams", self.streams)
        expect_choice("scene", self.usage, STREAM_USAGES)
        if not self.cases or len(self.streams) != len(self.cases):
            raise CaseError("streams", f"one number a case, and at least one case, not {len(self.cases)}", self.streams)
        check_same_sizes(self.cases)
        for number, case in enumerate(self.cases):
            if case.expect != "equal":
                raise CaseError(f"cases[{number}].expect", "equal, in a flow", case.expect)

    @property
    def world_size(self) -> int:
        return self.cases[0].world_size

    @property
    def group(self) -> int:
        return self.cases[0].group

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(case.group for case in self.cases))

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> StreamScenario:
        expect_keys(fields, ("format", "op", "cases", "streams", "scene"), ())
        return cls(read_cases(fields["cases"]), lists_to_tuples(fields["streams"]), fields["scene"])

    def to_json(self) -> dict[str, object]:
        cases = [case.to_json() for case in self.cases]
        return {"format": 1, "op": "flow", "scene": self.usage, "streams": self.streams, "cases": cases}

    def check_world_size(self, world_size: int, expected: str) -> None:
        check_equal_size(self.world_size, world_size, expected)


Step: TypeAlias = Case | Clear | Batch | Destroy | StreamScenario

#: The classes of the steps that are no case, by the value of their key "op".
OPERATIONS: dict[str, type[Clear | Batch | Destroy | StreamScenario]] = {
    "clear": Clear,
    "batch": Batch,
    "destroy": Destroy,
    "flow": StreamScenario,
}


def read_step(value: object) -> Step:
    """Return the step that a JSON value spells; raise CaseError where it does not follow format 1."""
    fields = expect_object("(whole text)", value)
    if fields.get("format") != 1 or isinstance(fields.get("format"), bool):
        raise CaseError("format", "1", fields.get("format"))
    if "op" not in fields:
        return Case.from_json(fields)
    op = fields["op"]
    if not isinstance(op, str) or op not in OPERATIONS:
        raise CaseError("op", f"one of {', '.join(OPERATIONS)}", op)
    return OPERATIONS[op].from_json(fields)


def read_cases(value: object) -> tuple[Case, ...]:
    if not isinstance(value, list):
        raise CaseError("cases", "a list of cases", value)
    cases = []
    for number, item in enumerate(value):
        try:
            case = read_step(item)
        except CaseError as error:
            raise error.inside_field(f"cases[{number}]") from None
        if not isinstance(case, Case):
            raise CaseError(f"cases[{number}]", "a case", item)
        cases.append(case)
    return tuple(cases)


def group_field(group: int) -> dict[str, object]:
    """Return the key of a group in JSON; group 0 has none."""
    return {"group": group} if group else {}


def check_equal_size(world_size: int, wanted: int, expected: str) -> None:
    if world_size != wanted:
        raise CaseError("world_size", expected, world_size)


def check_same_sizes(cases: Sequence[Case]) -> None:
    size = cases[0].world_size
    for number, case in enumerate(cases):
        if case.world_size != size:
            raise CaseError(f"cases[{number}].world_size", f"{size} as in the first", case.world_size)
