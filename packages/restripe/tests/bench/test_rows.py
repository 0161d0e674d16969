"""The rows are those of the table, and their sizes what the table says."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from torch.distributed.tensor import Replicate, Shard

from restripe.bench.rows import DTYPE, between, dense, left_out, rows


def test_the_4b_model_has_396_tensors_of_7_27_gb() -> None:
    tensors = list(dense())
    assert len({name for name, _ in tensors}) == len(tensors) == 396
    size = sum(math.prod(shape) for _, shape in tensors) * DTYPE.itemsize
    assert round(size / 1e9, 2) == 7.27
    layer = [shape for name, shape in tensors if name.startswith("layers.35.")]
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
        assert abs(row.size - said) <= 0.02 * said


def test_names_are_distinct_and_every_contender_is_timed_often() -> None:
    for found in (rows(2), rows(4), rows(8)):
        assert len({row.name for row in found}) == len(found)
        assert all(row.repeats >= 10 for row in found)
        assert all(1 <= row.burst <= 20 for row in found)


def test_on_two_ranks_there_are_the_rows_of_every_host() -> None:
    names = ["point 16 KiB", "point 34 MB", "point 262 MB", "point 1 GiB"]
    names += ["exchange 16 KiB", "exchange 262 MB", "gather 262 MB", "model 4B"]
    for ranks in (2, 6, 16):
        assert [row.name for row in rows(ranks)] == names
    assert [row.name for row in rows(8)][: len(names)] == names


@pytest.mark.parametrize("size", [2, 4, 6])
def test_layouts_of_every_host(size: int) -> None:
    found = {row.name: [(one.src, one.dst) for one in row.tensors] for row in rows(size)}
    for name in ("point 34 MB", "model 4B"):
        ((src, dst),) = set(found[name])
        assert [*src.mesh.ranks, *dst.mesh.ranks] == list(range(size))
        assert src.placements == dst.placements == (Shard(0),)
    for name, placement in (("exchange 262 MB", Shard(1)), ("gather 262 MB", Replicate())):
        ((src, dst),) = found[name]
        assert src.mesh == dst.mesh
        assert src.mesh.ranks == tuple(range(size))
        assert (src.placements, dst.placements) == ((Shard(0),), (placement,))


def test_between_disjoint_meshes_every_move_has_every_size_and_every_rank_takes_part() -> None:
    counts = Counter(row.name.split(", ")[0] for row in between(8) if len(row.tensors) == 1)
    assert counts == {"4 to 4": 18, "2 to 6": 18, "6 to 2": 15}  # 2 ranks have no 2 x 1 beside R
    assert Counter(row.name.split(", ")[0] for row in between(4)) == {"2 to 2": 15, "model 4B": 2}
    for ranks in (4, 8):
        for row in between(ranks):
            for one in row.tensors:
                assert [*one.src.mesh.ranks, *one.dst.mesh.ranks] == list(range(ranks))


def test_a_row_says_its_layouts() -> None:
    found = {row.name: row.tensors[0] for row in between(8)}
    one = found["2 to 6, S(0) to R,S(0), 1 GiB"]
    assert (one.src.mesh.shape, one.src.placements) == ((2,), (Shard(0),))
    assert (one.dst.mesh.shape, one.dst.placements) == ((2, 3), (Replicate(), Shard(0)))
    assert found["6 to 2, R to S(0), 34 MB"].src.placements == (Replicate(),)


def test_the_models_have_the_4b_model_s_tensors_in_the_mappings_layouts() -> None:
    found = {row.name: row for row in between(8) if len(row.tensors) > 1}
    assert list(found) == [f"model 4B, {train} to TP4" for train in ("TP4", "TP2xDP2", "DP4")]
    for row in found.values():
        assert sorted(one.shape for one in row.tensors) == sorted(shape for _, shape in dense())
        for one in row.tensors:
            cut = {"o": Shard(1), "down": Shard(1), "norms": Replicate()}.get(one.kind, Shard(0))
            assert (one.dst.mesh.shape, one.dst.placements) == ((4,), (cut,))
    assert {one.src.placements for one in found["model 4B, DP4 to TP4"].tensors} == {(Replicate(),)}
    gate = next(one for one in found["model 4B, TP2xDP2 to TP4"].tensors if one.name.endswith("gate"))
    assert (gate.src.mesh.shape, gate.src.placements) == ((2, 2), (Replicate(), Shard(0)))


def test_it_is_said_which_rows_are_left_out() -> None:
    assert left_out(8) == ""
    assert left_out(4) == "left out on 4 ranks: 4 to 4, 2 to 6 and 6 to 2, which need 8"
    assert left_out(2).startswith("left out on 2 ranks: 2 to 2, which needs 4, and 4 to 4")


def test_timed_once_a_row_is_called_once() -> None:
    for row in rows(4):
        assert (row.once.repeats, row.once.burst, row.once.tensors) == (1, 1, row.tensors)
