"""The rows are those of the table, and their sizes what the table says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from torch.distributed.tensor import Replicate, Shard

from gpu_bench.rows import between_meshes, consumer_rows, left_out, rows, shrink
from gpu_bench.timing import burst_calls
from restripe.analysis.models import parameters


def test_the_4b_model_has_396_tensors_of_7_27_gb() -> None:
    (row,) = (row for row in rows(2) if row.name == "model 4B")
    assert len({move.name for move in row.tensors}) == len(row.tensors) == 396
    assert round(row.size_bytes / 1e9, 2) == 7.27
    layer = [move.shape for move in row.tensors if move.name.startswith("layers.35.")]
    assert sorted(layer) == sorted(
        [
            *[(4096, 2560), (1024, 2560), (1024, 2560), (2560, 4096)],
            *[(9728, 2560), (9728, 2560), (2560, 9728), (2560,), (2560,), (128,), (128,)],
        ]
    )


def test_a_row_is_named_after_its_size() -> None:
    sizes = {"16 KiB": 2**14, "34 MB": 34e6, "262 MB": 262e6, "1 GiB": 2**30, "model 4B": 7.27e9}
    for row in (*rows(2), *rows(4), *rows(8)):
        said = next(size for words, size in sizes.items() if row.name.endswith(words) or row.name.startswith(words))
        assert abs(row.size_bytes - said) <= 0.02 * said


def test_names_are_distinct_and_every_contender_is_timed_often() -> None:
    for of_world in (rows(2), rows(4), rows(8)):
        assert len({row.name for row in of_world}) == len(of_world)
        assert all(row.repeats >= 10 for row in of_world)
        assert all(1 <= burst_calls(row) <= 20 for row in of_world)


def test_on_two_ranks_there_are_the_rows_of_every_host() -> None:
    names = ["point 16 KiB", "point 34 MB", "point 262 MB", "point 1 GiB"]
    names += ["exchange 16 KiB", "exchange 262 MB", "gather 262 MB", "model 4B"]
    for ranks in (2, 6, 16):
        assert [row.name for row in rows(ranks)] == names
    assert [row.name for row in rows(8)][: len(names)] == names


@pytest.mark.parametrize("size", [2, 4, 6])
def test_layouts_of_every_host(size: int) -> None:
    by_name = {row.name: [(move.src, move.dst) for move in row.tensors] for row in rows(size)}
    for name in ("point 34 MB", "model 4B"):
        ((src, dst),) = set(by_name[name])
        assert [*src.mesh.ranks, *dst.mesh.ranks] == list(range(size))
        assert src.placements == dst.placements == (Shard(0),)
    for name, placement in (("exchange 262 MB", Shard(1)), ("gather 262 MB", Replicate())):
        ((src, dst),) = by_name[name]
        assert src.mesh == dst.mesh
        assert src.mesh.ranks == tuple(range(size))
        assert (src.placements, dst.placements) == ((Shard(0),), (placement,))


def test_between_disjoint_meshes_every_move_has_every_size_and_every_rank_takes_part() -> None:
    counts = Counter(row.name.split(", ")[0] for row in between_meshes(8) if len(row.tensors) == 1)
    assert counts == {"4 to 4": 18, "2 to 6": 18, "6 to 2": 15}  # 2 ranks have no 2 x 1 beside R
    assert Counter(row.name.split(", ")[0] for row in between_meshes(4)) == {"2 to 2": 15, "model 4B": 2}
    for ranks in (4, 8):
        for row in between_meshes(ranks):
            for move in row.tensors:
                assert [*move.src.mesh.ranks, *move.dst.mesh.ranks] == list(range(ranks))


def test_a_row_says_its_layouts() -> None:
    by_name = {row.name: row.tensors[0] for row in between_meshes(8)}
    move = by_name["2 to 6, S(0) to R,S(0), 1 GiB"]
    assert (move.src.mesh.shape, move.src.placements) == ((2,), (Shard(0),))
    assert (move.dst.mesh.shape, move.dst.placements) == ((2, 3), (Replicate(), Shard(0)))
    assert by_name["6 to 2, R to S(0), 34 MB"].src.placements == (Replicate(),)


def test_the_models_have_the_4b_model_s_tensors_in_the_mappings_layouts() -> None:
    by_name = {row.name: row for row in between_meshes(8) if len(row.tensors) > 1}
    assert list(by_name) == [f"model 4B, {train} to TP4" for train in ("TP4", "TP2xDP2", "DP4")]
    for row in by_name.values():
        assert sorted(move.shape for move in row.tensors) == sorted(move.shape for move in parameters("qwen3-4b"))
        for move in row.tensors:
            cut = {"o": Shard(1), "down": Shard(1), "norms": Replicate()}.get(move.kind, Shard(0))
            assert (move.dst.mesh.shape, move.dst.placements) == ((4,), (cut,))
    assert {move.src.placements for move in by_name["model 4B, DP4 to TP4"].tensors} == {(Replicate(),)}
    gate = next(move for move in by_name["model 4B, TP2xDP2 to TP4"].tensors if move.name.endswith("gate"))
    assert (gate.src.mesh.shape, gate.src.placements) == ((2, 2), (Replicate(), Shard(0)))


def test_it_is_said_which_rows_are_left_out() -> None:
    assert left_out(8) == ""
    assert left_out(4) == "left out on 4 ranks: 4 to 4, 2 to 6, 6 to 2 and consumer stages, which need 8"
    assert left_out(2).startswith("left out on 2 ranks: 2 to 2, which needs 4, and 4 to 4")


def test_timed_once_a_row_is_called_once() -> None:
    for row in rows(4):
        assert burst_calls(replace(row, repeats=1)) == 1


def test_a_consumer_s_refits_are_of_the_4b_model_and_of_single_experts() -> None:
    by_name = {row.name: row for row in consumer_rows(2)}
    counts = {"consumer 396": 396, "consumer 9000": 9000, "consumer 18867": 18867, "consumer 396 fresh": 396}
    assert {name: len(row.tensors) for name, row in by_name.items()} == counts
    assert round(by_name["consumer 396"].size_bytes / 1e9, 2) == 7.27
    assert round(by_name["consumer 18867"].size_bytes / 1e9) == 61
    assert {name for name, row in by_name.items() if row.fresh} == {"consumer 396 fresh"}
    for row in by_name.values():
        assert row.repeats >= 5
        assert len({move.name for move in row.tensors}) == len(row.tensors)
        assert {(move.src.mesh.ranks, move.dst.mesh.ranks) for move in row.tensors} == {((0,), (1,))}
        assert len(row.stage_moves(0)) == len(row.tensors)
    shapes = Counter(move.shape for move in by_name["consumer 18867"].tensors)
    assert (shapes[768, 2048], shapes[2048, 768]) == (2 * 48 * 128, 48 * 128)


def test_two_stages_share_the_generator_s_ranks_and_have_tensors_of_their_own() -> None:
    *_, row = consumer_rows(8)
    assert (row.name, row.repeats, row.shared_meshes) == ("consumer stages", 10, False)
    stages = [row.stage_moves(stage) for stage in range(2)]
    assert [len(stage) for stage in stages] == [44, 44]
    assert sorted(number for stage in stages for number, _ in stage) == list(range(88))
    for (number, stage), trainers in zip(enumerate(stages), ((0, 1), (2, 3)), strict=True):
        assert row.groups[number] == (*trainers, 4, 5, 6, 7)
        for _, move in stage:
            assert move.src.mesh.ranks == trainers
            assert move.dst.mesh.ranks == (4, 5, 6, 7)


def test_a_row_shrinks_to_fewer_bytes_and_as_many_calls() -> None:
    for row in consumer_rows(8):
        small = shrink(row, 64)
        assert [len(move.shape) for move in small.tensors] == [len(move.shape) for move in row.tensors]
        assert small.size_bytes < row.size_bytes / 1000
        assert min(size for move in small.tensors for size in move.shape) >= 8
        assert replace(small, tensors=row.tensors) == row
