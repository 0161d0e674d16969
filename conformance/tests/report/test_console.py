"""The progress that a run shows."""

from __future__ import annotations

from reshard_conformance.report.console import LINE_INTERVAL, RunProgress
from reshard_conformance.run.plan import Chunk
from reshard_conformance.run.workers import ChunkProgress, ChunkResult

ONE, OTHER = (Chunk("nccl", name, (3,), 0, 1, 1) for name in ("exact", "ordered"))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def part(chunk: Chunk, *layouts: bytes) -> ChunkResult:
    return ChunkResult(chunk, 9, frozenset(layouts), 9, {}, None)


def test_layouts_of_running_parts_count() -> None:
    clock = Clock()
    run = RunProgress(clock)
    clock.now += 10.0
    run.add(part(ONE, b"a", b"b"))
    run.add(ChunkProgress(OTHER, 7, 5))
    pulse = ChunkProgress(OTHER, 12, 8)
    run.add(pulse)
    line = "1 of 4 parts, 10 layouts, 1.0 a second, 0 failed (nccl, streams/ordered, 3 ranks)"
    assert run.line(pulse, 4) == line
    run.add(part(OTHER, b"b", b"c"))
    assert run.line(pulse, 4).startswith("2 of 4 parts, 3 layouts")


def test_a_line_is_due_now_and_then_and_at_the_end() -> None:
    clock = Clock()
    run = RunProgress(clock)
    assert run.is_due(ended=False)
    clock.now += LINE_INTERVAL / 2
    assert not run.is_due(ended=False)
    assert run.is_due(ended=True)
    clock.now += LINE_INTERVAL
    assert run.is_due(ended=False)
