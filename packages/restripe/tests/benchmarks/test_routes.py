"""Hand-written transfers write every element of every destination shard once, from ranks that hold it, in every row."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_bench.routes import (
    Box,
    RankTraffic,
    ReplicaStrategy,
    box_numel,
    box_view,
    holders,
    route,
    row_traffic,
    shard_box,
    staging_bytes,
)
from gpu_bench.rows import between_meshes, rows, shard_of
from restripe import Layout
from restripe.analysis.mapping import Move
from restripe.bench.transfers import Row

from .conftest import gather, row

ROWS = [(ranks, bench_row) for ranks in (2, 4, 8) for bench_row in rows(ranks)]
NAMES = [f"{bench_row.name} on {ranks}" for ranks, bench_row in ROWS]


def tiles(parts: list[Box], whole: Box) -> bool:
    """Return whether every element of the whole is in one of the parts, and nothing besides."""
    disjoint = all(not meet(part, other) for part, other in combinations(parts, 2))
    covered = sum(map(box_numel, parts)) == box_numel(whole)
    return disjoint and all(within(part, whole) for part in parts) and covered


def within(part: Box, whole: Box) -> bool:
    return all(lo <= low <= high <= hi for (low, high), (lo, hi) in zip(part, whole, strict=True))


def meet(box: Box, other: Box) -> bool:
    return all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(box, other, strict=True))


def check(move: Move, strategy: ReplicaStrategy, rotation: int) -> None:
    path = route(move, strategy, rotation)
    shards = holders(move.dst, move.shape)
    received = {rank: shard for shard, members in shards.items() for rank in members}
    for replication in path.replications:
        shard = received[replication.members[0]]
        assert tiles(list(replication.parts), shard)
        assert shards[shard] == list(replication.members)
        empty = ((0, 0),) * len(move.shape)
        for number, rank in enumerate(replication.members):
            received[rank] = replication.parts[number] if number < len(replication.parts) else empty
    for rank, part in received.items():
        assert tiles([transfer.box for transfer in path.transfers if transfer.receiver == rank], part)
    for transfer in path.transfers:
        assert box_numel(transfer.box)
        assert within(transfer.box, shard_box(move.src, move.shape, transfer.sender))
        if transfer.receiver != transfer.sender and transfer.receiver in move.src.mesh:
            assert not within(transfer.box, shard_box(move.src, move.shape, transfer.receiver))


@pytest.mark.parametrize("strategy", ReplicaStrategy)
@pytest.mark.parametrize(("ranks", "bench_row"), ROWS, ids=NAMES)
def test_transfers_write_every_element_of_every_row_once(ranks: int, bench_row: Row, strategy: ReplicaStrategy) -> None:
    for number, move in enumerate(bench_row.tensors):
        assert max(*move.src.mesh.ranks, *move.dst.mesh.ranks) < ranks
        check(move, strategy, number)


MATRICES = [move for _, bench_row in ROWS for move in bench_row.tensors if len(move.shape) == 2]
LAYOUTS = {move.src for move in MATRICES} | {move.dst for move in MATRICES}


@given(
    *[st.sampled_from(sorted(LAYOUTS, key=repr))] * 2,
    st.tuples(*[st.integers(40, 90)] * 2),
    st.sampled_from(ReplicaStrategy),
    st.integers(0, 9),
)
def test_so_do_those_between_any_two_layouts(
    src: Layout, dst: Layout, shape: tuple[int, int], strategy: ReplicaStrategy, rotation: int
) -> None:
    check(Move("a", "", shape, torch.float64, src, dst), strategy, rotation)


@pytest.mark.parametrize(("ranks", "bench_row"), ROWS, ids=NAMES)
def test_boxes_are_torch_s_chunks(ranks: int, bench_row: Row) -> None:
    for move in {(move.src, move.dst, move.shape): move for move in bench_row.tensors}.values():
        for side in (move.src, move.dst):
            whole = torch.empty(move.shape, device="meta")
            everything = tuple((0, size) for size in move.shape)
            for rank in side.mesh.ranks:
                view = box_view(whole, everything, shard_box(side, move.shape, rank))
                chunk = shard_of(whole, side, rank)
                assert chunk is not None
                assert (view.shape, view.storage_offset()) == (chunk.shape, chunk.storage_offset())


def test_holders_of_the_same_take_turns() -> None:
    (move,) = row("4:R", "4:S(0)", 4, (("a", (8, 8)),)).tensors
    assert [transfer.sender for transfer in route(move, ReplicaStrategy.STRIPES).transfers] == [0, 1, 2, 3]
    assert [transfer.sender for transfer in route(move, ReplicaStrategy.STRIPES, 1).transfers] == [1, 2, 3, 0]


def test_an_exchange_stages_what_it_sends_and_contiguous_rows_nothing() -> None:
    for ranks in (2, 4, 8):
        staged = {bench_row.name: staging_bytes(bench_row) for bench_row in rows(ranks)}
        assert staged["exchange 262 MB"] == 25600 * 5120 * 2 * (ranks - 1) // ranks**2
        assert staged["exchange 16 KiB"] == 2**14 * (ranks - 1) // ranks**2
        others = ("point", "gather", "model 4B")
        assert not any(size for name, size in staged.items() if name.startswith(others) and "," not in name)


def test_between_meshes_the_side_that_is_cut_across_stages_its_shard() -> None:
    staged = {bench_row.name: staging_bytes(bench_row) for bench_row in rows(8)}
    assert staged["2 to 6, S(0) to S(1), 34 MB"] == 4096 * 4096 * 2 // 2
    assert staged["6 to 2, S(1) to S(0), 34 MB"] == 4096 * 4096 * 2 // 2
    assert not any(
        size for name, size in staged.items() if "S(1)" not in name and " to " in name and "model" not in name
    )


REPLICATED = [(ranks, pair) for ranks in (4, 8) for pair in between_meshes(ranks) if " to R" in pair.name]


@pytest.mark.parametrize(("ranks", "bench_row"), REPLICATED, ids=[bench_row.name for _, bench_row in REPLICATED])
def test_every_byte_crosses_once_and_stripes_spread_it_over_the_replicas(ranks: int, bench_row: Row) -> None:
    traffic = row_traffic(bench_row)
    (move,) = bench_row.tensors
    groups = len(move.dst.mesh.ranks) // move.dst.replicas
    assert traffic["restripe"].total == traffic["representative"].total == bench_row.size_bytes
    chunk = -(-move.shape[0] // groups)
    assert traffic["representative"].busiest == bench_row.size_bytes // move.shape[0] * chunk
    assert traffic["restripe"].busiest == bench_row.size_bytes // move.shape[0] * -(-chunk // move.dst.replicas)


def test_what_stays_on_a_rank_does_not_cross() -> None:
    bench_row = gather(4, (("a", (64, 96)),))
    quarters = bench_row.size_bytes * 3 // 4
    assert row_traffic(bench_row) == {"restripe": RankTraffic(0, 0), "representative": RankTraffic(quarters, quarters)}
