"""What the kernel is told of strided copies, and the kernel itself, compiled for the CPU: one thread after another."""

from __future__ import annotations

import ctypes
import math
import mmap
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from restripe.transport import copy_tables as pieces
from restripe.transport.copy_tables import DIMS, MACROS, MOST, THREADS, UNITS, Piece, Table, tables

from ..helpers.posting import judge, piece

SOURCE = Path(pieces.__file__).with_name("copy.cu")
HARNESS = """
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
struct Index { unsigned x; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static Index blockIdx, threadIdx;
#include "copy.cu"
extern "C" void launch(const Table* table, unsigned blocks) {
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < THREADS; threadIdx.x++) copy(*table);
}
"""
Make = Callable[[list[Piece]], None]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes copies with the kernel's own source."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "harness.cpp").write_text(HARNESS, "utf-8")
    options = [*(f"-D{name}={value}" for name, value in MACROS.items()), f"-I{SOURCE.parent}", "-O1", "-w"]
    options += ["-fsanitize=alignment", "-fno-sanitize-recover=alignment"]
    target = folder / "kernel.so"
    subprocess.run([compiler, "-shared", "-fPIC", *options, str(folder / "harness.cpp"), "-o", str(target)], check=True)
    library = ctypes.CDLL(str(target))

    def made(some: list[Piece]) -> None:
        for table, blocks in tables(some):
            library.launch(ctypes.byref(table), ctypes.c_uint(blocks))

    return made


@st.composite
def views(draw: st.DrawFn, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A view of the shape somewhere in a larger tensor, its dims in any order and with gaps."""
    order = draw(st.permutations(range(len(shape))))
    gaps = st.tuples(st.integers(0, 3), st.sampled_from([1, 1, 2, 3]), st.integers(0, 3))
    cuts = [(*draw(gaps), shape[dim]) for dim in order]
    room = [first + step * size + more for first, step, more, size in cuts]
    shift = draw(st.integers(0, 16))
    whole = (torch.arange(shift + math.prod(room)) % 101).to(dtype)[shift:].view(room)
    kept = whole[tuple(slice(first, first + step * size, step) for first, step, _, size in cuts)]
    return kept.permute([order.index(dim) for dim in range(len(shape))])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Destination and source of a copy."""
    dtype = draw(st.sampled_from([torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128]))
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 16]), max_size=4)))
    return draw(views(dtype, shape)), draw(views(dtype, shape))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=st.lists(pairs(), max_size=4), reach=st.sampled_from([40, 1000, pieces.REACH]))
def test_strided_pieces_are_copied_as_torch_copies_them(
    make: Make, some: list[tuple[torch.Tensor, torch.Tensor]], reach: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "REACH", reach)
        judge(make, some)


def test_many_pieces_of_many_tiles_are_copied_in_launches_of_as_many_as_there_is_room_for(make: Make) -> None:
    sizes = [(rows, columns) for rows in (1, 3, 200) for columns in (1, 31, 64)] * 10
    sides = [torch.randint(0, 100, (rows, 2 * columns), dtype=torch.int16) for rows, columns in sizes]
    some = [(torch.zeros(size, dtype=torch.int16), side[:, size[1] :]) for size, side in zip(sizes, sides, strict=True)]
    counts = [table.count for table, _ in tables([piece(*both) for both in some])]
    assert counts == [MOST, MOST, 90 - 2 * MOST]
    judge(make, some)


def test_a_piece_of_more_dims_than_the_kernel_knows_is_made_in_parts(make: Make) -> None:
    dims = DIMS + 2
    dst, src = (torch.arange(3**dims, dtype=torch.int16).view([3] * dims)[(slice(2),) * dims] for _ in range(2))
    pair = dst, src.permute(*range(dims)[::-1])
    assert sum(table.count for table, _ in tables([piece(*pair)])) == 2**3
    judge(make, [pair])
    wide = torch.zeros([5] + [3] * (dims - 1), dtype=torch.int16)[(slice(4), *[slice(2)] * (dims - 1))]
    assert sum(table.count for table, _ in tables([piece(wide, wide.clone())])) == 2**2


