"""The barrier holds everybody, and a burst is timed without the host."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpu_bench.clock import CYCLES_PER_SECOND, Clock, SpinBarrier, time_behind_wait
from gpu_bench.moves import PreparedMove

from .conftest import Record


def test_nobody_passes_the_barrier_before_all_have_come(tmp_path: Path) -> None:
    path, size, rounds = tmp_path / "barrier", 3, 50
    path.write_bytes(bytes(64 * size))
    arrivals = [0] * size
    early = []

    def rank(number: int) -> None:
        barrier = SpinBarrier(path, number, size)
        for turn in range(1, rounds + 1):
            arrivals[number] = turn
            barrier.wait()
            early.extend([turn] if min(arrivals) < turn else [])

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert arrivals == [rounds] * size
    assert not early


def test_a_burst_is_timed_from_where_the_gpus_are_in_step(gpu: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_bench.clock.perf_counter", lambda: float(len(gpu)))
    spent = time_behind_wait(gpu.note("call"), 3, 0.5, gpu.note("align"))
    assert gpu == ["sleep", "align", "event", "call", "call", "call", "event", "synchronize"]
    assert spent == pytest.approx((1, 1e-3))


def test_the_gpu_is_kept_waiting_as_long_as_the_host_needs(gpu: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr("torch.cuda._sleep", waits.append)
    time_behind_wait(gpu.note("call"), 1, 0.25)
    assert waits == [CYCLES_PER_SECOND / 4]


def test_a_single_call_is_warm_finds_the_gpu_idle_and_is_waited_for(
    gpu: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "barrier"
    path.write_bytes(bytes(64))
    monkeypatch.setattr("gpu_bench.clock.perf_counter", lambda: float(len(gpu)))
    single = Clock(SpinBarrier(path, 0, 1), gpu.note("align")).time_single(gpu.note("call"))
    assert gpu == ["call", "synchronize", "call", "synchronize"]
    assert (single.host, single.wall) == (1, 2)


@pytest.mark.parametrize("pause", [False, True])
def test_a_refit_is_timed_in_steps_and_waits_between_them_are_not_the_host_s(
    gpu: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, pause: bool
) -> None:
    path = tmp_path / "barrier"
    path.write_bytes(bytes(64))
    monkeypatch.setattr("gpu_bench.clock.perf_counter", lambda: float(len(gpu)))
    steps = gpu.note("one"), gpu.note("other")
    clock = Clock(SpinBarrier(path, 0, 1), gpu.note("align"))
    refit = clock.time_refit(PreparedMove(gpu.note("call"), steps=steps), pause=pause)
    waits = ["synchronize"] * pause
    assert gpu == ["synchronize", "one", *waits, "other", *waits, "synchronize"]
    assert (refit.host, refit.wall) == (2, 5 if pause else 3)


def test_on_the_cpu_the_host_s_time_is_what_its_thread_computes(
    gpu: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "barrier"
    path.write_bytes(bytes(64))
    monkeypatch.setattr("gpu_bench.clock.perf_counter", lambda: 100.0 * len(gpu))
    monkeypatch.setattr("gpu_bench.clock.thread_time", lambda: float(len(gpu)))
    clock = Clock(SpinBarrier(path, 0, 1), gpu.note("align"), cpu_time=True)
    refit = clock.time_refit(PreparedMove(gpu.note("call")), pause=False)
    assert (refit.host, refit.wall) == (1, 200)


def test_a_burst_comes_after_a_call_that_does_not_count(
    gpu: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "barrier"
    path.write_bytes(bytes(64))
    monkeypatch.setattr("gpu_bench.clock.perf_counter", lambda: float(len(gpu)))
    Clock(SpinBarrier(path, 0, 1), gpu.note("align")).time_burst(gpu.note("call"), 2, 0.5)
    assert gpu == ["call", "synchronize", "sleep", "align", "event", "call", "call", "event", "synchronize"]
