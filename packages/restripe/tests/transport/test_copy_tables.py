"""The tables of strided copies, and the kernel that reads them, compiled for the CPU: one thread after another."""

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

from restripe.transport import copy_tables as tables_module
from restripe.transport.copy_tables import COPIES, DIMS, MACROS, THREADS, UNITS, Table, copy_tables
from restripe.transport.protocol import AddressCopy

from ..helpers.address_transport import address_copy, assert_copies_like_torch, collapsed_copy
from ..helpers.strided_views import ViewPair, view_pairs

SOURCE = Path(tables_module.__file__).with_name("copy.cu")
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
Make = Callable[[list[AddressCopy]], None]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Make copies with the kernel's own source."""
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

    def launch(copies: list[AddressCopy]) -> None:
        for table, blocks in copy_tables(copies):
            library.launch(ctypes.byref(table), ctypes.c_uint(blocks))

    return launch


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(view_pairs(), max_size=4), most=st.sampled_from([40, 1000, tables_module.MAX_EXTENT]))
def test_strided_copies_are_torch_s(make: Make, pairs: list[ViewPair], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables_module, "MAX_EXTENT", most)
        assert_copies_like_torch(make, pairs)


def test_many_copies_of_many_blocks_are_made_in_launches_of_as_many_as_there_is_room_for(make: Make) -> None:
    sizes = [(rows, columns) for rows in (1, 3, 200) for columns in (1, 31, 64)] * 10
    wide = [torch.randint(0, 100, (rows, 2 * columns), dtype=torch.int16) for rows, columns in sizes]
    pairs = [
        (torch.zeros(size, dtype=torch.int16), source[:, size[1] :]) for size, source in zip(sizes, wide, strict=True)
    ]
    counts = [table.count for table, _ in copy_tables([address_copy(*pair) for pair in pairs])]
    assert counts == [COPIES, COPIES, 90 - 2 * COPIES]
    assert_copies_like_torch(make, pairs)


def test_a_copy_of_more_dims_than_the_kernel_knows_is_made_in_parts(make: Make) -> None:
    dims = DIMS + 2
    into, source = (torch.arange(3**dims, dtype=torch.int16).view([3] * dims)[(slice(2),) * dims] for _ in range(2))
    pair = into, source.permute(*range(dims)[::-1])
    assert sum(table.count for table, _ in copy_tables([collapsed_copy(*pair)])) == 2**3
    assert_copies_like_torch(make, [pair, pair])
    wide = torch.zeros([5] + [3] * (dims - 1), dtype=torch.int16)[(slice(4), *[slice(2)] * (dims - 1))]
    assert sum(table.count for table, _ in copy_tables([collapsed_copy(wide, wide.clone())])) == 2**2


