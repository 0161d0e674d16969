"""How many ranks take part, how long they may take, and where each has its GPU."""

from __future__ import annotations

import os

import pytest
import torch

from restripe.bench.rows import rows
from restripe.bench.world import SHARING, BenchError, allowed, crowded, home, taking_part


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    for name in SHARING:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("two_gpus")
def test_as_many_ranks_take_part_as_there_are_gpus_or_as_are_asked_for() -> None:
    assert [taking_part(), taking_part(2), taking_part(8)] == [2, 2, 8]
    assert [crowded(ranks) for ranks in (2, 4, 8)] == [False, True, True]
    for asked in (0, 1, 3, -2):
        with pytest.raises(BenchError, match=f"even number of ranks, at least two, got {asked}"):
            taking_part(asked)


def test_one_gpu_is_enough_for_the_ranks_asked_for_and_none_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert taking_part(2) == 2
    with pytest.raises(BenchError, match="at least two GPUs on this host, found 1"):
        taking_part()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(BenchError, match="found none"):
        taking_part(2)


@pytest.mark.usefixtures("two_gpus")
def test_ranks_go_round_and_nccl_hears_of_it_only_where_they_share_a_gpu() -> None:
    assert [home(rank, 2).index for rank in range(2)] == [0, 1]
    assert not SHARING.keys() & os.environ.keys()
    assert [home(rank, 8).index for rank in range(8)] == [0, 1] * 4
    assert SHARING.items() <= os.environ.items()


def test_a_run_may_take_four_minutes_and_with_many_rows_nine() -> None:
    assert [allowed(rows(ranks)) for ranks in (2, 4, 8)] == [240, 510, 510]
    assert allowed(rows(2)[:1]) == 240
    assert allowed(rows(4)[:12]) == 360
