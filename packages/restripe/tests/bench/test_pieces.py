"""Hand-written pieces write every element of every destination shard once, from ranks that hold it, in every row."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from restripe.analysis.mapping import Move
from restripe.bench.case import shard
from restripe.bench.pieces import Box, Way, box, holders, numel, route, staging, view
from restripe.bench.rows import Row, rows
from restripe.layout.mesh import Layout

from .conftest import row

ROWS = [(ranks, one) for ranks in (2, 4, 8) for one in rows(ranks)]
NAMES = [f"{one.name} on {ranks}" for ranks, one in ROWS]


def tiles(parts: list[Box], whole: Box) -> bool:
    """Whether every element of the whole lies in one of the parts, and nothing besides."""
    apart = all(not meet(one, other) for one, other in combinations(parts, 2))
    return apart and all(within(part, whole) for part in parts) and sum(map(numel, parts)) == numel(whole)


def within(part: Box, whole: Box) -> bool:
    return all(lo <= low <= high <= hi for (low, high), (lo, hi) in zip(part, whole, strict=True))


def meet(one: Box, other: Box) -> bool:
    return all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(one, other, strict=True))


def check(tensor: Move, way: Way, turn: int) -> None:
    found = route(tensor, way, turn)
    wanted = {rank: whole for whole, members in holders(tensor.dst, tensor.shape).items() for rank in members}
    for rebuild in found.rebuilds:
        assert tiles(list(rebuild.parts), wanted[rebuild.members[0]])
        assert holders(tensor.dst, tensor.shape)[wanted[rebuild.members[0]]] == list(rebuild.members)
        for number, rank in enumerate(rebuild.members):
            wanted[rank] = rebuild.parts[number] if number < len(rebuild.parts) else ((0, 0),) * len(tensor.shape)
    for rank, part in wanted.items():
        assert tiles([piece.box for piece in found.pieces if piece.receiver == rank], part)
    for piece in found.pieces:
        assert numel(piece.box)
        assert within(piece.box, box(tensor.src, tensor.shape, piece.sender))
        if piece.receiver != piece.sender and piece.receiver in tensor.src.mesh:
            assert not within(piece.box, box(tensor.src, tensor.shape, piece.receiver))


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize(("ranks", "one"), ROWS, ids=NAMES)
def test_pieces_write_every_element_of_every_row_once(ranks: int, one: Row, way: Way) -> None:
    for turn, tensor in enumerate(one.tensors):
        assert max(*tensor.src.mesh.ranks, *tensor.dst.mesh.ranks) < ranks
        check(tensor, way, turn)


LAYOUTS = {tensor.src for ranks, one in ROWS for tensor in one.tensors if len(tensor.shape) == 2} | {
    tensor.dst for ranks, one in ROWS for tensor in one.tensors if len(tensor.shape) == 2
}


@given(
    *[st.sampled_from(sorted(LAYOUTS, key=repr))] * 2,
    st.tuples(*[st.integers(40, 90)] * 2),
    st.sampled_from(Way),
    st.integers(0, 9),
)
def test_so_do_those_between_any_two_layouts(
    src: Layout, dst: Layout, shape: tuple[int, int], way: Way, turn: int
) -> None:
    check(Move("a", "", shape, torch.float64, src, dst), way, turn)


@pytest.mark.parametrize(("ranks", "one"), ROWS, ids=NAMES)
def test_boxes_are_torch_s_chunks(ranks: int, one: Row) -> None:
    for tensor in {(each.src, each.dst, each.shape): each for each in one.tensors}.values():
        for layout in (tensor.src, tensor.dst):
            whole = torch.empty(tensor.shape, device="meta")
            everything = tuple((0, size) for size in tensor.shape)
            for rank in layout.mesh.ranks:
                mine, chunk = view(whole, everything, box(layout, tensor.shape, rank)), shard(whole, layout, rank)
                assert chunk is not None
                assert (mine.shape, mine.storage_offset()) == (chunk.shape, chunk.storage_offset())


def test_holders_of_the_same_take_turns() -> None:
    (tensor,) = row("4:R", "4:S(0)", 4, (("a", (8, 8)),)).tensors
    assert [piece.sender for piece in route(tensor, Way.STRIPES).pieces] == [0, 1, 2, 3]
    assert [piece.sender for piece in route(tensor, Way.STRIPES, 1).pieces] == [1, 2, 3, 0]


def test_an_exchange_stages_what_it_sends_and_rows_that_lie_together_nothing() -> None:
    for ranks in (2, 4, 8):
        found = {one.name: staging(one) for one in rows(ranks)}
        assert found["exchange 262 MB"] == 25600 * 5120 * 2 * (ranks - 1) // ranks**2
        assert found["exchange 16 KiB"] == 2**14 * (ranks - 1) // ranks**2
        others = ("point", "gather", "model 4B")
        assert not any(size for name, size in found.items() if name.startswith(others) and "," not in name)


def test_between_meshes_the_side_that_is_cut_across_stages_its_shard() -> None:
    found = {one.name: staging(one) for one in rows(8)}
    assert found["2 to 6, S(0) to S(1), 34 MB"] == 4096 * 4096 * 2 // 2
    assert found["6 to 2, S(1) to S(0), 34 MB"] == 4096 * 4096 * 2 // 2
    assert not any(
        size for name, size in found.items() if "S(1)" not in name and " to " in name and "model" not in name
    )
