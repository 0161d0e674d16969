"""Work handles and the order of calls on streams, on streams that only record what is asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import combinations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restripe import Work
from restripe.errors import PeerTimeoutError
from restripe.execution.streams import SIDE_BY_SIDE, DeviceStreams, SideStream, streams_of
from restripe.group.communicators import Communicators

from ..conftest import Worlds


class Event:
    """An event that the device has passed once `done` is set."""

    done = False

    def query(self) -> bool:
        return self.done


class Stream:
    """A stream of a device that records its events and waits."""

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


class SameStream(Stream):
    """Another object for the stream of that name, as torch makes one at each call."""

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


@pytest.mark.requirement("RS-STREAM-9")
def test_calls_of_one_group_are_ordered_across_streams() -> None:
    streams, group, ours, other = DeviceStreams(0), object(), Stream("ours"), Stream("other")
    streams.order_call(group, ours)
    first = streams.order_call(group, SameStream("ours"))
    assert not ours.recorded
    second = streams.order_call(group, other)
    assert other.waited == [first.event]
    third = streams.order_call(group, ours)
    assert ours.waited == other.recorded == [second.event]
    assert third.stream is ours
    assert not ours.recorded


def test_two_groups_on_two_streams_do_not_wait_for_each_other() -> None:
    streams, (ours, other) = DeviceStreams(0), (Stream("ours"), Stream("other"))
    for _ in range(3):
        streams.order_call("a", ours)
        streams.order_call("b", other)
    assert ours.waited == other.waited == ours.recorded == other.recorded == []


def test_a_third_group_waits_for_both_and_one_of_them_then_for_the_other_two() -> None:
    streams, (first, second, third) = DeviceStreams(0), map(Stream, "abc")
    ends = [streams.order_call("a", first), streams.order_call("b", second)]
    last = streams.order_call("c", third)
    assert third.waited == [end.event for end in ends]
    again = streams.order_call("b", second)  # beside c's call: a's has ended before that begins
    assert second.waited == []
    streams.order_call("a", first)
    assert first.waited == [last.event, again.event]


class OrderedStream(Stream):
    """A stream that knows which calls are complete before what it is given next begins."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.complete: set[int] = set()
        self.complete_at: dict[Event, set[int]] = {}

    def record_event(self) -> Event:
        event = super().record_event()
        self.complete_at[event] = set(self.complete)
        return event


def calls_before(calls: Sequence[tuple[str, int]], streams: Sequence[OrderedStream]) -> list[set[int]]:
    """Make calls of groups on streams; return for each call those that are complete when it begins."""
    device, before = DeviceStreams(0), []
    for number, (group, index) in enumerate(calls):
        stream = streams[index]
        stream.waited.clear()
        device.order_call(group, stream)
        for event in stream.waited:
            stream.complete |= next(other.complete_at[event] for other in streams if event in other.complete_at)
        before.append(set(stream.complete))
        stream.complete.add(number)
    return before


def assert_ordered(calls: Sequence[tuple[str, int]], before: Sequence[set[int]]) -> None:
    """Assert that one group's calls follow one another and that no more groups than may run at once ever can."""
    for later, (group, _) in enumerate(calls):
        assert {earlier for earlier in range(later) if calls[earlier][0] == group} <= before[later]
        unordered = [call for call in range(later) if call not in before[later]]
        for others in combinations(unordered, SIDE_BY_SIDE):
            if len({group, *(calls[call][0] for call in others)}) > SIDE_BY_SIDE:
                assert any(early in before[late] for early, late in combinations(others, 2)), (calls, later, others)


def transitive(before: Sequence[set[int]]) -> bool:
    return all(before[earlier] <= calls for calls in before for earlier in calls)


@pytest.mark.requirement("RS-STREAM-9")
@pytest.mark.parametrize(("groups", "length"), [("abc", 8), ("abcd", 7)])
def test_no_more_groups_than_may_can_run_at_once_whatever_the_order_of_their_calls(groups: str, length: int) -> None:
    """Every call on a stream of its own, so that nothing but the waits orders them; all sequences of so many calls."""
    for sequence in product(groups, repeat=length - 1):
        calls = [(group, number) for number, group in enumerate((groups[0], *sequence))]
        before = calls_before(calls, [OrderedStream(f"{number}") for number in range(length)])
        assert_ordered(calls, before)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3)), max_size=30))
