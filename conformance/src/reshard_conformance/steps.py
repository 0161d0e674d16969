"""The steps of a run as frozen values: one reshard, a batch of them, a clear of caches, the end of a group."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from reshard_conformance.contract import KINDS
from reshard_conformance.fields import (
    CaseError,
    NestedInts,
    expect_choice,
    expect_int,
    expect_members,
    expect_ranks,
    expect_sizes,
    expect_tuple,
    leaves,
    mesh_shape,
)

DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "complex32",
    "complex64",
    "complex128",
)
#: How a local tensor lies in memory, or what kind of tensor it is; see `Side`.
MEMORIES = (
    *("contiguous", "transposed", "sliced", "mixed", "interleaved"),
    *("conjugate", "negative", "parameter", "inference", "pending"),
)
#: What "mixed" is on the ranks in turn.
MIXED = ("contiguous", "transposed", "sliced")
SIGNED = ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")
#: The dtypes of which there are lazy views.
VIEWED = {"conjugate": SIGNED[-2:], "negative": SIGNED}
SHAPE_FAULTS = ("local_shape", "global_shape")
FAULTS = ("absent", "stray", *SHAPE_FAULTS, "placements", "dtype", "device", "alias")
EXPECTATIONS = ("equal", *(f"error:{kind}" for kind in KINDS))
PLACEMENT = re.compile(
    r"(?P<plain>R)|S\((?P<dim>-?\d+)\)|SS\((?P<strided>-?\d+),(?P<factor>[1-9]\d*)\)|"
    r"SG\((?P<segmented>-?\d+),\[(?P<sizes>\d+(?:,\d+)*)\]\)|P\((?P<op>sum|avg|product|max|min)\)"
)
GRAMMAR = "a list of R, S(d), SS(d,k) with k of at least 1, SG(d,[a,b,...]), or P(sum), one a mesh dim"


@dataclass(frozen=True)
class Placement:
    """One placement as a case spells it: kind is "R", "S", "SS", "SG" or "P"."""

    kind: str
    dim: int = 0
    factor: int = 1
    sizes: tuple[int, ...] = ()
    op: str = ""


def read_placement(text: str) -> Placement:
    """Read `R`, `S(d)`, `SS(d,k)`, `SG(d,[a,b,...])` or `P(op)`; CaseError for anything else."""
    match = PLACEMENT.fullmatch(text)
    if match is None:
        raise CaseError("placements", GRAMMAR, text)
    if match["dim"]:
        return Placement("S", dim=int(match["dim"]))
    if match["strided"]:
        return Placement("SS", dim=int(match["strided"]), factor=int(match["factor"]))
    if match["segmented"]:
        return Placement("SG", dim=int(match["segmented"]), sizes=tuple(map(int, match["sizes"].split(","))))
    return Placement("R") if match["plain"] else Placement("P", op=match["op"])


def expect_placements(field: str, value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(text, str) and PLACEMENT.fullmatch(text) for text in value):
        raise CaseError(field, GRAMMAR, value)


@dataclass(frozen=True)
class Side:
    """A mesh of group ranks, one placement a mesh dim, and how local tensors lie in memory.

    memory: contiguous, transposed (dims reversed) or sliced (out of a larger buffer); mixed: one of these on ranks 0, 3,
    ..., the next on ranks 1, 4, ..., and so on; interleaved: every second element, and where source and destination are both so, they alternate in one memory; conjugate and negative: lazy views;
    parameter, inference: tensors made as such; pending: the result of a functional collective, not yet waited for.
    Ranks may be out of range or given twice, and placements too few or too many: a case may expect the refusal.
    """

    mesh: NestedInts
    placements: tuple[str, ...]
    memory: str = "contiguous"

    def __post_init__(self) -> None:
        if mesh_shape(self.mesh) is None:
            raise CaseError("mesh", "nested lists of ranks, of equal lengths and not empty", self.mesh)
        expect_placements("placements", self.placements)
        expect_choice("memory", self.memory, MEMORIES)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the mesh, row-major."""
        return tuple(leaves(self.mesh))

    def memory_of(self, rank: int) -> str:
        """How the local tensor of a rank lies in memory."""
        return MIXED[rank % len(MIXED)] if self.memory == "mixed" else self.memory

    @cached_property
    def mesh_shape(self) -> tuple[int, ...]:
        """The number of ranks along each mesh dim."""
        return mesh_shape(self.mesh) or ()


@dataclass(frozen=True)
class Fault:
    """What some ranks pass instead of what the layout asks for.

    what: "stray" is a tensor on ranks outside the side's mesh; "placements" calls with another layout, shards to match.
    value: sizes for local_shape and global_shape, texts for placements, a dtype's name for dtype, None for the others.
    """

    side: str
    ranks: tuple[int, ...]
    what: str
    value: tuple[int, ...] | tuple[str, ...] | str | None = None

    def __post_init__(self) -> None:
        expect_choice("side", self.side, ("src", "dst"))
        expect_ranks("ranks", self.ranks)
        expect_choice("what", self.what, FAULTS)
        if self.what in SHAPE_FAULTS:
            expect_sizes("value", self.value)
        elif self.what == "placements":
            expect_placements("value", self.value)
        elif self.what == "dtype":
            expect_choice("value", self.value, DTYPES)
        elif self.value is not None:
            raise CaseError("value", f"no such key beside a fault {self.what!r}", self.value)


