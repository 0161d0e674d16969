"""The command line says in a sentence what it cannot do."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from restripe.bench.rows import rows
from restripe.bench.world import BenchError, gpus
from restripe.cli import app, chosen


def test_bench_needs_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    outcome = CliRunner().invoke(app, ["bench"])
    assert outcome.exit_code == 2
    assert outcome.output == "expected at least two GPUs on this host, found 1\n"


def test_an_odd_gpu_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
    assert gpus() == 4


def test_rows_are_chosen_by_a_part_of_their_name() -> None:
    assert chosen("") == list(rows())
    assert [row.name for row in chosen("exchange")] == ["exchange 16 KiB", "exchange 262 MB"]
    with pytest.raises(BenchError, match=r"no row is named 'none'; there are .*point 16 KiB"):
        chosen("none")
