"""What a run tells while it is on."""

from __future__ import annotations

from reshard_conformance.display import SECONDS, Progress
from reshard_conformance.plan import Chunk
from reshard_conformance.workers import Part, Pulse

ONE, OTHER = (Chunk("nccl", name, (3,), 0, 1, 1) for name in ("exact", "ordered"))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def part(chunk: Chunk, *layouts: bytes) -> Part:
    return Part(chunk, 9, frozenset(layouts), 9, {}, None)


def test_layouts_of_parts_that_are_under_way_count() -> None:
    clock = Clock()
    account = Progress(clock)
    clock.now += 10.0
    account.take(part(ONE, b"a", b"b"))
    account.take(Pulse(OTHER, 7, 5))
    pulse = Pulse(OTHER, 12, 8)
    account.take(pulse)
    told = "1 of 4 parts, 10 layouts, 1.0 a second, 0 failed (nccl, streams/ordered, 3 ranks)"
    assert account.line(pulse, 4) == told
    account.take(part(OTHER, b"b", b"c"))
    assert account.line(pulse, 4).startswith("2 of 4 parts, 3 layouts")


def test_a_line_is_due_now_and_then_and_at_the_end() -> None:
    clock = Clock()
    account = Progress(clock)
    assert account.due(ended=False)
    clock.now += SECONDS / 2
    assert not account.due(ended=False)
    assert account.due(ended=True)
    clock.now += SECONDS
    assert account.due(ended=False)