@dataclass(frozen=True)
class Case:
    """One reshard: every rank of the group makes this one call.

    world_size: ranks of the group. shape: the global shape. group: which of several groups over the same ranks.
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
        for side in ("src", "dst"):
            expect_choice("dtype", self.dtype, VIEWED.get(getattr(self, side).memory, DTYPES))
        expect_choice("dst.memory", self.dst.memory, [memory for memory in MEMORIES if memory != "pending"])
        for field in ("name", "why", "source"):
            if not isinstance(getattr(self, field), str):
                raise CaseError(field, "a text", getattr(self, field))
        if self.fault is not None and self.expect == "equal":
            raise CaseError("expect", "error:KIND beside a fault", self.expect)
        if self.fault is not None:
            expect_members("fault.ranks", self.fault.ranks, self.world_size)

    @property
    def layout(self) -> tuple[object, ...]:
        """What a report counts as one distinct layout: world size, shape, both meshes, both placements."""
        return (
            self.world_size,
            self.shape,
            self.src.mesh,
            self.dst.mesh,
            self.src.placements,
            self.dst.placements,
        )


@dataclass(frozen=True)
class Clear:
    """Every rank, or only `ranks`, clears the caches of the group, or of all its groups in order of creation."""

    ranks: tuple[int, ...] | None = None
    all_groups: bool = False
    group: int = 0

    def __post_init__(self) -> None:
        if self.ranks is not None:
            expect_ranks("ranks", self.ranks)
        if not isinstance(self.all_groups, bool):
            raise CaseError("all_groups", "true or false", self.all_groups)
        expect_int("group", self.group, 0)


@dataclass(frozen=True)
class Batch:
    """Several cases of one group in one call, through the batch hook; an item without a name gets its number."""

    cases: tuple[Case, ...]

    def __post_init__(self) -> None:
        expect_tuple("cases", self.cases, Case, "a list of cases")
        if not self.cases:
            raise CaseError("cases", "at least one case", [])
        for number, case in enumerate(self.cases):
            if case.world_size != self.world_size:
                raise CaseError(f"cases[{number}].world_size", f"{self.world_size} as in the first", case.world_size)
            if case.group != self.group:
                raise CaseError(f"cases[{number}].group", f"{self.group} as in the first", case.group)

    @property
    def world_size(self) -> int:
        """The number of ranks of the group."""
        return self.cases[0].world_size

    @property
    def group(self) -> int:
        """The number of the group."""
        return self.cases[0].group


@dataclass(frozen=True)
class Destroy:
    """Every rank clears the group and drops it; a later step with its number gets a new group.

    clear: whether it is cleared; else it is only dropped, and nothing may be called while it is collected.
    """

    group: int
    clear: bool = True

    def __post_init__(self) -> None:
        expect_int("group", self.group, 0)
        if not isinstance(self.clear, bool):
            raise CaseError("clear", "true or false", self.clear)


#: What the caller of a flow does around its calls; see `Flow`.
SCENES = ("given", "current", "produced", "overwritten", "freed", "foreign", "handled", "unblocked")


@dataclass(frozen=True)
class Flow:
    """Several cases, called one after another on streams of a device without waiting for it in between.

    streams: one a case, by number; each is busy when it is called on, and has the tensors' content written on it before.
    scene: the streams are given ("given"), or are current and not given ("current"). Else they are given, and "produced":
    the content is written on another stream, for which the case's waits; "overwritten": the source is overwritten on the
    stream after the call; "freed": the source is dropped after the call, and its memory used for something else; "foreign":
    the same of tensors that were allocated on another stream; "handled": the destination is read on another stream that
    waited for a work handle; "unblocked": a call has to return while the stream is busy.
    """

    cases: tuple[Case, ...]
    streams: tuple[int, ...]
    scene: str

    def __post_init__(self) -> None:
        expect_tuple("cases", self.cases, Case, "a list of cases")
        expect_sizes("streams", self.streams)
        expect_choice("scene", self.scene, SCENES)
        if not self.cases or len(self.streams) != len(self.cases):
            raise CaseError("streams", f"one number a case, and at least one case, not {len(self.cases)}", self.streams)
        for number, case in enumerate(self.cases):
            if case.world_size != self.world_size:
                raise CaseError(f"cases[{number}].world_size", f"{self.world_size} as in the first", case.world_size)
            if case.expect != "equal":
                raise CaseError(f"cases[{number}].expect", "equal, in a flow", case.expect)

    @property
    def world_size(self) -> int:
        """The number of ranks of the groups."""
        return self.cases[0].world_size

    @property
    def group(self) -> int:
        """The number of the first case's group."""
        return self.cases[0].group

    @property
    def groups(self) -> tuple[int, ...]:
        """The numbers of all groups, in the order of their first calls."""
        return tuple(dict.fromkeys(case.group for case in self.cases))


Step: TypeAlias = Case | Clear | Batch | Destroy | Flow