def test_no_more_groups_than_may_can_run_at_once_on_shared_streams(calls: list[tuple[str, int]]) -> None:
    before = calls_before(calls, [OrderedStream(f"{number}") for number in range(4)])
    assert transitive(before)
    assert_ordered(calls, before)


@pytest.mark.parametrize(("handle", "capturing", "records"), [(0, True, False), (7, True, True), (7, False, False)])
def test_the_default_stream_never_records(
    monkeypatch: pytest.MonkeyPatch, *, handle: int, capturing: bool, records: bool
) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: handle, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: Stream("ours"))
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: capturing, raising=False)
    assert DeviceStreams(0).current()[0::2] == (handle, records)


def test_a_stream_that_is_gone_fails_one_call_and_not_all() -> None:
    class Gone(Stream):
        def record_event(self) -> Event:
            raise RuntimeError("invalid resource handle")

    streams, ours = DeviceStreams(0), Stream("ours")
    streams.order_call("a", Gone("gone"))
    with pytest.raises(RuntimeError, match="invalid resource"):
        streams.order_call("a", ours)
    assert streams.order_call("a", Stream("other")).stream.waited == ours.recorded


def test_a_stream_of_another_group_that_is_gone_fails_one_call_of_a_third_and_not_all() -> None:
    class Gone(Stream):
        def record_event(self) -> Event:
            raise RuntimeError("invalid resource handle")

    streams, ours = DeviceStreams(0), Stream("ours")
    streams.order_call("a", Gone("gone"))
    streams.order_call("b", ours)
    with pytest.raises(RuntimeError, match="invalid resource"):
        streams.order_call("c", Stream("third"))
    fourth = Stream("fourth")
    streams.order_call("a", fourth)
    assert ours.recorded[0] in fourth.waited


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
    streams = DeviceStreams(3)
    assert [streams.current()[1].name for _ in range(3)] == ["1", "2", "1"]
    assert [streams.stream_of(handle).name for handle in (7, 8)] == ["1", "2"]
    assert asked == [3, 3]


def test_there_are_no_streams_on_the_cpu(worlds: Worlds) -> None:
    (communicator,) = worlds(1).make_communicators()
    assert Communicators(communicator, owned=False).streams is None


@pytest.fixture
def side_stream(monkeypatch: pytest.MonkeyPatch) -> tuple[SideStream, list[str]]:
    """A second stream beside the caller's, handle 7, and the log of what both are asked."""
    log: list[str] = []

    class LoggedEvent:
        def __init__(self) -> None:
            self.name = next(names)

        def record(self, stream: LoggedStream) -> None:
            log.append(f"{self.name} on {stream.name}")

    class LoggedStream:
        def __init__(self, name: str, cuda_stream: int) -> None:
            self.name, self.cuda_stream = name, cuda_stream

        def wait_event(self, event: LoggedEvent) -> None:
            log.append(f"{self.name} waits for {event.name}")

    names = iter(["begin", "end"])
    monkeypatch.setattr(torch.cuda, "Event", LoggedEvent)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: LoggedStream("second", 9))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: LoggedStream("caller", 7))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False, raising=False)
    streams = DeviceStreams(0)
    streams.current()
    return SideStream(streams, torch.device("cuda", 0), 0), log


@pytest.mark.parametrize("fails", [True, False])
def test_a_side_stream_runs_after_what_was_there_at_its_begin_and_before_what_comes_next(
    side_stream: tuple[SideStream, list[str]], *, fails: bool
) -> None:
    second, log = side_stream

    def enqueue(handle: int | None) -> None:
        log.append(f"work on {handle}")
        if fails:
            raise RuntimeError

    second.begin(7)
    log.append("meanwhile")
    with suppress(RuntimeError):
        second.run(enqueue, 7)
    assert log == [
        *["begin on caller", "meanwhile", "second waits for begin", "work on 9"],
        *["end on second", "caller waits for end"],
    ]


def test_a_side_stream_needs_the_handle_of_a_stream(side_stream: tuple[SideStream, list[str]]) -> None:
    with pytest.raises(RuntimeError, match="handle"):
        side_stream[0].begin(None)
