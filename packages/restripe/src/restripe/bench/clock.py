"""Time of one call: on the host, from call to completion, and on the GPU."""

from __future__ import annotations

import mmap
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from restripe.bench.calls import Call, nothing

CYCLES = 2e9  # a second of a GPU that runs at 2 GHz; slower ones wait longer, which does no harm
SLOT = 8  # words between two ranks' counters: a cache line each


class Gate:
    """A barrier between the processes of one host that lets them go within microseconds: they spin on a shared file.

    Args:
        path: a file of 64 bytes a rank, all zero at first.
    """

    def __init__(self, path: Path, rank: int, size: int) -> None:
        with path.open("r+b") as file:
            self._counters = memoryview(mmap.mmap(file.fileno(), 64 * size)).cast("q")
        self._rank, self._slots, self._passed = rank, range(0, SLOT * size, SLOT), 0

    def wait(self) -> None:
        """Return once every rank has called as often as this one."""
        self._passed += 1
        self._counters[SLOT * self._rank] = self._passed
        for slot in self._slots:
            while self._counters[slot] < self._passed:
                pass


class Alone(NamedTuple):
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
        align: enqueues something that no rank's GPU passes before all have come to it.
    """

    def __init__(self, gate: Gate, align: Call) -> None:
        self._gate, self._align = gate, align

    def alone(self, call: Call) -> Alone:
        """Time one call that finds the GPU idle, and its own code and data near, since it comes after one like it."""
        call()
        torch.cuda.synchronize()
        self._gate.wait()
        start = perf_counter()
        call()
        returned = perf_counter()
        torch.cuda.synchronize()
        return Alone(returned - start, perf_counter() - start)

    def burst(self, call: Call, count: int, lead: float) -> Burst:
        """Time `count` calls in a row, after one that does not count.

        Args:
            lead: seconds that the GPU is kept waiting first, so that the host is ahead of it and its time does not count.
        """
        call()
        torch.cuda.synchronize()
        self._gate.wait()
        return ahead(call, count, lead, self._align)


def ahead(call: Call, count: int, lead: float, align: Call = nothing) -> Burst:
    """Time `count` calls; those on the GPU from when it has waited for `lead` seconds and come past `align`."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(int(lead * CYCLES))  # noqa: SLF001 - the only wait on the GPU that torch has
    align()
    start.record()
    called = perf_counter()
    for _ in range(count):
        call()
    returned = perf_counter()
    end.record()
    end.synchronize()
    return Burst((returned - called) / count, float(start.elapsed_time(end)) / 1e3 / count)
