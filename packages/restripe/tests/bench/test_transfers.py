"""The rows of `restripe bench`, the bytes that it checks, and processes that fail."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

import pytest
import torch

from restripe.bench.transfers import (
    BenchError,
    RankTensors,
    Row,
    playable_rows,
    rank_count,
    rows,
    run_ranks,
    select_rows,
)

CPU = torch.device("cpu")
SMALL = [row for row in rows(2) if "16 KiB" in row.name]


def test_rows_are_selected_by_a_part_of_their_name() -> None:
    assert select_rows(rows(4), "", 4) == list(rows(4))
    assert [row.name for row in select_rows(rows(2), "exchange", 2)] == ["exchange 16 KiB", "exchange 262 MB"]
    with pytest.raises(BenchError, match=r"no row on 2 ranks is named '2 to 2'; there are .*point 16 KiB"):
        select_rows(rows(2), "2 to 2", 2)


def test_there_is_a_rank_a_gpu_in_pairs_and_on_the_cpu_two_without_the_largest_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for gpus, ranks in ((0, 2), (1, 2), (2, 2), (5, 4), (8, 8)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        assert rank_count() == ranks
        left_out = {row.name for row in rows(ranks)} - {row.name for row in playable_rows(ranks)}
        assert left_out == ({"point 1 GiB", "model 4B"} if gpus < 2 else set())


@pytest.mark.parametrize("row", SMALL, ids=[row.name for row in SMALL])
def test_every_byte_that_is_not_written_counts_as_wrong(row: Row) -> None:
    ranks = [RankTensors(row, rank, CPU) for rank in range(2)]
    (move,) = row.tensors
    written = ranks[1].destinations[move.name]
    assert ranks[1].wrong_bytes() > 0.99 * written.numel() * written.itemsize
    whole = torch.cat([tensors.sources[move.name] for tensors in ranks if tensors.sources])
    columns = whole.chunk(2, 1)[1] if "exchange" in row.name else whole
    written.copy_(columns)
    assert ranks[1].wrong_bytes() == 0
    written.view(-1).view(torch.uint8)[5] += 1
    assert ranks[1].wrong_bytes() == 1
    ranks[1].clear()
    assert not written.any()


def exit_early(rank: int, outlet: Connection) -> None:
    if rank == 0:
        outlet.send("first")
    os._exit(rank)


def test_a_process_that_ends_early_ends_the_run() -> None:
    received = run_ranks(exit_early, 2, (), 2, 60)
    assert next(received) == "first"
    with pytest.raises(BenchError, match="ended early"):
        next(received)
