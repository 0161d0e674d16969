"""The two sides of a case: mesh, placements and memory of its local tensors, and what some ranks pass wrongly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from reshard_conformance.case.fields import (
    CaseError,
    NestedInts,
    expect_choice,
    expect_ranks,
    expect_sizes,
    flatten_mesh,
    mesh_shape,
)

__all__ = [
    "DTYPES",
    "MEMORIES",
    "SIGNED_DTYPES",
    "VIEW_DTYPES",
    "Fault",
    "Placement",
    "Side",
    "read_placement",
]

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
#: Memory formats and kinds of local tensors; see `Side`.
MEMORIES = (
    *("contiguous", "transposed", "sliced", "mixed", "interleaved"),
    *("conjugate", "negative", "parameter", "inference", "pending"),
)
#: The memory formats that "mixed" gives to the ranks in turn.
MIXED_MEMORIES = ("contiguous", "transposed", "sliced")
SIGNED_DTYPES = ("float64", "float32", "float16", "bfloat16", "complex64", "complex128")
#: The dtypes of which torch has lazy views, by the view's memory.
VIEW_DTYPES = {"conjugate": SIGNED_DTYPES[-2:], "negative": SIGNED_DTYPES}
SHAPE_FAULTS = ("local_shape", "global_shape")
FAULTS = ("absent", "stray", *SHAPE_FAULTS, "placements", "dtype", "device", "alias")
PLACEMENT_PATTERN = re.compile(
    r"(?P<plain>R)|S\((?P<dim>-?\d+)\)|SS\((?P<strided>-?\d+),(?P<factor>[1-9]\d*)\)|"
    r"SG\((?P<segmented>-?\d+),\[(?P<sizes>\d+(?:,\d+)*)\]\)|P\((?P<op>sum|avg|product|max|min)\)"
)
PLACEMENT_GRAMMAR = "a list of R, S(d), SS(d,k) with k of at least 1, SG(d,[a,b,...]), or P(sum), one a mesh dim"


@dataclass(frozen=True)
class Placement:
    """One placement of a case; kind is "R", "S", "SS", "SG" or "P"."""

    kind: str
    dim: int = 0
    factor: int = 1
    sizes: tuple[int, ...] = ()
    op: str = ""


def read_placement(text: str) -> Placement:
    """Read `R`, `S(d)`, `SS(d,k)`, `SG(d,[a,b,...])` or `P(op)`; raise CaseError for anything else."""
    match = PLACEMENT_PATTERN.fullmatch(text)
    if match is None:
        raise CaseError("placements", PLACEMENT_GRAMMAR, text)
    if match["dim"]:
        return Placement("S", dim=int(match["dim"]))
    if match["strided"]:
        return Placement("SS", dim=int(match["strided"]), factor=int(match["factor"]))
    if match["segmented"]:
        return Placement("SG", dim=int(match["segmented"]), sizes=tuple(map(int, match["sizes"].split(","))))
    return Placement("R") if match["plain"] else Placement("P", op=match["op"])


def expect_placements(field: str, value: object) -> None:
    if not isinstance(value, tuple) or not all(
        isinstance(text, str) and PLACEMENT_PATTERN.fullmatch(text) for text in value
    ):
        raise CaseError(field, PLACEMENT_GRAMMAR, value)


@dataclass(frozen=True)
class Side:
    """A mesh of group ranks, one placement a mesh dim, and the memory of its local tensors.

    memory is one of:

    - contiguous; transposed (dims reversed); sliced (a view of a larger buffer);
    - mixed: contiguous on ranks 0, 3, ..., transposed on ranks 1, 4, ..., sliced on ranks 2, 5, ...;
    - interleaved: every second element of a buffer; where both sides are interleaved, they share that buffer;
    - conjugate, negative: lazy views; parameter, inference: tensors made as such;
    - pending: the result of a functional collective that nobody has waited for.

    Ranks may be out of range or repeated, and placements too few or too many, in a case that expects an error.
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
        return tuple(flatten_mesh(self.mesh))

    def memory_of(self, rank: int) -> str:
        """Return the memory of a rank's local tensor; never "mixed"."""
        return MIXED_MEMORIES[rank % len(MIXED_MEMORIES)] if self.memory == "mixed" else self.memory

    @cached_property
    def mesh_shape(self) -> tuple[int, ...]:
        """The number of ranks along each mesh dim."""
        return mesh_shape(self.mesh) or ()


@dataclass(frozen=True)
class Fault:
    """A wrong argument that some ranks pass.

    what: "stray" is a tensor on ranks outside the side's mesh; "placements" is another layout, with matching shards.
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
