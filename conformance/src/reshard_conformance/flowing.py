"""Plays a flow on a CUDA device: calls on streams, and what their caller does while they are under way.

Every stream is kept busy before a call, so that nothing has been moved when the call returns; memory that was freed by then
is handed out again on all streams and written at once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from reshard_conformance.contract import Stream, Work
from reshard_conformance.handing import Handed, TensorRef
from reshard_conformance.oracle import Buffer
from reshard_conformance.steps import Flow

__all__ = ["Call", "Flowing"]

#: Calls a case of the flow, by number, on a stream (None: the current one); what it gives if it gives a handle.
Call = Callable[[int, Stream | None], Work | None]

#: Clock cycles that a stream is kept busy: some 20 and 200 ms.
DELAY, LONG = 40_000_000, 400_000_000
#: Sizes of the blocks that are allocated and written after a call: those of the caching allocator up to 32 KiB.
BLOCKS = range(512, 1 << 15, 512)
FLOOD = 0x5A


class Flowing:
    """One flow on one rank. sides: what the rank hands over for each case; what a scene drops is dropped there too."""

    def __init__(self, flow: Flow, sides: list[tuple[Handed, Handed]], device: torch.device) -> None:
        self.flow, self.sides, self.device = flow, sides, device
        self.streams = {number: torch.cuda.Stream(device) for number in sorted(set(flow.streams))}
        self.other = torch.cuda.Stream(device)
        self.kept: list[tuple[torch.Tensor | None, ...]] = []
        self.shots: dict[int, torch.Tensor] = {}
        self.works: list[Work] = []
        self.dropped: list[StorageWeakRef] = []
        self.floods: list[torch.Tensor] = []
        self.idle = 0
        torch.cuda.synchronize(device)  # what was handed over was made on the default stream
        for number, pair in enumerate(sides):
            home = self.home(number)
            sides[number] = (settled(pair[0], home), settled(pair[1], home))
            self.kept.append(tuple(memory_of(handed) for handed in sides[number]))
            self.spoil(number)
        torch.cuda.synchronize(device)

    def home(self, number: int) -> Stream:
        """The stream on which the case's tensors are allocated."""
        if self.flow.scene == "foreign":
            return self.other
        return self.stream(number) if self.flow.scene == "freed" else torch.cuda.default_stream(self.device)

    def stream(self, number: int) -> Stream:
        return self.streams[self.flow.streams[number]]

    def spoil(self, number: int) -> None:
        """Until its stream comes to it, no tensor of the case holds what it is to hold."""
        for handed in self.sides[number]:
            if handed.buffer is not None:
                handed.buffer.memory.bitwise_not_()

    def run(self, call: Call) -> None:
        """Enqueue all cases, without waiting for the device."""
        for number in range(len(self.sides)):
            stream = self.stream(number)
            self.produce(number, stream)
            if self.flow.scene == "current":
                with torch.cuda.stream(stream):
                    work = call(number, None)
            else:
                work = call(number, stream)
            self.idle += stream.query()
            self.read(number, stream, work)
            self.give_up(number, stream)
            self.flood()

    def produce(self, number: int, stream: Stream) -> None:
        """Let the tensors get their content on the stream, or on another one that it waits for."""
        producer = self.other if self.flow.scene in {"produced", "foreign"} else stream
        with torch.cuda.stream(producer):
            torch.cuda._sleep(LONG if self.flow.scene == "unblocked" else DELAY)  # noqa: SLF001 - torch's own tests use it
            for handed, kept in zip(self.sides[number], self.kept[number], strict=True):
                if handed.buffer is not None and kept is not None:
                    handed.buffer.memory.copy_(kept)
        if producer is not stream:
            stream.wait_event(producer.record_event())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(DELAY)  # noqa: SLF001 - as above

    def read(self, number: int, stream: Stream, work: Work | None) -> None:
        """Enqueue a read of the destination: on the stream, or where a handle was waited for on another one."""
        handled = self.flow.scene == "handled" and work is not None
        with torch.cuda.stream(self.other if handled else stream):
            if handled and work is not None:
                work.wait()
                self.works.append(work)
            shot = memory_of(self.sides[number][1])
            if shot is not None:
                self.shots[number] = shot

    def give_up(self, number: int, stream: Stream) -> None:
        """Overwrite or drop the source, where the scene says so."""
        src, dst = self.sides[number]
        if src.buffer is None or self.flow.scene not in {"overwritten", "freed", "foreign"}:
            return
        if self.flow.scene == "overwritten":
            with torch.cuda.stream(stream):
                src.buffer.memory.bitwise_not_()
        else:
            self.dropped.append(StorageWeakRef(src.buffer.memory.untyped_storage()))
        self.sides[number] = Handed(), dst

    def flood(self) -> None:
        """Allocate what was freed, on every stream, and write it."""
        for stream in (*self.streams.values(), self.other, torch.cuda.default_stream(self.device)):
            with torch.cuda.stream(stream):
                self.floods += [torch.full((n,), FLOOD, dtype=torch.uint8, device=self.device) for n in BLOCKS]

    def faults(self) -> list[str]:
        """What is wrong, once the device has done all."""
        found = [
            f"call {number}, destination as read in the stream's order: {sentence}"
            for number, shot in self.shots.items()
            for sentence in differences(self.sides[number][1], shot)
        ]
        if self.flow.scene == "unblocked" and self.idle == len(self.sides):
            found.append("each call returned only when all that was enqueued before it had ended")
        if not all(work.is_completed() for work in self.works):
            found.append("a work handle says that it is not completed when the device has done all")
        if self.floods and bool(torch.cat(self.floods).ne(FLOOD).any()):
            found.append("memory that was free when a call returned was written afterwards")
        gc.collect()
        if not all(storage.expired() for storage in self.dropped):
            found.append(
                "the source's memory is kept alive after the caller has dropped it and the transfers have ended"
            )
        return found


def memory_of(handed: Handed) -> torch.Tensor | None:
    """A copy of the side's memory, on the current stream."""
    return None if handed.buffer is None else handed.buffer.memory.clone()


def settled(handed: Handed, home: Stream) -> Handed:
    """The same side with its memory allocated on the stream `home`."""
    buffer, reference = handed.buffer, handed.reference
    if buffer is None or reference is None:
        return handed
    with torch.cuda.stream(home):
        moved: Buffer = buffer.moved(buffer.memory.clone())
    home.synchronize()
    return Handed(TensorRef(tuple(reference.shape), reference.dtype, moved.tensor), moved, handed.expected)


def differences(dst: Handed, shot: torch.Tensor) -> list[str]:
    return [] if dst.buffer is None else replace(dst.buffer, memory=shot).differences(dst.expected)
