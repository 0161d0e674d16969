"""A program: what one rank does for a submission, in rounds of copies, messages and collectives between numbered memories.

A program knows no tensor, only the sizes and strides that it was lowered for, so it serves every call whose tensors lie
alike. Memory 2i is the source of tensor i, memory 2i + 1 its destination; higher numbers are buffers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Sizes = tuple[int, ...]


class Geometry(NamedTuple):
    """The sizes and strides of a local tensor, in elements of `itemsize` bytes."""

    sizes: Sizes
    strides: Sizes
    itemsize: int

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one after another in row-major order."""
        return is_contiguous(self.sizes, self.strides)

    @property
    def extent(self) -> int:
        """The bytes from the first element to the end of the last; 0 where there is none."""
        if not math.prod(self.sizes):
            return 0
        return (sum((n - 1) * stride for n, stride in zip(self.sizes, self.strides, strict=True)) + 1) * self.itemsize


class Span(NamedTuple):
    """Adjacent bytes of a memory."""

    memory: int
    offset: int
    length: int


class StridedCopy(NamedTuple):
    """A strided copy from one memory to another: sizes, strides and offsets in bytes, the last dim of adjacent bytes."""

    into: int
    out_of: int
    into_offset: int
    out_offset: int
    sizes: Sizes
    into_strides: Sizes
    out_strides: Sizes


class Buffer(NamedTuple):
    """A memory of so many bytes that a round allocates."""

    memory: int
    length: int


class AllGather(NamedTuple):
    """An all-gather of equal stripes over a replica split: this rank's whole destination, and where its own stripe lies."""

    split: int
    whole: Span
    stripe: Span


class Broadcast(NamedTuple):
    """A broadcast in place of one member's stripe over a replica split."""

    split: int
    root: int
    stripe: Span


@dataclass
class Round:
    """The steps of one round, in the order of the fields; `local_copies` depend on nothing that crosses."""

    buffers: list[Buffer] = field(default_factory=list)
    packs: list[StridedCopy] = field(default_factory=list)
    sends: list[tuple[Span, int]] = field(default_factory=list)
    receives: list[tuple[Span, int]] = field(default_factory=list)
    unpacks: list[StridedCopy] = field(default_factory=list)
    local_copies: list[StridedCopy] = field(default_factory=list)
    replications: list[AllGather | Broadcast] = field(default_factory=list)
    copy_back: list[StridedCopy] = field(default_factory=list)
    frees: list[int] = field(default_factory=list)


class Program(NamedTuple):
    """The rounds of a submission, and the number of memories that they use."""

    rounds: list[Round]
    memories: int

    @property
    def allocates(self) -> bool:
        """Whether any round needs a buffer."""
        return any(step.buffers for step in self.rounds)


def is_contiguous(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether elements of these sizes and strides lie one after another in row-major order."""
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def row_major(sizes: Sequence[int]) -> Sizes:
    """Return the strides of a contiguous tensor of these sizes."""
    return tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))
