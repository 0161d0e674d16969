"""Plays a stream scenario on a CUDA device: the calls, and what their caller enqueues around them.

Every stream is busy before a call, so that nothing has been moved when the call returns. Memory that is free by then is
allocated again on all streams and written at once, which shows whether a transfer still uses it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from reshard_conformance.case.steps import StreamScenario
from reshard_conformance.contract import Stream, Work
from reshard_conformance.judge.inputs import RankInput, TensorRef

__all__ = ["ScenarioCall", "StreamScenarioRun"]

#: Calls a case of the scenario, by number, on a stream (None: the current one); returns a handle, if there is one.
ScenarioCall = Callable[[int, Stream | None], Work | None]

#: Clock cycles that a stream is kept busy: some 20 and 200 ms.
DELAY, LONG_DELAY = 40_000_000, 400_000_000
#: Sizes of the blocks that are allocated and written after a call: those of the caching allocator up to 32 KiB.
BLOCK_SIZES = range(512, 1 << 15, 512)
BLOCK_BYTE = 0x5A


class StreamScenarioRun:
    """One stream scenario on one rank.

    sides: the rank's inputs for each case. A source that the scenario drops is dropped from this list too.
    """

    def __init__(
        self, scenario: StreamScenario, sides: list[tuple[RankInput, RankInput]], device: torch.device
    ) -> None:
        self.scenario, self.sides, self.device = scenario, sides, device
        self.streams = {number: torch.cuda.Stream(device) for number in sorted(set(scenario.streams))}
        self.other_stream = torch.cuda.Stream(device)
        self.contents: list[tuple[torch.Tensor | None, ...]] = []
        self.snapshots: dict[int, torch.Tensor] = {}
        self.works: list[Work] = []
        self.dropped_storages: list[StorageWeakRef] = []
        self.written_blocks: list[torch.Tensor] = []
        self.late_returns = 0
        torch.cuda.synchronize(device)  # the inputs were made on the default stream
        for number, (src, dst) in enumerate(sides):
            home = self.home_stream(number)
            sides[number] = (allocate_on_stream(src, home), allocate_on_stream(dst, home))
            self.contents.append(tuple(copy_memory(rank_input) for rank_input in sides[number]))
            self.invert_contents(number)
        torch.cuda.synchronize(device)

    def home_stream(self, number: int) -> Stream:
        """Return the stream on which the case's tensors are allocated."""
        if self.scenario.usage == "foreign":
            return self.other_stream
        return self.stream_of(number) if self.scenario.usage == "freed" else torch.cuda.default_stream(self.device)

    def stream_of(self, number: int) -> Stream:
        return self.streams[self.scenario.streams[number]]

    def invert_contents(self, number: int) -> None:
        """Give the case's tensors wrong contents until its stream writes the right ones."""
        for rank_input in self.sides[number]:
            if rank_input.buffer is not None:
                rank_input.buffer.memory.bitwise_not_()

    def run(self, call: ScenarioCall) -> None:
        """Enqueue all cases, without waiting for the device."""
        for number in range(len(self.sides)):
            stream = self.stream_of(number)
            self.enqueue_contents(number, stream)
            if self.scenario.usage == "current":
                with torch.cuda.stream(stream):
                    work = call(number, None)
            else:
                work = call(number, stream)
            self.late_returns += stream.query()
            self.enqueue_read(number, stream, work)
            self.release_source(number, stream)
            self.write_free_memory()

    def enqueue_contents(self, number: int, stream: Stream) -> None:
        """Let the tensors get their content on the stream, or on another one for which the stream waits."""
        producer = self.other_stream if self.scenario.usage in {"produced", "foreign"} else stream
        with torch.cuda.stream(producer):
            torch.cuda._sleep(LONG_DELAY if self.scenario.usage == "unblocked" else DELAY)  # noqa: SLF001 - torch's own tests use it
            for rank_input, content in zip(self.sides[number], self.contents[number], strict=True):
                if rank_input.buffer is not None and content is not None:
                    rank_input.buffer.memory.copy_(content)
        if producer is not stream:
            stream.wait_event(producer.record_event())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(DELAY)  # noqa: SLF001 - as above

    def enqueue_read(self, number: int, stream: Stream, work: Work | None) -> None:
        """Read the destination on the stream, or on another one that waited for the work handle."""
        handled = self.scenario.usage == "handled" and work is not None
        with torch.cuda.stream(self.other_stream if handled else stream):
            if handled and work is not None:
                work.wait()
                self.works.append(work)
            snapshot = copy_memory(self.sides[number][1])
            if snapshot is not None:
                self.snapshots[number] = snapshot

    def release_source(self, number: int, stream: Stream) -> None:
        """Overwrite or drop the source, where the scenario does so."""
        src, dst = self.sides[number]
        if src.buffer is None or self.scenario.usage not in {"overwritten", "freed", "foreign"}:
            return
        if self.scenario.usage == "overwritten":
            with torch.cuda.stream(stream):
                src.buffer.memory.bitwise_not_()
        else:
            self.dropped_storages.append(StorageWeakRef(src.buffer.memory.untyped_storage()))
        self.sides[number] = RankInput(), dst

    def write_free_memory(self) -> None:
        """Allocate the memory that is free now, on every stream, and write it."""
        for stream in (*self.streams.values(), self.other_stream, torch.cuda.default_stream(self.device)):
            with torch.cuda.stream(stream):
                self.written_blocks += [
                    torch.full((size,), BLOCK_BYTE, dtype=torch.uint8, device=self.device) for size in BLOCK_SIZES
                ]

    def faults(self) -> list[str]:
        """Describe what is wrong, once the device has done all."""
        faults = [
            f"call {number}, destination as read in the stream's order: {sentence}"
            for number, snapshot in self.snapshots.items()
            for sentence in snapshot_differences(self.sides[number][1], snapshot)
        ]
        if self.scenario.usage == "unblocked" and self.late_returns == len(self.sides):
            faults.append("each call returned only when all that was enqueued before it had ended")
        if not all(work.is_completed() for work in self.works):
            faults.append("a work handle says that it is not completed when the device has done all")
        if self.written_blocks and bool(torch.cat(self.written_blocks).ne(BLOCK_BYTE).any()):
            faults.append("memory that was free when a call returned was written afterwards")
        gc.collect()
        if not all(storage.expired() for storage in self.dropped_storages):
            faults.append(
                "the source's memory is kept alive after the caller has dropped it and the transfers have ended"
            )
        return faults


def copy_memory(rank_input: RankInput) -> torch.Tensor | None:
    """Copy the side's memory on the current stream."""
    return None if rank_input.buffer is None else rank_input.buffer.memory.clone()


def allocate_on_stream(rank_input: RankInput, home: Stream) -> RankInput:
    """Return the input with its memory allocated on the stream `home`."""
    buffer, reference = rank_input.buffer, rank_input.reference
    if buffer is None or reference is None:
        return rank_input
    with torch.cuda.stream(home):
        copied = buffer.in_memory(buffer.memory.clone())
    home.synchronize()
    return RankInput(TensorRef(tuple(reference.shape), reference.dtype, copied.tensor), copied, rank_input.expected)


def snapshot_differences(dst: RankInput, snapshot: torch.Tensor) -> list[str]:
    return [] if dst.buffer is None else replace(dst.buffer, memory=snapshot).differences(dst.expected)