@pytest.mark.parametrize(
    ("shift", "columns", "unit"), [(0, 64, 16), (0, 4, 8), (0, 6, 4), (0, 5, 2), (1, 64, 2), (2, 64, 4), (4, 64, 8)]
)
def test_a_thread_copies_as_many_bytes_at_once_as_both_sides_allow(shift: int, columns: int, unit: int) -> None:
    src = torch.zeros(shift + 8 * 128, dtype=torch.int16)[shift:].view(8, 128)
    ((table, blocks),) = copy_tables([collapsed_copy(torch.zeros(8, columns, dtype=torch.int16), src[:, :columns])])
    entry = table.copies[0]
    assert (entry.unit, entry.units, blocks) == (unit, 8 * columns * 2 // unit, 1)
    assert list(entry.sizes)[: entry.dims] == [size for size in (columns * 2 // unit, 8) if size > 1]


@pytest.mark.parametrize("unit", [8, 4, 2, 1])
@pytest.mark.parametrize("side", [0, 1])
def test_the_strides_of_either_side_bound_the_bytes_copied_at_once(unit: int, side: int) -> None:
    strides = [(256, 1), (256, 1)]
    strides[side] = (256 + unit, 1)
    ((table, _),) = copy_tables([AddressCopy(4096, 8192, (8, 64), *strides)])
    assert table.copies[0].unit == unit


@pytest.mark.parametrize(
    ("sizes", "into_strides", "out_strides"),
    [
        ((9, 64), (2**28, 1), (64, 1)),
        ((9, 64), (64, 1), (2**28, 1)),
        ((2, 9, 64), (2**30, 2**27, 1), (512, 64, 1)),
        ((2**33,), (1,), (1,)),
    ],
)
def test_no_part_spans_more_than_32_bits_count(
    sizes: tuple[int, ...], into_strides: tuple[int, ...], out_strides: tuple[int, ...]
) -> None:
    total = 0
    for table, _ in copy_tables([AddressCopy(2**40, 2**44, sizes, into_strides, out_strides)]):
        for entry in table.copies[: table.count]:
            total += entry.units * entry.unit
            for strides in (entry.into_strides, entry.out_strides):
                dims = zip(entry.sizes[: entry.dims], strides, strict=False)
                assert sum((size - 1) * stride for size, stride in dims) + entry.unit <= 2**31
    assert total == math.prod(sizes)


def test_no_byte_beyond_a_copy_is_read_or_written(make: Make) -> None:
    """The last block of a copy is not full; the pages after the memory of either side must not be touched."""
    page = mmap.PAGESIZE
    rooms = [mmap.mmap(-1, 2 * page) for _ in range(2)]
    dst, src = (torch.frombuffer(room, dtype=torch.uint8) for room in rooms)
    src.fill_(5)
    libc = ctypes.CDLL(None)
    for memory in (dst, src):
        assert libc.mprotect(ctypes.c_void_p(memory.data_ptr() + page), ctypes.c_size_t(page), 0) == 0
    pairs = [(dst[page - size : page], src[page - size : page]) for size in (1, 7, 48, 1000)]
    make([collapsed_copy(*pair) for pair in pairs])
    assert all(torch.equal(*pair) for pair in pairs)
    for memory in (dst, src):
        assert libc.mprotect(ctypes.c_void_p(memory.data_ptr() + page), ctypes.c_size_t(page), 3) == 0


def test_dims_are_innermost_first_and_those_of_size_1_are_left_out() -> None:
    copy = AddressCopy(4096, 8192, (3, 1, 5, 4), (100, 7, 8, 1), (200, 9, 16, 1))
    ((table, _),) = copy_tables([copy])
    entry = table.copies[0]
    assert (entry.into, entry.out_of, entry.unit, entry.units, entry.dims) == (4096, 8192, 4, 15, 2)
    assert list(zip(entry.sizes, entry.into_strides, entry.out_strides, strict=True))[:2] == [(5, 8, 16), (3, 100, 200)]
    ((table, _),) = copy_tables([AddressCopy(4096, 8192, (1, 4), (7, 1), (9, 1))])
    assert (table.copies[0].dims, table.copies[0].units, table.copies[0].sizes[0]) == (1, 1, 1)


def test_a_long_copy_is_cut_where_both_parts_stay_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = collapsed_copy(torch.zeros(2, 4, 31, dtype=torch.int16), torch.zeros(2, 4, 31, dtype=torch.int16))
    ((table, _),) = copy_tables([whole])
    assert (table.count, table.copies[0].dims, table.copies[0].unit) == (1, 1, 16)
    monkeypatch.setattr(tables_module, "MAX_EXTENT", 300)
    ((table, _),) = copy_tables([whole])
    assert [(entry.unit, entry.units) for entry in table.copies[: table.count]] == [(16, 15), (16, 16)]


def test_empty_copies_take_no_launch() -> None:
    assert not list(copy_tables([]))
    assert not list(copy_tables([address_copy(torch.zeros(0, 3), torch.zeros(0, 3))]))


def test_blocks_are_as_many_as_the_units_of_all_copies_need() -> None:
    rows = THREADS * UNITS[16] * 16 // 128  # of 128 bytes: one block's
    copies = [
        collapsed_copy(torch.zeros(count * rows, 32), torch.zeros(count * rows, 64)[:, :32]) for count in (2, 1, 3)
    ]
    ((table, blocks),) = copy_tables(copies)
    assert [entry.first_block for entry in table.copies[:3]] == [0, 2, 3]
    assert blocks == 6


def test_the_table_has_room_in_a_kernel_s_arguments() -> None:
    assert ctypes.sizeof(Table) <= 4096
