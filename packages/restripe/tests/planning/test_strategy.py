"""Which shape a plan takes: every pair of contiguities that really occurs is found, and each reason by an example."""

from __future__ import annotations

from importlib import import_module
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard

from restripe.layout.chunked import ChunkedDim
from restripe.layout.mesh import Layout, Mesh
from restripe.layout.partition import Partition
from restripe.planning.plan import Reason
from restripe.planning.strategy import Contiguity, choose_strategy, contiguities, is_local, stripe_grid

Interval = tuple[int, int]
SIZES = [(), (2,), (3,), (2, 3), (4, 2), (5,)]


def chunks(interval: Interval, sizes: tuple[int, ...]) -> list[Interval]:
    """The nonempty chunks of an interval, cut as torch.chunk cuts, by one size after the other."""
    if not sizes:
        return [interval] if interval[0] < interval[1] else []
    lo, hi = interval
    step = max(1, -(-(hi - lo) // sizes[0]))
    return [chunk for start in range(lo, hi, step) for chunk in chunks((start, min(hi, start + step)), sizes[1:])]


def pieces(src: ChunkedDim, dst: ChunkedDim, stripes: int) -> set[tuple[int, Interval, Interval]]:
    """Length, source chunk and destination chunk of everything that crosses in one tensor dim."""
    return {
        (min(a[1], c[1]) - max(a[0], c[0]), a, b)
        for a in chunks((0, src.length), src.sizes)
        for b in chunks((0, dst.length), dst.sizes)
        for c in chunks(b, (stripes,))
        if max(a[0], c[0]) < min(a[1], c[1])
    }


def view(lengths: list[int], parents: list[int]) -> Contiguity:
    """How a piece lies in a row-major parent: whole where every dim after its first longer one is the parent's."""
    first = next((dim for dim, length in enumerate(lengths) if length > 1), None)
    if first is None:
        return Contiguity.SINGLE
    return Contiguity.WHOLE if lengths[first + 1 :] == parents[first + 1 :] else Contiguity.BROKEN


def size(interval: Interval) -> int:
    return interval[1] - interval[0]


@st.composite
def pairs(draw: st.DrawFn) -> list[tuple[ChunkedDim, ChunkedDim]]:
    """How both sides cut each of one to three tensor dims."""
    lengths = draw(st.lists(st.integers(1, 24), min_size=1, max_size=3))
    return [(ChunkedDim(n, draw(st.sampled_from(SIZES))), ChunkedDim(n, draw(st.sampled_from(SIZES)))) for n in lengths]


@pytest.mark.requirement("RS-UPSTREAM-7")
@settings(max_examples=400, deadline=None, derandomize=True)
@given(pairs(), st.integers(1, 4))
def test_every_pair_of_views_that_occurs_is_found_and_no_other(
    cuts: list[tuple[ChunkedDim, ChunkedDim]], stripes: int
) -> None:
    stripes = stripes if cuts[0][1].divides(stripes) else 1
    dims = [pieces(src, dst, stripes if dim == 0 else 1) for dim, (src, dst) in enumerate(cuts)]
    found = set()
    for piece in product(*dims):
        lengths = [length for length, _, _ in piece]
        found.add((view(lengths, [size(a) for _, a, _ in piece]), view(lengths, [size(b) for _, _, b in piece])))
    counts = [stripes, 1, 1][: len(cuts)]
    assert contiguities([src for src, _ in cuts], [dst for _, dst in cuts], counts) == found


@settings(max_examples=300, deadline=None, derandomize=True)
@given(pairs(), st.integers(1, 4))
def test_without_the_walk_no_view_is_missed(cuts: list[tuple[ChunkedDim, ChunkedDim]], stripes: int) -> None:
    counts = [stripes, 1, 1][: len(cuts)]
    sides = [src for src, _ in cuts], [dst for _, dst in cuts]
    pairs = contiguities(*sides, counts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("restripe.planning.strategy"), "MAX_WALK", 0)
        assert contiguities(*sides, counts) >= pairs


def test_chunks_that_never_fall_together_are_not_walked() -> None:
    """8192 and 6144 chunks of a prime length: what their lengths allow is what there is."""
    src, dst = ChunkedDim(50331653, (8192,)), ChunkedDim(50331653, (6144,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChunkedDim, "owner", None)  # a walk would ask for the owner of every edge
        pairs = contiguities([src, src], [dst, dst], [1, 1])
    broken = {Contiguity.WHOLE, Contiguity.BROKEN}
    assert pairs >= set(product(broken, broken)) - {(Contiguity.WHOLE, Contiguity.WHOLE)}


def layout(shape: tuple[int, ...], first: int, *shards: int | None) -> Layout:
    """A layout on the ranks from `first` on."""
    count = 1
    for length in shape:
        count *= length
    placements = tuple(Replicate() if dim is None else Shard(dim) for dim in shards)
    return Layout(Mesh(shape, tuple(range(first, first + count))), placements)


ROWS, ALL = layout((2,), 0, 0), layout((4,), 0, None)
EXAMPLES = [
    ((6, 4), ROWS, layout((2,), 2, 1), Reason.POINT),
    ((6, 4), ROWS, layout((2,), 2, None), Reason.STRIPED),
    ((6, 4), ROWS, layout((2, 1), 2, None, 1), Reason.STRIPED),
    ((), layout((2,), 0, None), layout((2,), 2, None), Reason.SCALAR),
    ((1, 4), ROWS, layout((2,), 2, None), Reason.STRIPED),
    ((1,), ROWS, layout((2,), 2, None), Reason.SCALAR),
    ((2, 1), ROWS, layout((2, 2), 2, 0, None), Reason.SCALAR),
    ((5,), ROWS, layout((2,), 2, None), Reason.RAGGED),
    ((5, 4), ROWS, layout((2,), 2, None), Reason.RAGGED),
    ((6, 4), ROWS, layout((2, 2), 2, 0, None), Reason.RAGGED),
    ((3, 4), ROWS, layout((6,), 2, None), Reason.STRIPED),
    ((3, 4), ROWS, layout((7,), 2, None), Reason.RAGGED),
    ((4, 6), layout((3,), 0, 1), layout((2, 2), 0, None, 1), Reason.STAGING),
    ((0, 4), ROWS, layout((2,), 2, None), Reason.EMPTY),
    ((6, 4), ROWS, ROWS, Reason.LOCAL),
    ((0, 4), ROWS, ROWS, Reason.LOCAL),
    ((6, 4), ALL, layout((2, 2), 0, 0, None), Reason.LOCAL),
    ((6, 4), ALL, layout((2,), 3, None), Reason.STRIPED),
]


@pytest.mark.requirement("RS-UPSTREAM-7", "RS-UPSTREAM-9")
@pytest.mark.parametrize(("shape", "src", "dst", "reason"), EXAMPLES)
def test_each_reason_by_an_example(shape: tuple[int, ...], src: Layout, dst: Layout, reason: Reason) -> None:
    assert choose_strategy(Partition(src, shape), Partition(dst, shape)) is reason


STRIPES = [
    ((8, 3), layout((4,), 0, None), (4, 1)),
    ((7, 3), layout((4,), 0, None), (4, 1)),
    ((3, 5), layout((4,), 0, None), (3, 1)),
    ((3, 5), layout((8,), 0, None), (3, 2)),
    ((1, 1, 9), layout((4,), 0, None), (1, 1, 4)),
    ((2, 2, 9), layout((9,), 0, None), (2, 2, 2)),
    ((5, 4), layout((2, 4), 0, 0, None), (3, 1)),
    ((5, 4), layout((2, 6), 0, 0, None), (3, 2)),
    ((1, 1), layout((4,), 0, None), (1, 1)),
    ((), layout((4,), 0, None), ()),
]


@pytest.mark.requirement("RS-UPSTREAM-7")
@pytest.mark.parametrize(("shape", "dst", "stripes"), STRIPES)
def test_a_shard_is_cut_into_as_many_contiguous_stripes_as_there_are_replicas_for(
    shape: tuple[int, ...], dst: Layout, stripes: tuple[int, ...]
) -> None:
    assert stripe_grid(Partition(dst, shape)) == stripes


@pytest.mark.requirement("RS-UPSTREAM-12")
@pytest.mark.parametrize("shape", [(8, 8), (1, 3), (0, 5), (7, 0)])
def test_sizes_do_not_decide_what_is_local(shape: tuple[int, ...]) -> None:
    both, nested = layout((2, 2), 0, 0, None), layout((2, 2), 0, 0, 0)
    other = layout((2, 2), 0, 0, 1)
    cases = {
        (both, nested): True,
        (nested, both): False,
        (both, other): True,
        (other, both): False,
        (ROWS, both): False,
    }
    for (src, dst), local in cases.items():
        assert is_local(Partition(src, shape), Partition(dst, shape)) is local
