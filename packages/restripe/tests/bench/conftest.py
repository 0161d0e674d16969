"""A GPU that only keeps a record: the benchmark's own logic can be tried without one."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from ..conftest import Worlds  # noqa: TID252 - the tests above are in no package with a name
from ..world import Group  # noqa: TID252

__all__ = ["Event", "Group", "Record", "Stream", "Worlds", "gpu"]


class Stream:
    def __init__(self) -> None:
        self.waited: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited.append(other)


class Record(list[str]):
    """What was asked of the GPU, in order; its streams, the current one first."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = [Stream()]

    def stream(self, *_: object) -> Stream:
        """A new stream."""
        self.streams.append(Stream())
        return self.streams[-1]

    def note(self, name: str) -> Any:
        return lambda *_: self.append(name)


class Event:
    """Notes its place; the time between two is that of the calls noted between them, a millisecond each."""

    def __init__(self, record: Record) -> None:
        self._record, self._place = record, 0

    def record(self) -> None:
        self._record.append("event")
        self._place = len(self._record)

    def synchronize(self) -> None:
        self._record.append("synchronize")

    def elapsed_time(self, end: Event) -> float:
        return float(end._place - 1 - self._place)


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
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return record
