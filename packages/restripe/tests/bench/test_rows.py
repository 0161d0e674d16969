"""The rows are those of the table, and their sizes what the table says."""

from __future__ import annotations

import math

import pytest
from torch.distributed.tensor import Replicate, Shard

from restripe.bench.rows import DTYPE, Move, dense, rows


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
    sizes = {"16 KiB": 2**14, "34 MB": 34e6, "262 MB": 262e6, "1 GiB": 2**30, "4B": 7.27e9}
    for row in rows():
        said = next(size for words, size in sizes.items() if row.name.endswith(words))
        assert abs(row.size - said) <= 0.02 * said


def test_names_are_distinct_and_every_contender_is_timed_twenty_times_or_more() -> None:
    assert len({row.name for row in rows()}) == len(rows())
    assert all(row.repeats >= 20 and 1 <= row.burst <= 20 for row in rows())


@pytest.mark.parametrize("size", [2, 4, 6])
def test_layouts(size: int) -> None:
    src, dst = Move.POINT.layouts(size)
    assert [*src.mesh.ranks, *dst.mesh.ranks] == list(range(size))
    assert src.placements == dst.placements == (Shard(0),)
    for move, placement in ((Move.EXCHANGE, Shard(1)), (Move.GATHER, Replicate())):
        src, dst = move.layouts(size)
        assert src.mesh == dst.mesh
        assert src.mesh.ranks == tuple(range(size))
        assert (src.placements, dst.placements) == ((Shard(0),), (placement,))


def test_only_an_exchange_may_stage_and_then_what_it_sends() -> None:
    staging = {row.name: row.staging(2) for row in rows()}
    assert staging.pop("exchange 262 MB") == 25600 * 5120 * 2 // 4
    assert staging.pop("exchange 16 KiB") == 2**12
    assert set(staging.values()) == {0}
