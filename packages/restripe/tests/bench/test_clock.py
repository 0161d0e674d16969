"""The barrier holds everybody, and a burst is timed without the host."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from restripe.bench.clock import CYCLES, Clock, Gate, ahead

from .conftest import Record


def test_nobody_passes_the_gate_before_all_have_come(tmp_path: Path) -> None:
    path, size, rounds = tmp_path / "gate", 3, 50
    path.write_bytes(bytes(64 * size))
    come = [0] * size
    early = []

    def rank(number: int) -> None:
        gate = Gate(path, number, size)
        for turn in range(1, rounds + 1):
            come[number] = turn
            gate.wait()
            early.extend([turn] if min(come) < turn else [])

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert come == [rounds] * size
    assert not early


def test_a_burst_is_timed_from_where_the_gpus_are_in_step(gpu: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restripe.bench.clock.perf_counter", lambda: float(len(gpu)))
    spent = ahead(gpu.note("call"), 3, 0.5, gpu.note("align"))
    assert gpu == ["sleep", "align", "event", "call", "call", "call", "event", "synchronize"]
    assert spent == pytest.approx((1, 1e-3))


def test_the_gpu_is_kept_waiting_as_long_as_the_host_needs(gpu: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr("torch.cuda._sleep", waits.append)
    ahead(gpu.note("call"), 1, 0.25)
    assert waits == [CYCLES / 4]


def test_one_call_alone_is_warm_finds_the_gpu_idle_and_is_waited_for(
    gpu: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gate"
    path.write_bytes(bytes(64))
    monkeypatch.setattr("restripe.bench.clock.perf_counter", lambda: float(len(gpu)))
    alone = Clock(Gate(path, 0, 1), gpu.note("align")).alone(gpu.note("call"))
    assert gpu == ["call", "synchronize", "call", "synchronize"]
    assert (alone.host, alone.wall) == (1, 2)


def test_a_burst_comes_after_a_call_that_does_not_count(
    gpu: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gate"
    path.write_bytes(bytes(64))
    monkeypatch.setattr("restripe.bench.clock.perf_counter", lambda: float(len(gpu)))
    Clock(Gate(path, 0, 1), gpu.note("align")).burst(gpu.note("call"), 2, 0.5)
    assert gpu == ["call", "synchronize", "sleep", "align", "event", "call", "call", "event", "synchronize"]
