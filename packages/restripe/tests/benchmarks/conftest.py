"""A GPU that only keeps a record: the benchmark's own logic can be tried without one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from restripe.analysis.mapping import Move
from restripe.analysis.spelling import layout
from restripe.bench.transfers import DTYPE, Row

from ..conftest import Worlds
from ..helpers.world import Group

__all__ = ["Event", "Group", "Record", "Stream", "Worlds", "exchange", "gather", "gpu", "point", "row"]

TWO = (("a", (64, 96)), ("b", (4, 8)))  # large enough to have bytes of every value
Tensors = Sequence[tuple[str, tuple[int, ...]]]


def row(src: str, dst: str, dst_start: int, tensors: Tensors = TWO, repeats: int = 30) -> Row:
    """Return a row of tensors of one pair of layouts; the destination's ranks count up from `dst_start`."""
    sides = layout(src), layout(dst, first=dst_start)
    return Row(f"{src} to {dst}", tuple(Move(name, "", shape, DTYPE, *sides) for name, shape in tensors), repeats)


def point(ranks: int, tensors: Tensors = TWO) -> Row:
    return row(f"{ranks // 2}:S(0)", f"{ranks // 2}:S(0)", ranks // 2, tensors)


def exchange(ranks: int, tensors: Tensors = TWO) -> Row:
    return row(f"{ranks}:S(0)", f"{ranks}:S(1)", 0, tensors)


def gather(ranks: int, tensors: Tensors = TWO) -> Row:
    return row(f"{ranks}:S(0)", f"{ranks}:R", 0, tensors)


class Stream:
    def __init__(self) -> None:
        self.waited: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


class Record(list[str]):
    """The calls of the GPU, in order; its streams, the current one at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = [Stream()]

    def stream(self, *_: object) -> Stream:
        """Return a new stream."""
        self.streams.append(Stream())
        return self.streams[-1]

    def note(self, name: str) -> Any:
        return lambda *_: self.append(name)


class Event:
    """An event that knows its place in the record: the time between two is a millisecond for each call between them."""

    def __init__(self, record: Record) -> None:
        self._record, self._index = record, 0

    def record(self) -> None:
        self._record.append("event")
        self._index = len(self._record)

    def synchronize(self) -> None:
        self._record.append("synchronize")

    def elapsed_time(self, end: Event) -> float:
        return float(end._index - 1 - self._index)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Record:
    record = Record()
    fakes = {
        "Event": lambda **_: Event(record),
        "Stream": record.stream,
        "current_stream": lambda *_: record.streams[0],
        "stream": lambda _: nullcontext(),
        "synchronize": record.note("synchronize"),
        "_sleep": record.note("sleep"),
        "memory_allocated": lambda: 0,
        "reset_peak_memory_stats": record.note("reset"),
        "max_memory_allocated": lambda: 0,
    }
    monkeypatch.setattr("gpu_bench.clock.has_gpu", lambda: True)
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return record