@pytest.mark.parametrize(
    ("shift", "columns", "unit"), [(0, 64, 16), (0, 4, 8), (0, 6, 4), (0, 5, 2), (1, 64, 2), (2, 64, 4), (4, 64, 8)]
)
def test_as_many_bytes_are_copied_at_once_as_both_sides_allow(shift: int, columns: int, unit: int) -> None:
    src = torch.zeros(shift + 8 * 128, dtype=torch.int16)[shift:].view(8, 128)
    ((table, blocks),) = tables([piece(torch.zeros(8, columns, dtype=torch.int16), src[:, :columns])])
    entry = table.pieces[0]
    assert (entry.unit, entry.total, blocks) == (unit, 8 * columns * 2 // unit, 1)
    assert list(entry.sizes)[: entry.dims] == [size for size in (columns * 2 // unit, 8) if size > 1]


@pytest.mark.parametrize("unit", [8, 4, 2, 1])
@pytest.mark.parametrize("side", [0, 1])
def test_the_strides_of_either_side_bound_what_is_copied_at_once(unit: int, side: int) -> None:
    strides = [(256, 1), (256, 1)]
    strides[side] = (256 + unit, 1)
    ((table, _),) = tables([Piece(4096, 8192, (8, 64), *strides)])
    assert table.pieces[0].unit == unit


@pytest.mark.parametrize(
    ("sizes", "to", "of"),
    [
        ((9, 64), (2**28, 1), (64, 1)),
        ((9, 64), (64, 1), (2**28, 1)),
        ((2, 9, 64), (2**30, 2**27, 1), (512, 64, 1)),
        ((2**33,), (1,), (1,)),
    ],
)
def test_no_part_spans_more_than_32_bits_count(
    sizes: tuple[int, ...], to: tuple[int, ...], of: tuple[int, ...]
) -> None:
    whole, total = Piece(2**40, 2**44, sizes, to, of), 0
    for table, _ in tables([whole]):
        for one in table.pieces[: table.count]:
            total += one.total * one.unit
            for steps in (one.dst_strides, one.src_strides):
                dims = zip(one.sizes[: one.dims], steps, strict=False)
                assert sum((size - 1) * step for size, step in dims) + one.unit <= 2**31
    assert total == math.prod(sizes)


def test_nothing_beyond_a_piece_is_read_or_written(make: Make) -> None:
    """The last tile of a piece is not full; what comes after the memory of either side must not be touched."""
    page = mmap.PAGESIZE
    rooms = [mmap.mmap(-1, 2 * page) for _ in range(2)]
    dst, src = (torch.frombuffer(room, dtype=torch.uint8) for room in rooms)
    src.fill_(5)
    libc = ctypes.CDLL(None)
    for one in (dst, src):
        assert libc.mprotect(ctypes.c_void_p(one.data_ptr() + page), ctypes.c_size_t(page), 0) == 0
    some = [(dst[page - size : page], src[page - size : page]) for size in (1, 7, 48, 1000)]
    make([piece(*both) for both in some])
    assert all(torch.equal(*both) for both in some)
    for one in (dst, src):
        assert libc.mprotect(ctypes.c_void_p(one.data_ptr() + page), ctypes.c_size_t(page), 3) == 0


@pytest.mark.parametrize("dims", [(2, 0, 3, 1), (0, 1, 2, 3)])
def test_dims_are_taken_in_the_destination_s_order(dims: tuple[int, ...]) -> None:
    dst, src = torch.zeros(4, 6, 8, 5).permute(dims), torch.zeros(4, 6, 8, 5).permute(dims)
    ((table, _),) = tables([piece(dst, src)])
    assert (table.count, table.pieces[0].dims) == (1, 1)
    ((table, _),) = tables([piece(torch.zeros(8, 4), torch.zeros(4, 8).t())])
    assert list(table.pieces[0].dst_strides)[:2] == [4, 16]


def test_adjacent_dims_are_one_and_a_long_one_is_cut_where_it_stays_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = piece(torch.zeros(2, 4, 31, dtype=torch.int16), torch.zeros(2, 4, 31, dtype=torch.int16))
    ((table, _),) = tables([whole])
    assert (table.count, table.pieces[0].dims, table.pieces[0].unit) == (1, 1, 16)
    monkeypatch.setattr(pieces, "REACH", 300)
    ((table, _),) = tables([whole])
    assert [(one.unit, one.total) for one in table.pieces[: table.count]] == [(16, 15), (16, 16)]


def test_nothing_is_launched_where_there_is_nothing() -> None:
    assert not list(tables([]))
    assert not list(tables([piece(torch.zeros(0, 3), torch.zeros(0, 3))]))


def test_blocks_are_as_many_as_the_units_of_all_pieces_need() -> None:
    rows = THREADS * UNITS[16] * 16 // 128  # of 128 bytes: one block's
    some = [piece(torch.zeros(count * rows, 32), torch.zeros(count * rows, 64)[:, :32]) for count in (2, 1, 3)]
    ((table, blocks),) = tables(some)
    assert [one.tile for one in table.pieces[:3]] == [0, 2, 3]
    assert blocks == 6


def test_the_table_has_room_in_a_kernel_s_arguments() -> None:
    assert ctypes.sizeof(Table) <= 4096
