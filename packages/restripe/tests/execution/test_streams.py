"""Marks and the order of streams, on streams that only note what is asked of them."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
import torch

from restripe import Work
from restripe.errors import PeerTimeoutError
from restripe.execution.streams import Aside, Streams, streams_of
from restripe.group.communicators import Links

from ..conftest import Worlds


class Event:
    """An event that a device comes past when told to."""

    done = False

    def query(self) -> bool:
        return self.done


class Stream:
    """A stream of a device that notes its events and waits."""

    def __init__(self, name: str, device: int = 0) -> None:
        self.name, self.device = name, torch.device("cuda", device)
        self.recorded: list[Event] = []
        self.waited: list[Event] = []

    def record_event(self) -> Event:
        self.recorded.append(Event())
        return self.recorded[-1]

    def wait_event(self, event: Event) -> None:
        self.waited.append(event)


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self, events: list[Event], done: float) -> None:
        self.events, self.done, self.now = events, done, 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for event in self.events:
            event.done = self.now >= self.done


class Twin(Stream):
    """Another object for the stream of that name, as torch makes one at each question."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


@pytest.mark.requirement("RS-STREAM-3")
def test_a_handle_waits_no_longer_than_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Stream("ours")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ours)
    clock = Clock(ours.recorded, done=2.0)
    monkeypatch.setattr("restripe.execution.streams.monotonic", clock.monotonic)
    monkeypatch.setattr("restripe.execution.streams.sleep", clock.sleep)
    work = Work(ours)
    with pytest.raises(PeerTimeoutError, match=r"within 1\.5 s"):
        work.wait(timedelta(seconds=1.5))
    assert not work.is_completed()
    assert 1.5 <= clock.now < 1.6
    assert work.wait(timedelta(seconds=1))
    assert work.is_completed()
    assert Work().wait(timedelta(0))


def test_a_handle_records_one_event_when_it_is_first_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, caller = Stream("ours"), Stream("caller")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: {ours.device: caller}[device])
    work = Work(ours)
    assert not ours.recorded
    work.wait()
    assert not work.is_completed()
    work.wait()
    assert len(ours.recorded) == 1
    assert caller.waited == ours.recorded * 2
    ours.recorded[0].done = True
    assert work.is_completed()


def test_a_call_comes_after_the_last_one_on_another_stream_of_its_device() -> None:
    streams, ours, other = Streams(0), Stream("ours"), Stream("other")
    streams.after(ours)
    first = streams.after(Twin("ours"))
    assert not ours.recorded
    second = streams.after(other)
    assert other.waited == [first.event]
    third = streams.after(ours)
    assert ours.waited == other.recorded == [second.event]
    assert third.stream is ours
    assert not ours.recorded


@pytest.mark.parametrize(("handle", "capturing", "records"), [(0, True, False), (7, True, True), (7, False, False)])
def test_the_default_stream_never_records(
    monkeypatch: pytest.MonkeyPatch, *, handle: int, capturing: bool, records: bool
) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: handle, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Stream("ours"))
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: capturing, raising=False)
    assert Streams(0).current()[0::2] == (handle, records)


def test_a_stream_that_is_gone_fails_one_call_and_not_all() -> None:
    class Gone(Stream):
        def record_event(self) -> Event:
            raise RuntimeError("invalid resource handle")

    streams, ours = Streams(0), Stream("ours")
    streams.after(Gone("gone"))
    with pytest.raises(RuntimeError, match="invalid resource"):
        streams.after(ours)
    assert streams.after(Stream("other")).stream.waited == ours.recorded


def test_groups_on_one_device_share_its_streams() -> None:
    here, there = (streams_of(torch.device("cuda", index)) for index in (3, 4))
    assert streams_of(torch.device("cuda", 3)) is here is not None
    assert here is not there


def test_a_stream_is_asked_of_torch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    handles, asked = iter([7, 8, 7]), []

    def current(index: int) -> Stream:
        asked.append(index)
        return Stream(f"{len(asked)}")

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: next(handles), raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
    streams = Streams(3)
    assert [streams.current()[1].name for _ in range(3)] == ["1", "2", "1"]
    assert [streams.of(handle).name for handle in (7, 8)] == ["1", "2"]
    assert asked == [3, 3]


def test_there_are_no_streams_on_the_cpu(worlds: Worlds) -> None:
    (communicator,) = worlds(1).communicators()
    assert Links(communicator, owned=False).streams is None


@pytest.mark.parametrize("fails", [True, False])
def test_what_goes_aside_comes_after_what_was_there_when_it_began_and_before_what_comes_next(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    told: list[str] = []

    class Place:
        def __init__(self) -> None:
            self.name = ("begin", "end")[len(places)]
            places.append(self)

        def record(self, stream: Told) -> None:
            told.append(f"{self.name} on {stream.name}")

    class Told:
        def __init__(self, name: str, cuda_stream: int) -> None:
            self.name, self.cuda_stream = name, cuda_stream

        def wait_event(self, place: Place) -> None:
            told.append(f"{self.name} waits for {place.name}")

    def work(handle: int) -> None:
        told.append(f"work on {handle}")
        if fails:
            raise RuntimeError

    places: list[Place] = []
    monkeypatch.setattr(torch.cuda, "Event", Place)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Told("second", 9))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Told("caller", 7))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
    streams = Streams(0)
    streams.current()
    aside = Aside(streams, torch.device("cuda", 0), 0)
    aside.begin(7)
    told.append("meanwhile")
    with suppress(RuntimeError):
        aside.run(work, 7)
    assert told == [
        *["begin on caller", "meanwhile", "second waits for begin", "work on 9"],
        *["end on second", "caller waits for end"],
    ]
