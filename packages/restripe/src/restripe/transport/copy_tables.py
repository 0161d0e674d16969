"""The tables in which the copy kernel is told of strided copies; arithmetic only."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence

from restripe.transport.protocol import AddressCopy

DIMS = 6  # of a copy as the kernel takes it
COPIES = 39  # a launch: as many as its arguments have room for, 4 KiB
THREADS = 256  # a block
UNITS = {16: 2, 8: 2, 4: 4, 2: 4, 1: 4}  # bytes that a thread copies at once, and how many times it does
#: The macros that copy.cu is compiled with.
MACROS = {"DIMS": DIMS, "COPIES": COPIES, "THREADS": THREADS} | {f"EACH_{unit}": times for unit, times in UNITS.items()}
MAX_EXTENT = 2**31  # bytes that a copy may span on either side: the kernel counts in 32 bits


class _Entry(ctypes.Structure):
    _fields_ = (
        ("into", ctypes.c_uint64),
        ("out_of", ctypes.c_uint64),
        ("first_block", ctypes.c_uint32),
        ("units", ctypes.c_uint32),
        ("unit", ctypes.c_uint32),
        ("dims", ctypes.c_uint32),
        ("sizes", ctypes.c_uint32 * DIMS),
        ("into_strides", ctypes.c_uint32 * DIMS),
        ("out_strides", ctypes.c_uint32 * DIMS),
    )


class Table(ctypes.Structure):
    """The kernel's argument, laid out as in copy.cu, which says what its fields mean."""

    _fields_ = (("count", ctypes.c_uint32), ("copies", _Entry * COPIES))


def copy_tables(copies: Sequence[AddressCopy]) -> Iterator[tuple[Table, int]]:
    """Yield the launches that make these copies: the table of each, and how many blocks it takes."""
    countable = [part for copy in copies if 0 not in copy.sizes for part in _split_copy(copy)]
    for first in range(0, len(countable), COPIES):
        batch = countable[first : first + COPIES]
        table, blocks = Table(count=len(batch)), 0
        for entry, copy in zip(table.copies, batch, strict=False):
            _fill_entry(entry, copy)
            entry.first_block = blocks
            blocks += -(-entry.units // (THREADS * UNITS[entry.unit]))
        yield table, blocks


def _fill_entry(entry: _Entry, copy: AddressCopy) -> None:
    unit = copy.widest_unit(max(UNITS))
    dims = list(zip(copy.sizes, copy.into_strides, copy.out_strides, strict=True))
    dims[-1] = copy.sizes[-1] // unit, unit, unit
    sizes, into, out_of = zip(*[dim for dim in dims[::-1] if dim[0] > 1] or dims[:1], strict=True)
    count = len(sizes)
    entry.into, entry.out_of = copy.into, copy.out_of
    entry.units, entry.unit, entry.dims = math.prod(sizes), unit, count
    entry.sizes[:count], entry.into_strides[:count], entry.out_strides[:count] = sizes, into, out_of


def _split_copy(copy: AddressCopy) -> Iterator[AddressCopy]:
    """Yield the copy in parts that the kernel can count, each of few enough dims."""
    sides = zip(copy.sizes, copy.into_strides, copy.out_strides, strict=True)
    extents = [(size - 1) * max(into, out_of) for size, into, out_of in sides]
    if len(copy.sizes) > DIMS:
        dim = min(range(len(copy.sizes) - 1), key=copy.sizes.__getitem__)
        parts = [_without_dim(copy, dim, index) for index in range(copy.sizes[dim])]
    elif sum(extents) >= MAX_EXTENT:
        dim = extents.index(max(extents))
        size = copy.sizes[dim]
        half = (
            size // 2 // max(UNITS) * max(UNITS) or size // 2
        )  # a multiple of the widest unit keeps both parts aligned
        parts = [_part_of(copy, dim, 0, half), _part_of(copy, dim, half, size - half)]
    else:
        yield copy
        return
    for part in parts:
        yield from _split_copy(part)


def _part_of(copy: AddressCopy, dim: int, start: int, size: int) -> AddressCopy:
    """Return so many of a dim's indices, from a start on."""
    into, out_of = copy.into + start * copy.into_strides[dim], copy.out_of + start * copy.out_strides[dim]
    return copy._replace(into=into, out_of=out_of, sizes=(*copy.sizes[:dim], size, *copy.sizes[dim + 1 :]))


def _without_dim(copy: AddressCopy, dim: int, index: int) -> AddressCopy:
    """Return the copy at one index of a dim."""
    part = _part_of(copy, dim, index, 1)
    sizes, into_strides, out_strides = (
        (*values[:dim], *values[dim + 1 :]) for values in (part.sizes, part.into_strides, part.out_strides)
    )
    return AddressCopy(part.into, part.out_of, sizes, into_strides, out_strides)
