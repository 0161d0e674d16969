"""Clocks: the time of one call, of many in a row, and of a refit, on the host and until the GPU is done."""

from __future__ import annotations

import mmap
from pathlib import Path
from time import perf_counter, thread_time
from typing import NamedTuple

import torch

from gpu_bench.moves import Call, PreparedMove, do_nothing

CYCLES_PER_SECOND = 2e9  # of a GPU that runs at 2 GHz; slower ones wait longer, which does no harm
SLOT_WORDS = 8  # between two ranks' counters: a cache line each


class SpinBarrier:
    """A barrier between the processes of one host that lets them go within microseconds: they spin on a shared file.

    Args:
        path: a file of 64 bytes a rank, all zero at first.
    """

    def __init__(self, path: Path, rank: int, size: int) -> None:
        with path.open("r+b") as file:
            self._counters = memoryview(mmap.mmap(file.fileno(), 64 * size)).cast("q")
        self._rank, self._slots, self._passed = rank, range(0, SLOT_WORDS * size, SLOT_WORDS), 0

    def wait(self) -> None:
        """Return once every rank has called as often as this one."""
        self._passed += 1
        self._counters[SLOT_WORDS * self._rank] = self._passed
        for slot in self._slots:
            while self._counters[slot] < self._passed:
                pass


class SingleCall(NamedTuple):
    """One call on an idle GPU, in seconds: until it returns, and until the GPU is done."""

    host: float
    wall: float


class Burst(NamedTuple):
    """One of many calls in a row, in seconds: on the host, which is ahead, and on the GPU."""

    host: float
    gpu: float


class Clock:
    """Times calls in step with the other ranks.

    Args:
        align: enqueues a collective that no rank's GPU passes before all have come to it.
        cpu_time: whether the host's time in a refit is what its thread computes: on the CPU a call returns when its bytes are
            there, and the wait for the other process is not the call's own cost.
    """

    def __init__(self, barrier: SpinBarrier, align: Call, *, cpu_time: bool = False) -> None:
        self._barrier, self._align, self._cpu_time = barrier, align, cpu_time

    def time_single(self, call: Call) -> SingleCall:
        """Time one call on an idle GPU, after one like it: its code and data are in the caches."""
        call()
        torch.cuda.synchronize()
        self._barrier.wait()
        start = perf_counter()
        call()
        returned = perf_counter()
        torch.cuda.synchronize()
        return SingleCall(returned - start, perf_counter() - start)

    def time_refit(self, move: PreparedMove, *, pause: bool) -> SingleCall:
        """Time one refit of many tensors on an idle GPU, without another one before it.

        Args:
            pause: wait for the GPU between the steps, untimed on the host: a shared one falls behind, its queue fills, and
                the host would wait for a place there.
        """
        host_clock = thread_time if self._cpu_time else perf_counter
        synchronize()
        self._barrier.wait()
        start, host = perf_counter(), 0.0
        for step in move.steps or (move.call,):
            called = host_clock()
            step()
            host += host_clock() - called
            if pause:
                synchronize()
        synchronize()
        return SingleCall(host, perf_counter() - start)

    def time_burst(self, call: Call, count: int, lead: float) -> Burst:
        """Time `count` calls in a row, after one that does not count.

        Args:
            lead: seconds that the GPU is kept waiting before, so that the host is ahead of it and its time does not count.
        """
        call()
        torch.cuda.synchronize()
        self._barrier.wait()
        return time_behind_wait(call, count, lead, self._align)


def time_behind_wait(call: Call, count: int, lead: float, align: Call = do_nothing) -> Burst:
    """Time `count` calls; on the GPU from when it has waited for `lead` seconds and come past `align`."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(int(lead * CYCLES_PER_SECOND))  # noqa: SLF001 - the only wait on the GPU that torch has
    align()
    start.record()
    called = perf_counter()
    for _ in range(count):
        call()
    returned = perf_counter()
    end.record()
    end.synchronize()
    return Burst((returned - called) / count, float(start.elapsed_time(end)) / 1e3 / count)


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if has_gpu():
        torch.cuda.synchronize()


def peak_bytes(call: Call) -> int:
    """Return the most that torch has allocated on the GPU during a call."""
    if has_gpu():
        torch.cuda.reset_peak_memory_stats()
    call()
    synchronize()
    return torch.cuda.max_memory_allocated()


def has_gpu() -> bool:
    """Return whether torch sees a GPU."""
    return torch.cuda.is_available()
