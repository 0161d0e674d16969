"""CUDA streams: the order of a call with what its caller enqueued, and with the calls of other groups on the device."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import cache
from time import monotonic, sleep
from typing import Any

import torch

from restripe.errors import PeerTimeoutError

PAUSE = 1e-4  # seconds between two looks at the device
#: Groups whose kernels may run at once on a device. One of NCCL's kernels takes at most 64 blocks (its MAXCHANNELS), an H200
#: has room for 132 of them: of two groups both always find room, of three perhaps not.
SIDE_BY_SIDE = 2


class Work:
    """A handle on the transfers of a call, like torch.distributed's. On the CPU they are complete when the call returns.

    On CUDA it stands for a point on a stream after a submission. The event is recorded when it is first asked for, so it may
    stand later than the submission's end but never before it; a call that nobody waits for costs no event.
    """

    __slots__ = ("_event", "stream")

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream
        self._event: Any = None

    @property
    def event(self) -> Any:
        """The CUDA event after the submission."""
        if self._event is None:
            self._event = self.stream.record_event()
        return self._event

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let what is enqueued on the current stream from now on see the destination's values. Return True.

        Args:
            timeout: where it is given, the host waits as well, so long at most.

        Raises:
            PeerTimeoutError: the device is not done within the timeout.
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
        """Return whether the destination holds its values."""
        return self.stream is None or bool(self.event.query())

    def _completes_within(self, seconds: float) -> bool:
        end = monotonic() + seconds
        while not self.is_completed():
            if monotonic() >= end:
                return False
            sleep(PAUSE)
        return True


class DeviceStreams:
    """The streams of one device that calls of this process were enqueued on, and the order of calls there.

    Streams are known by their handle: asking torch for a stream object is slow.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        # the function that torch's own compiled code calls, looked up once; a build without CUDA has none
        self._current_handle: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001
        self._streams: dict[int, Any] = {}
        self._ends: dict[object, Work] = {}  # the last call of each group that may still run, most recent last

    def current(self) -> tuple[int, Any, bool]:
        """Return the device's current stream, its handle first, and whether it captures a CUDA graph.

        The default stream, handle 0, never does.
        """
        handle = self._current_handle(self._index)
        stream = self._streams.get(handle)
        if stream is None:
            stream = self._streams[handle] = torch.cuda.current_stream(self._index)
        return handle, stream, handle != 0 and torch._C._cuda_isCurrentStreamCapturing()  # noqa: SLF001

    def stream_of(self, handle: int) -> Any:
        """Return the stream that was current with this handle."""
        return self._streams[handle]

    def order_call(self, caller: object, stream: Any) -> Work:
        """Order what is enqueued on the stream from now on after earlier calls, and return the handle of this call.

        A call comes after its caller's earlier ones. Calls of two callers may run side by side, and a third waits for both:
        kernels of communicators that run at once can each wait for one that has no room to start.

        Args:
            caller: stands for the communicators that the call goes over.
        """
        work, ends = Work(stream), self._ends
        end = ends.pop(caller, None)
        if end is not None:
            earlier = [end]
        elif len(ends) < SIDE_BY_SIDE:
            earlier = []
        else:
            earlier = list(ends.values())
            del ends[next(iter(ends))]
        ends[caller] = work  # before waiting: a stream that is gone fails one call, not all
        for end in earlier:
            if end.stream is not stream and end.stream != stream:
                stream.wait_event(end.event)
        return work


class SideStream:
    """A second stream of a device, for copies that run beside the messages of a call.

    Args:
        streams: the device's.
        least_bytes: copies of no more bytes stay on the call's stream.
    """

    def __init__(self, streams: DeviceStreams, device: torch.device, least_bytes: int) -> None:
        self.least_bytes = least_bytes
        self._streams, self._stream = streams, torch.cuda.Stream(device)
        self._begin, self._end = torch.cuda.Event(), torch.cuda.Event()

    def begin(self, handle: int | None) -> None:
        """Let what is run here next come after what is on the stream of this handle so far."""
        self._begin.record(self._streams.stream_of(_not_none(handle)))

    def run(self, enqueue: Callable[[int | None], None], handle: int | None) -> None:
        """Enqueue on the second stream: beside what came since `begin`, and before what comes next on the handle's stream."""
        self._stream.wait_event(self._begin)
        try:
            enqueue(self._stream.cuda_stream)
        finally:
            self._end.record(self._stream)
            self._streams.stream_of(_not_none(handle)).wait_event(self._end)


def _not_none(handle: int | None) -> int:
    if handle is None:
        raise RuntimeError("a second stream needs the handle of the call's stream")
    return handle


@cache
def streams_of(device: torch.device) -> DeviceStreams | None:
    """Return the streams of a device, one object for all groups of this process; None on the CPU."""
    return DeviceStreams(device.index) if device.type == "cuda" else None
