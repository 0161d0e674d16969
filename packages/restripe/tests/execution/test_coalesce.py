"""Coalesced copies write the same bytes from the same bytes, in fewer copies and fewer dims."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from restripe.execution.coalesce import coalesce_copies, collapse_dims
from restripe.execution.program import Sizes, StridedCopy, row_major

from ..helpers.strided_copies import byte_pairs

PROPERTIES = settings(max_examples=400, deadline=None, derandomize=True)


@st.composite
def runs(draw: st.DrawFn) -> list[StridedCopy]:
    """Copies in runs: equal ones at constant strides, adjoining or not, and now and then one that breaks a run.

    A source may be read twice; no byte is written twice.
    """
    copies: list[StridedCopy] = []
    end = 0  # of what is written so far
    for _ in range(draw(st.integers(1, 4))):
        sizes = (*draw(st.lists(st.integers(1, 3), max_size=2)), draw(st.sampled_from([1, 2, 4])))
        out_strides = (*(draw(st.integers(0, 9)) for _ in sizes[:-1]), 1)
        memory, start, step = draw(st.integers(0, 1)), draw(st.integers(0, 9)), draw(st.integers(-1, 12))
        gap = draw(st.sampled_from([0, 0, 2]))
        for _ in range(draw(st.integers(1, 5))):
            copies.append(StridedCopy(9, memory, end, start, sizes, row_major(sizes), out_strides))
            start = max(0, start + draw(st.sampled_from([step, step, step, prod(sizes), step + 1])))
            end += prod(sizes) + gap
    return copies


@st.composite
def strided_copies(draw: st.DrawFn) -> StridedCopy:
    """One copy of any sizes, 0 and 1 among them, with dims that adjoin more often than by chance; no byte is written twice."""
    sizes, into_strides, out_strides = [draw(st.sampled_from([1, 2, 4]))], [1], [1]
    for _ in range(draw(st.integers(0, 4))):
        inner = sizes[-1] or 2
        into = inner * into_strides[-1] + draw(st.sampled_from([0, 0, 3]))
        out = draw(st.sampled_from([inner * out_strides[-1], 0, 1, 40]))
        sizes.append(draw(st.sampled_from([2, 1, 3, 0, 2])))
        into_strides.append(into)
        out_strides.append(out)
    order = [*draw(st.permutations(range(1, len(sizes)))), 0]  # the last dim is of adjacent bytes
    dims = [tuple(values[dim] for dim in order) for values in (sizes, into_strides, out_strides)]
    return StridedCopy(1, 0, draw(st.integers(0, 9)), draw(st.integers(0, 9)), *dims)


@pytest.mark.requirement("RS-EXACT-1")
@PROPERTIES
@given(runs())
def test_coalesced_copies_write_the_same_bytes_in_no_more_copies(copies: list[StridedCopy]) -> None:
    coalesced = coalesce_copies(copies)
    assert len(coalesced) <= len(copies)
    assert byte_pairs(coalesced) == byte_pairs(copies)
    assert coalesce_copies(coalesced) == coalesced
    assert all(copy.into_strides[-1] == copy.out_strides[-1] == 1 for copy in coalesced)


@PROPERTIES
@given(runs())
def test_the_copies_of_one_run_are_one(copies: list[StridedCopy]) -> None:
    (first, *_), count = copies, len(copies)
    into_step, out_step = prod(first.sizes) + 3, 50
    run = [
        first._replace(into_offset=first.into_offset + n * into_step, out_offset=first.out_offset + n * out_step)
        for n in range(count)
    ]
    assert len(coalesce_copies(run)) == 1


@pytest.mark.requirement("RS-EXACT-1")
@PROPERTIES
@given(strided_copies())
def test_collapsed_dims_keep_every_byte_and_merge_no_further(copy: StridedCopy) -> None:
    collapsed = collapse_dims(copy)
    assert byte_pairs([collapsed]) == byte_pairs([copy])
    assert len(collapsed.sizes) <= len(copy.sizes)
    assert 1 not in collapsed.sizes[:-1]
    assert collapsed.into_strides[-1] == collapsed.out_strides[-1] == 1
    outer = list(zip(collapsed.into_strides, collapsed.out_strides, strict=True))[:-1]
    assert outer == sorted(outer, reverse=True)
    assert collapse_dims(collapsed) == collapsed


def contiguous(offset: int, length: int, out_offset: int) -> StridedCopy:
    return StridedCopy(8, 0, offset, out_offset, (length,), (1,), (1,))


def test_copies_that_adjoin_on_both_sides_are_one() -> None:
    assert coalesce_copies([contiguous(0, 4, 10), contiguous(4, 2, 14), contiguous(6, 1, 16)]) == [contiguous(0, 7, 10)]
    rows = StridedCopy(8, 0, 0, 0, (3, 4), (4, 1), (8, 1))
    below = rows._replace(into_offset=12, out_offset=24, sizes=(2, 4))
    assert coalesce_copies([rows, below]) == [rows._replace(sizes=(5, 4))]
    beside = StridedCopy(8, 0, 0, 0, (3, 2), (6, 1), (8, 1))
    next_columns = beside._replace(into_offset=2, out_offset=2, sizes=(3, 3))
    assert coalesce_copies([beside, next_columns]) == [beside._replace(sizes=(3, 5))]


@pytest.mark.parametrize("second", [contiguous(5, 2, 14), contiguous(4, 2, 15)])
def test_copies_that_adjoin_on_one_side_alone_stay_apart(second: StridedCopy) -> None:
    copies = [contiguous(0, 4, 10), second]
    assert coalesce_copies(copies) == copies


@pytest.mark.parametrize(("sizes", "offset"), [((2, 3), 2), ((2, 3), 12)])
def test_copies_whose_other_sizes_differ_do_not_adjoin(sizes: Sizes, offset: int) -> None:
    """The second goes on where the first ends along one dim, and is shorter along the other."""
    copy = StridedCopy(8, 0, 0, 0, (3, 2), (4, 1), (4, 1))
    after = copy._replace(into_offset=offset, out_offset=offset, sizes=sizes)
    assert coalesce_copies([copy, after]) == [copy, after]


def test_a_run_of_equal_copies_at_constant_strides_is_one_copy() -> None:
    columns = [StridedCopy(8, 0, 6 * n, 2 * n + 8 * n, (3, 2), (2, 1), (8, 1)) for n in range(4)]
    together = StridedCopy(8, 0, 0, 0, (4, 3, 2), (6, 2, 1), (10, 8, 1))
    assert coalesce_copies(columns) == [together]
    late = columns[0]._replace(into_offset=25, out_offset=40)  # farther from the last one than those from each other
    assert coalesce_copies([*columns, late]) == [together, late]
    assert coalesce_copies([]) == []
    assert coalesce_copies(columns[:1]) == columns[:1]


def test_runs_of_runs_are_one_copy() -> None:
    copies = [contiguous(10 * outer + 2 * inner, 1, 20 * outer + 3 * inner) for outer in range(3) for inner in range(2)]
    assert coalesce_copies(copies) == [StridedCopy(8, 0, 0, 0, (3, 2, 1), (10, 2, 1), (20, 3, 1))]


@pytest.mark.parametrize(("into_offset", "out_offset"), [(8, 12), (12, 8)])
def test_copies_in_descending_order_stay_apart(into_offset: int, out_offset: int) -> None:
    copies = [contiguous(10, 1, 10), contiguous(into_offset, 1, out_offset)]
    assert coalesce_copies(copies) == copies


@pytest.mark.parametrize(
    "change",
    [{"into": 1}, {"out_of": 1}, {"sizes": (2, 3)}, {"into_strides": (9, 1)}, {"out_strides": (9, 1)}],
    ids=lambda change: next(iter(change)),
)
def test_copies_that_differ_in_more_than_their_offsets_stay_apart(change: dict[str, object]) -> None:
    copy = StridedCopy(8, 0, 0, 0, (3, 2), (2, 1), (8, 1))
    after = copy._replace(into_offset=60, out_offset=60)
    assert len(coalesce_copies([copy, after])) == 1
    differing = after._replace(**change)  # type: ignore[arg-type]  # one field of any type
    assert coalesce_copies([copy, differing]) == [copy, differing]


@pytest.mark.parametrize(
    ("dims", "collapsed"),
    [
        ([(2, 124, 124), (4, 31, 31), (31, 1, 1)], [(248, 1, 1)]),  # all adjoin
        ([(1, 9, 7), (3, 8, 4), (4, 1, 1)], [(3, 8, 4), (4, 1, 1)]),  # a dim of size 1
        ([(3, 4, 8), (5, 12, 2), (2, 1, 1)], [(5, 12, 2), (3, 4, 8), (2, 1, 1)]),  # the destination's order
        ([(3, 8, 4), (4, 1, 1)], [(3, 8, 4), (4, 1, 1)]),  # adjoin at the source alone
        ([(3, 4, 8), (4, 1, 1)], [(3, 4, 8), (4, 1, 1)]),  # adjoin at the destination alone
        ([(0, 4, 4), (4, 1, 1)], [(0, 1, 1)]),
        ([(0, 9, 9), (4, 1, 1)], [(0, 9, 9), (4, 1, 1)]),
        ([(1, 1, 1)], [(1, 1, 1)]),
    ],
)
def test_examples_of_collapsed_dims(dims: list[Sizes], collapsed: list[Sizes]) -> None:
    """A dim is its size, and its strides at the destination and at the source."""
    before, after = (StridedCopy(1, 0, 5, 6, *zip(*some, strict=True)) for some in (dims, collapsed))
    assert collapse_dims(before) == after
