"""The bytes that strided copies read and write, one by one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from restripe.execution.program import Sizes, StridedCopy

Byte = tuple[int, int]  # a memory and an offset there


def side_bytes(memory: int, offset: int, sizes: Sizes, strides: Sizes) -> list[Byte]:
    """Return the bytes of one side of a copy, in row-major order."""
    indices = product(*map(range, sizes))
    return [(memory, offset + sum(n * step for n, step in zip(index, strides, strict=True))) for index in indices]


def byte_pairs(copies: Iterable[StridedCopy]) -> list[tuple[Byte, Byte]]:
    """Return which byte each byte is written from, in ascending order."""
    return sorted(
        pair
        for copy in copies
        for pair in zip(
            side_bytes(copy.into, copy.into_offset, copy.sizes, copy.into_strides),
            side_bytes(copy.out_of, copy.out_offset, copy.sizes, copy.out_strides),
            strict=True,
        )
    )
