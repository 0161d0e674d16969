"""What is measured: tensors in bfloat16 and the layouts that they move between."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch.distributed.tensor import Replicate, Shard

from restripe.layout import Layout, Mesh

Shape = tuple[int, ...]
DTYPE = torch.bfloat16


class Move(StrEnum):
    """Which layouts a row moves between, on any even number of GPUs."""

    POINT = "first half of the GPUs to the second, S(0) to S(0)"
    EXCHANGE = "S(0) to S(1) on all GPUs"
    GATHER = "S(0) to R on all GPUs"

    def layouts(self, size: int) -> tuple[Layout, Layout]:
        """Source and destination on `size` ranks."""
        half = size // 2
        if self is Move.POINT:
            return _line(range(half), Shard(0)), _line(range(half, 2 * half), Shard(0))
        return _line(range(size), Shard(0)), _line(range(size), Shard(1) if self is Move.EXCHANGE else Replicate())


def _line(ranks: range, placement: Shard | Replicate) -> Layout:
    return Layout(Mesh((len(ranks),), tuple(ranks)), (placement,))


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        name: how it is shown and chosen.
        tensors: names and global shapes, in elements.
        repeats: how often every contender is timed.
    """

    name: str
    move: Move
    tensors: tuple[tuple[str, Shape], ...]
    repeats: int = 30

    @property
    def size(self) -> int:
        """Global bytes."""
        return sum(math.prod(shape) for _, shape in self.tensors) * DTYPE.itemsize

    @property
    def burst(self) -> int:
        """How many calls are timed on the GPU at a time, so that small ones add up to more than the clock's step."""
        return max(1, min(20, 2**30 // self.size))

    def staging(self, ranks: int) -> int:
        """The most bytes that a move may allocate on a rank: of these layouts only an exchange sends noncontiguous pieces."""
        return self.size // ranks * (ranks - 1) // ranks if self.move is Move.EXCHANGE else 0


def rows() -> tuple[Row, ...]:
    """The rows in the order of the table."""
    small, mib34, mb262, gib = (64, 128), (4096, 4096), (25600, 5120), (32768, 16384)
    return (
        _single("point 16 KiB", Move.POINT, small, 60),
        _single("point 34 MB", Move.POINT, mib34),
        _single("point 262 MB", Move.POINT, mb262),
        _single("point 1 GiB", Move.POINT, gib),
        _single("exchange 16 KiB", Move.EXCHANGE, small, 60),
        _single("exchange 262 MB", Move.EXCHANGE, mb262),
        _single("gather 262 MB", Move.GATHER, mb262),
        Row("model 4B", Move.POINT, tuple(dense()), 20),
    )


def _single(name: str, move: Move, shape: Shape, repeats: int = 30) -> Row:
    return Row(name, move, (("tensor", shape),), repeats)


def dense(
    layers: int = 36, hidden: int = 2560, intermediate: int = 9728, heads: int = 32, groups: int = 8, head: int = 128
) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of a dense model's layers; without arguments the 4B one: 396 tensors of 7.27 GB.

    Args:
        groups: the number of key-value heads.
        head: the size of a head.
    """
    layer = {
        "q": (heads * head, hidden),
        "k": (groups * head, hidden),
        "v": (groups * head, hidden),
        "o": (hidden, heads * head),
        "gate": (intermediate, hidden),
        "up": (intermediate, hidden),
        "down": (hidden, intermediate),
        "norm": (hidden,),
        "post_norm": (hidden,),
        "q_norm": (head,),
        "k_norm": (head,),
    }
    for number in range(layers):
        for name, shape in layer.items():
            yield f"layers.{number:02}.{name}", shape
