"""CUDA streams: what a call enqueues is ordered with what its caller enqueued, and with other groups on the device."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from time import monotonic, sleep
from typing import Any

import torch

from restripe.errors import PeerTimeoutError

PAUSE = 1e-4  # seconds between two looks at the device


class Work:
    """A handle on a call's transfers, as torch.distributed gives. On the CPU they are complete when the call returns.

    On CUDA it is a place on a stream after a submission. Its event is recorded when first asked for, on the same stream, so it
    may stand later than the submission's end but never before it; a call that nobody waits for costs no event.
    """

    __slots__ = ("_event", "stream")

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream
        self._event: Any = None

    @property
    def event(self) -> Any:
        """The event that stands for the place."""
        if self._event is None:
            self._event = self.stream.record_event()
        return self._event

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let what is enqueued on the current stream from now on see the destination's values; True.

        Args:
            timeout: where it is given, the host waits as well, so long at most.

        Raises:
            PeerTimeoutError: the device is not done by then.
        """
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_event(self.event)
            if timeout is not None and not self._completes_within(timeout.total_seconds()):
                raise PeerTimeoutError(
                    f"expected the transfers to end within {timeout.total_seconds():g} s, and they have not; "
                    "see whether every rank of the group has made this call, or wait longer"
                )
        return True

    def is_completed(self) -> bool:
        """Whether the destination holds its values."""
        return self.stream is None or bool(self.event.query())

    def _completes_within(self, seconds: float) -> bool:
        end = monotonic() + seconds
        while not self.is_completed():
            if monotonic() >= end:
                return False
            sleep(PAUSE)
        return True


class Streams:
    """The streams of one device that calls of this process were enqueued on, and where the last call ends.

    Streams are known by their handle: asking torch for a stream object is slow.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        # what torch's own compiled code calls, found once; a build without CUDA has none
        self._handle: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001
        self._known: dict[int, Any] = {}
        self._end: Work | None = None

    def current(self) -> tuple[int, Any, bool]:
        """The device's current stream, its handle first, and whether it records a CUDA graph; the default one, handle 0, never does."""
        handle = self._handle(self._index)
        stream = self._known.get(handle)
        if stream is None:
            stream = self._known[handle] = torch.cuda.current_stream(self._index)
        return handle, stream, handle != 0 and torch._C._cuda_isCurrentStreamCapturing()  # noqa: SLF001

    def of(self, handle: int) -> Any:
        """The stream that was current with this handle."""
        return self._known[handle]

    def after(self, stream: Any) -> Work:
        """Let what is enqueued on the stream from now on come after every call so far, and be the last one.

        Each call came after the one before. Two communicators whose kernels run at once on one device can each wait for a
        kernel that has no room to start.
        """
        end, work = self._end, Work(stream)
        self._end = work  # before waiting: a stream that is gone fails one call, not all
        if end is not None and end.stream is not stream and end.stream != stream:
            stream.wait_event(end.event)
        return work


class Aside:
    """A second stream of a device, for copies that go beside what a call's own stream does.

    Args:
        streams: the device's.
        least: copies of no more bytes stay on the call's stream.
    """

    def __init__(self, streams: Streams, device: torch.device, least: int) -> None:
        self.least = least
        self._streams, self._stream = streams, torch.cuda.Stream(device)
        self._begin, self._end = torch.cuda.Event(), torch.cuda.Event()

    def begin(self, handle: int) -> None:
        """What is on the stream of this handle so far comes before what is run here next."""
        self._begin.record(self._streams.of(handle))

    def run(self, work: Callable[[int], None], handle: int) -> None:
        """Give `work` the second stream's handle; what it enqueues there is beside what came since `begin`, and before what comes."""
        self._stream.wait_event(self._begin)
        try:
            work(self._stream.cuda_stream)
        finally:
            self._end.record(self._stream)
            self._streams.of(handle).wait_event(self._end)


@cache
def streams_of(device: torch.device) -> Streams | None:
    """The streams of a device, one object for all groups of this process; none on the CPU."""
    return Streams(device.index) if device.type == "cuda" else None
