"""Strided copies by address, and the tables in which a kernel is told of them; arithmetic only."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

Sizes = tuple[int, ...]
DIMS = 6  # of a piece as the kernel takes it
MOST = 39  # pieces a launch: as many as its arguments have room for, 4 KiB
THREADS = 256  # a block
UNITS = {16: 2, 8: 2, 4: 4, 2: 4, 1: 4}  # bytes that a thread copies at once, and how many times it does
#: What copy.cu is compiled with.
MACROS = {"DIMS": DIMS, "MOST": MOST, "THREADS": THREADS} | {f"EACH_{unit}": each for unit, each in UNITS.items()}
REACH = 2**31  # bytes that a piece may span on either side: the kernel counts in 32 bits


class Piece(NamedTuple):
    """A strided copy from one address to another, dims in order, sizes and strides in bytes: the last dim is of adjacent bytes."""

    dst: int
    src: int
    sizes: Sizes
    dst_strides: Sizes
    src_strides: Sizes

    def part(self, dim: int, start: int, size: int) -> Piece:
        """So much of a dim."""
        dst, src = self.dst + start * self.dst_strides[dim], self.src + start * self.src_strides[dim]
        return self._replace(dst=dst, src=src, sizes=(*self.sizes[:dim], size, *self.sizes[dim + 1 :]))


class _Entry(ctypes.Structure):
    _fields_ = (
        ("dst", ctypes.c_uint64),
        ("src", ctypes.c_uint64),
        ("tile", ctypes.c_uint32),
        ("total", ctypes.c_uint32),
        ("unit", ctypes.c_uint32),
        ("dims", ctypes.c_uint32),
        ("sizes", ctypes.c_uint32 * DIMS),
        ("dst_strides", ctypes.c_uint32 * DIMS),
        ("src_strides", ctypes.c_uint32 * DIMS),
    )


class Table(ctypes.Structure):
    """The kernel's argument, laid out as in copy.cu: what its fields mean stands there."""

    _fields_ = (("count", ctypes.c_uint32), ("pieces", _Entry * MOST))


def tables(pieces: Sequence[Piece]) -> Iterator[tuple[Table, int]]:
    """The launches that make these copies: each one's table and how many blocks it takes."""
    fitting = [part for piece in pieces if 0 not in piece.sizes for part in _fitting(_joined(piece))]
    for first in range(0, len(fitting), MOST):
        some = fitting[first : first + MOST]
        table, tiles = Table(count=len(some)), 0
        for entry, piece in zip(table.pieces, some, strict=False):
            _fill(entry, piece)
            entry.tile = tiles
            tiles += -(-entry.total // (THREADS * UNITS[entry.unit]))
        yield table, tiles


def _fill(entry: _Entry, piece: Piece) -> None:
    unit = _unit(piece)
    dims = list(zip(piece.sizes, piece.dst_strides, piece.src_strides, strict=True))
    dims[-1] = piece.sizes[-1] // unit, unit, unit
    sizes, to, of = zip(*[dim for dim in dims[::-1] if dim[0] > 1] or dims[:1], strict=True)
    count = len(sizes)
    entry.dst, entry.src = piece.dst, piece.src
    entry.total, entry.unit, entry.dims = math.prod(sizes), unit, count
    entry.sizes[:count], entry.dst_strides[:count], entry.src_strides[:count] = sizes, to, of


def _unit(piece: Piece) -> int:
    """The most bytes that can be copied at once everywhere in the piece: what all of it is a multiple of."""
    bits = piece.dst | piece.src | piece.sizes[-1]
    for stride in (*piece.dst_strides[:-1], *piece.src_strides[:-1]):
        bits |= stride
    return min(bits & -bits, max(UNITS))


def _joined(piece: Piece) -> Piece:
    """The same copy in as few dims as can be, the destination's farthest strides first."""
    *outer, last = zip(piece.sizes, piece.dst_strides, piece.src_strides, strict=True)
    dims = [last]
    for size, to, of in sorted(outer, key=itemgetter(1, 2)):
        inner, step_to, step_of = dims[-1]
        if to == inner * step_to and of == inner * step_of:
            dims[-1] = size * inner, step_to, step_of
        elif size > 1:
            dims.append((size, to, of))
    return Piece(piece.dst, piece.src, *zip(*dims[::-1], strict=True))


def _fitting(piece: Piece) -> Iterator[Piece]:
    """The piece in parts that the kernel can count, each of few enough dims."""
    sides = zip(piece.sizes, piece.dst_strides, piece.src_strides, strict=True)
    reaches = [(size - 1) * max(to, of) for size, to, of in sides]
    if len(piece.sizes) > DIMS:
        dim = min(range(len(piece.sizes) - 1), key=piece.sizes.__getitem__)
        parts = [piece.part(dim, place, 1) for place in range(piece.sizes[dim])]
    elif sum(reaches) >= REACH:
        dim = reaches.index(max(reaches))
        size = piece.sizes[dim]
        half = size // 2 // max(UNITS) * max(UNITS) or size // 2  # so that what is aligned stays so
        parts = [piece.part(dim, 0, half), piece.part(dim, half, size - half)]
    else:
        yield piece
        return
    for part in parts:
        yield from _fitting(_joined(part))
