"""What one rank does for a submission: rounds of copies, messages and fan-outs between numbered memories.

A program knows no tensor, only the sizes and strides that it was made for, so a warm call with other tensors of the same
geometry uses it again. Memory number 2i is the source of tensor i, 2i + 1 its destination; later numbers are buffers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Sizes = tuple[int, ...]


class Geometry(NamedTuple):
    """How a local tensor lies in memory: sizes and strides in elements of `itemsize` bytes (1, 2, 4 or 8).

    Elements of 16 bytes count as two of 8, in a last dim of their own.
    """

    sizes: Sizes
    strides: Sizes
    itemsize: int

    @classmethod
    def of(cls, sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> Geometry:
        """The geometry of a tensor with elements of 1 to 16 bytes."""
        if itemsize == 16:
            return cls((*sizes, 2), (*(2 * stride for stride in strides), 1), 8)
        return cls(tuple(sizes), tuple(strides), itemsize)

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after another in row-major order."""
        return contiguous(self.sizes, self.strides)

    @property
    def extent(self) -> int:
        """The bytes from the first element to the end of the last; 0 where there is none."""
        if not math.prod(self.sizes):
            return 0
        return (sum((n - 1) * stride for n, stride in zip(self.sizes, self.strides, strict=True)) + 1) * self.itemsize


class View(NamedTuple):
    """A strided piece of a memory, in elements from its first."""

    memory: int
    offset: int
    sizes: Sizes
    strides: Sizes


class Span(NamedTuple):
    """Adjacent bytes of a memory."""

    memory: int
    offset: int
    length: int


class Buffer(NamedTuple):
    """A memory that a round allocates, in elements of `itemsize` bytes."""

    memory: int
    elements: int
    itemsize: int


class Gather(NamedTuple):
    """An all-gather of equal stripes: its split's number, this rank's whole destination, its stripe, here or in the source."""

    split: int
    whole: Span
    stripe: Span


class Spread(NamedTuple):
    """A broadcast of one member's stripe: its split's number, the member's, and where the stripe lies."""

    split: int
    root: int
    stripe: Span


Copy = tuple[View, View]  # into, out of


@dataclass
class Round:
    """What is done for the messages of one round, in the order of the fields; what stays may be copied beside what crosses."""

    buffers: list[Buffer] = field(default_factory=list)
    packs: list[Copy] = field(default_factory=list)
    sends: list[tuple[Span, int]] = field(default_factory=list)
    receives: list[tuple[Span, int]] = field(default_factory=list)
    unpacks: list[Copy] = field(default_factory=list)
    stays: list[Copy] = field(default_factory=list)
    rebuilds: list[Gather | Spread] = field(default_factory=list)
    finishes: list[Copy] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)


class Program(NamedTuple):
    """A submission's rounds, and how many memories they know."""

    rounds: list[Round]
    memories: int


def contiguous(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements of these sizes and strides lie one after another in row-major order."""
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
