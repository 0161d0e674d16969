"""Regions in local memory: where a part of each tensor dim lies, as adjacent bytes or as copies, against lists of elements."""

from __future__ import annotations

from itertools import pairwise, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restripe.execution.lowering import RegionMemory, local_intervals, local_starts, region_copies
from restripe.execution.program import Geometry, Span, StridedCopy
from restripe.layout.chunked import Interval, Intervals, Region, lengths
from restripe.layout.piecewise import CutStep, PiecewiseDim

from ..helpers.program_model import random_strides
from ..helpers.strided_copies import byte_pairs

FLAGS = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=24)
SHORT_FLAGS = st.lists(st.tuples(*[st.sampled_from([True, True, False])] * 3), min_size=1, max_size=7)
PROPERTIES = settings(max_examples=400, deadline=None, derandomize=True)


def intervals(numbers: list[int]) -> Intervals:
    """Return ascending numbers as intervals, neighbours in one."""
    merged: list[Interval] = []
    for number in numbers:
        if merged and merged[-1][1] == number:
            merged[-1] = merged[-1][0], number + 1
        else:
            merged.append((number, number + 1))
    return tuple(merged)


def elements(part: Intervals) -> list[int]:
    return [number for lo, hi in part for number in range(lo, hi)]


def sides(flags: list[tuple[bool, bool, bool]]) -> tuple[Intervals, Intervals, Intervals]:
    """Return the intervals that two sides own, and a part of both."""
    first = intervals([n for n, (owned, _, _) in enumerate(flags) if owned])
    second = intervals([n for n, (_, owned, _) in enumerate(flags) if owned])
    return first, second, intervals([n for n, flag in enumerate(flags) if all(flag)])


@PROPERTIES
@given(FLAGS)
def test_adjacent_elements_of_a_local_dim_are_one_interval(flags: list[tuple[bool, bool, bool]]) -> None:
    owned, _, part = sides(flags)
    local = local_intervals(owned, part)
    assert [elements(owned)[position] for position in elements(tuple(local))] == elements(part)
    assert all(before[1] < after[0] for before, after in pairwise(local))
    assert local_starts(owned, part) == [elements(owned).index(lo) for lo, _ in part]


@st.composite
def region_pairs(draw: st.DrawFn) -> tuple[RegionMemory, RegionMemory, Region]:
    """Two memories of any geometry that both hold a region, of up to three tensor dims."""
    dims = [sides(flags) for flags in draw(st.lists(SHORT_FLAGS, max_size=3))]
    itemsize, random = draw(st.sampled_from([1, 2, 4, 8, 16])), Random(draw(st.integers(0, 10**6)))
    memories = []
    for memory, side in enumerate((0, 1)):
        region = tuple(dim[side] for dim in dims)
        sizes = lengths(region)
        strides = random_strides(random if draw(st.booleans()) else None, sizes)
        offset = draw(st.sampled_from([0, 3])) * itemsize
        memories.append(RegionMemory(memory, Geometry(sizes, strides, itemsize), region, offset))
    return memories[0], memories[1], tuple(dim[2] for dim in dims)


def region_bytes(memory: RegionMemory, part: Region) -> list[tuple[int, int]]:
    """Return the bytes of a part, in row-major order of its elements."""
    local = [
        [elements(owned).index(number) * stride for number in elements(wanted)]
        for owned, wanted, stride in zip(memory.region, part, memory.geometry.strides, strict=True)
    ]
    itemsize = memory.geometry.itemsize
    starts = (memory.offset + sum(index) * itemsize for index in product(*local))
    return [(memory.memory, start + byte) for start in starts for byte in range(itemsize)]


@pytest.mark.requirement("RS-EXACT-1", "RS-EXACT-7")
@PROPERTIES
@given(region_pairs())
def test_a_region_is_copied_byte_for_byte(pair: tuple[RegionMemory, RegionMemory, Region]) -> None:
    into, out_of, region = pair
    copies = list(region_copies(into, out_of, region))
    assert byte_pairs(copies) == sorted(zip(region_bytes(into, region), region_bytes(out_of, region), strict=True))
    dims = zip(into.region, out_of.region, region, strict=True)
    breaks = [max(len(local_intervals(side, part)) for side in (first, second)) for first, second, part in dims]
    if all(count == 1 for count in breaks):
        assert len(copies) == 1


