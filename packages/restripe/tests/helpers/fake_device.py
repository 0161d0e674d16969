"""A device that only records: its one stream, what is enqueued there, and whether it captures a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from restripe.execution.streams import DeviceStreams
from restripe.transport.protocol import Enqueue

from .address_transport import AddressTracer

HANDLE = 7


class FakeStream:
    """A stream that records its events in one log with what is enqueued."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.log: list[object] = []

    def record_event(self) -> object:
        self.log.append(object())
        return self.log[-1]


class FakeStreams(DeviceStreams):
    """The streams of a device of which one is current."""

    def __init__(self) -> None:
        super().__init__(0)
        self.stream = FakeStream()
        self.capturing = False
        self.ordered = 0

    def current(self) -> tuple[int, Any, bool]:
        return HANDLE, self.stream, self.capturing

    def order_call(self, caller: object, stream: Any) -> Any:
        self.ordered += 1
        self.stream.log.append("order")
        return super().order_call(caller, stream)


class FakeSideStream:
    """A second stream that makes its copies at once, and counts them."""

    def __init__(self, streams: Any, device: torch.device, least_bytes: int) -> None:
        self.least_bytes = least_bytes
        self.calls: list[str] = []

    def begin(self, handle: int | None) -> None:
        self.calls.append("begin")

    def run(self, enqueue: Enqueue, handle: int | None) -> None:
        self.calls.append("run")
        enqueue(handle)


class FakeDevice:
    """A device for the groups of a test, in place of the CPU's none.

    Calls by address are made at once, and logged with the handle that they are enqueued on; `record_stream` logs the number of
    elements.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.streams = FakeStreams()
        self.side_streams: list[FakeSideStream] = []
        monkeypatch.setattr("restripe.group.communicators.streams_of", lambda device: self.streams)
        monkeypatch.setattr("restripe.group.communicators.SideStream", self._side_stream)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, _: self.log.append(("held", tensor.numel())))
        for method in ("p2p", "collectives", "copies"):
            monkeypatch.setattr(AddressTracer, method, self._logged(method, getattr(AddressTracer, method)))

    @property
    def log(self) -> list[object]:
        return self.streams.stream.log

    def _logged(self, method: str, prepare: Callable[..., Enqueue]) -> Callable[..., Enqueue]:
        """Return the method with its calls logged; the simulated communicator below takes no stream."""

        def prepare_logged(*arguments: Any) -> Enqueue:
            call = prepare(*arguments)

            def enqueue(handle: int | None) -> None:
                self.log.append((method, handle))
                call(None)

            return enqueue

        return prepare_logged

    def _side_stream(self, *arguments: Any) -> FakeSideStream:
        self.side_streams.append(FakeSideStream(*arguments))
        return self.side_streams[-1]
