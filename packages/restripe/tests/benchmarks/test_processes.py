"""The number of ranks that take part, the time that they may take, and each rank's GPU."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from gpu_bench.processes import (
    SHARED_GPU_SETTINGS,
    gpu_count,
    rank_count,
    select_gpu,
    shared_gpu_row,
    shares_gpus,
    time_limit,
)
from gpu_bench.rows import consumer_rows, rows
from restripe.bench.transfers import BenchError


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    for name in SHARED_GPU_SETTINGS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("two_gpus")
def test_as_many_ranks_take_part_as_there_are_gpus_or_as_are_asked_for() -> None:
    assert [rank_count(), rank_count(2), rank_count(8)] == [2, 2, 8]
    assert [shares_gpus(ranks) for ranks in (2, 4, 8)] == [False, True, True]
    for asked in (0, 1, 3, -2):
        with pytest.raises(BenchError, match=f"even number of ranks, at least two, got {asked}"):
            rank_count(asked)


def test_one_gpu_is_enough_for_the_ranks_asked_for_and_none_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert rank_count(2) == 2
    with pytest.raises(BenchError, match="at least two GPUs on this host, found 1"):
        rank_count()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(BenchError, match="found none"):
        rank_count(2)


def test_an_odd_gpu_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
    assert gpu_count() == 4


@pytest.mark.usefixtures("two_gpus")
def test_ranks_go_round_and_nccl_hears_of_it_only_where_they_share_a_gpu() -> None:
    assert [select_gpu(rank, 2).index for rank in range(2)] == [0, 1]
    assert not SHARED_GPU_SETTINGS.keys() & os.environ.keys()
    assert [select_gpu(rank, 8).index for rank in range(8)] == [0, 1] * 4
    assert SHARED_GPU_SETTINGS.items() <= os.environ.items()


def test_a_run_may_take_four_minutes_and_with_many_rows_nine() -> None:
    assert [time_limit(rows(ranks)) for ranks in (2, 4, 8)] == [240, 510, 510]
    assert time_limit(rows(2)[:1]) == 240
    assert time_limit(rows(4)[:12]) == 360
    assert time_limit(rows(2)[:1], shared=True) == 510


def test_where_ranks_share_a_gpu_rows_are_timed_once_and_consumer_rows_are_small() -> None:
    for row in rows(8):
        assert shared_gpu_row(row) == replace(row, repeats=1)
    for row in consumer_rows(8):
        shared = shared_gpu_row(row)
        assert len(shared.tensors) == len(row.tensors)
        assert shared.repeats == (2 if len(row.tensors) > 1000 else 5)
        assert shared.size_bytes < 2e9