@PROPERTIES
@given(region_pairs())
def test_a_span_is_the_region_s_bytes_where_they_are_adjacent_in_row_major_order(
    pair: tuple[RegionMemory, RegionMemory, Region],
) -> None:
    memory, _, region = pair
    in_order = region_bytes(memory, region)
    if not in_order:
        return
    start = in_order[0][1]
    adjacent = [(memory.memory, start + n) for n in range(len(in_order))]
    wanted = Span(memory.memory, start, len(in_order)) if in_order == adjacent else None
    assert memory.span(region) == wanted


OWNED = (((10, 12), (20, 22)), ((3, 9),))
MEMORY = RegionMemory(3, Geometry((4, 6), (6, 1), 4), OWNED)


def test_a_part_is_a_span_where_it_is_adjacent_in_memory() -> None:
    assert MEMORY.span((((11, 12), (20, 21)), ((3, 9),))) == Span(3, 6 * 4, 12 * 4)
    assert MEMORY.span((((20, 21),), ((4, 8),))) == Span(3, 13 * 4, 4 * 4)
    assert MEMORY.span((((11, 12), (20, 21)), ((3, 8),))) is None
    assert MEMORY.span((((10, 11), (20, 21)), ((3, 9),))) is None
    assert MEMORY._replace(offset=400).span(OWNED) == Span(3, 400, 24 * 4)
    wide = MEMORY._replace(geometry=Geometry((4, 6), (6, 1), 16))
    assert wide.span((((20, 22),), ((3, 9),))) == Span(3, 2 * 6 * 16, 2 * 6 * 16)
    assert wide.span((((20, 22),), ((8, 9),))) is None


def test_a_part_of_several_intervals_is_copied_at_once() -> None:
    other = RegionMemory(1, Geometry((30, 9), (1, 30), 4), (((0, 30),), ((0, 9),)))
    part = (((10, 11), (20, 21)), ((3, 5), (7, 9)))
    assert list(region_copies(MEMORY, other, part)) == [
        StridedCopy(3, 1, 0, 400, (2, 1, 2, 2, 4), (48, 24, 16, 4, 1), (40, 4, 480, 120, 1))
    ]


def test_the_region_of_a_tensor_without_dims_is_one_element() -> None:
    scalar = RegionMemory(1, Geometry((), (), 4), ())
    assert list(region_copies(scalar, scalar, ())) == [StridedCopy(1, 1, 0, 0, (4,), (1,), (1,))]
    assert scalar.span(()) == Span(1, 0, 4)


def test_thousands_of_even_intervals_are_one_copy() -> None:
    owned = PiecewiseDim(65536, (CutStep(0, 4, pieces=8192),)).intervals((1,))
    assert len(owned) == 8192
    assert local_intervals(owned, owned) == [(0, 16384)]
    packed = RegionMemory(0, Geometry((16384,), (1,), 1), (owned,))
    whole = RegionMemory(1, Geometry((65536,), (1,), 1), (((0, 65536),),))
    assert list(region_copies(packed, whole, (owned,))) == [StridedCopy(0, 1, 0, 2, (8192, 2, 1), (2, 1, 1), (8, 1, 1))]


def test_an_interval_that_differs_begins_a_new_copy() -> None:
    part = ((0, 2), (4, 6), (8, 10), (13, 15), (16, 17))
    packed = RegionMemory(0, Geometry((9,), (1,), 1), (part,))
    whole = RegionMemory(1, Geometry((20,), (1,), 1), (((0, 20),),))
    assert list(region_copies(packed, whole, (part,))) == [
        StridedCopy(0, 1, 0, 0, (3, 2, 1), (2, 1, 1), (4, 1, 1)),
        StridedCopy(0, 1, 6, 13, (2, 1), (1, 1), (1, 1)),
        StridedCopy(0, 1, 8, 16, (1, 1), (1, 1), (1, 1)),
    ]
