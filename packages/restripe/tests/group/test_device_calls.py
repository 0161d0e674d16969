"""Calls on a device: their order on streams, the tensors that they hold, and their handles. The device is a fake."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import restripe
from restripe import Resharder, Work
from restripe.group import communicators as module

from ..conftest import Worlds
from ..helpers.address_transport import AddressTracer
from ..helpers.fake_device import HANDLE, FakeDevice
from ..helpers.moves import Move, Side
from ..helpers.world import Group, World

pytestmark = pytest.mark.usefixtures("own_registry")

SINGLE = Side([0], (None,))
LOCAL = Move((4,), SINGLE, SINGLE, torch.complex64)
TRANSPOSE = Move((4, 6), Side([0, 1], (0,)), Side([0, 1], (1,)))  # with copies on each rank


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return FakeDevice(monkeypatch)


def world_of_addresses(worlds: Worlds, size: int) -> World:
    world: World = worlds(size)
    world.take_addresses()
    return world


@pytest.mark.requirement("RS-STREAM-1", "RS-STREAM-3", "RS-STREAM-5")
def test_a_call_follows_earlier_ones_holds_its_tensors_and_returns_a_handle_of_its_own(
    worlds: Worlds, device: FakeDevice
) -> None:
    def body(group: Group) -> None:
        src, dst = LOCAL.local_tensors(0)
        works = [restripe.reshard(src, dst, group, **LOCAL.arguments) for _ in range(2)]
        assert [work.stream for work in works] == [device.streams.stream] * 2
        assert works[0] is not works[1]
        LOCAL.assert_moved(0, src, dst)

    world_of_addresses(worlds, 1).run(body)
    call = ["order", ("copies", HANDLE), ("held", 4), ("held", 4)]
    assert device.log == ["order", *call, *call]  # the exchange of records is ordered too


@pytest.mark.requirement("RS-STREAM-5")
def test_tensors_are_held_where_a_transport_fails_halfway_since_it_may_use_them_still(
    worlds: Worlds, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int | None) -> None:
        raise OSError("the connection is lost")

    monkeypatch.setattr(AddressTracer, "copies", lambda communicator, copies: fail)
    world = world_of_addresses(worlds, 1)
    world.assert_all_raise(LOCAL.run_rank, OSError)
    assert device.log == ["order", "order", ("held", 4), ("held", 4)]


@pytest.mark.requirement("RS-STREAM-1")
@pytest.mark.parametrize("lazy", [True, False], ids=["conj", "plain"])
def test_a_call_is_enqueued_on_the_handle_of_the_current_stream(
    worlds: Worlds, device: FakeDevice, *, lazy: bool
) -> None:
    def body(group: Group) -> None:
        src, dst = LOCAL.local_tensors(0)
        assert src is not None
        assert dst is not None
        for _ in range(2):
            work = restripe.reshard(src.conj() if lazy else src, dst, group, **LOCAL.arguments)
            assert work.stream is device.streams.stream
            assert torch.equal(
                torch.view_as_real(dst).view(torch.int32),
                torch.view_as_real(src.conj().resolve_conj() if lazy else src).view(torch.int32),
            )

    world_of_addresses(worlds, 1).run(body)
    assert [entry for entry in device.log if "copies" in str(entry)] == [("copies", HANDLE)] * 2


@pytest.mark.requirement("RS-STREAM-1")
def test_messages_and_collectives_are_enqueued_on_the_handle_of_the_current_stream(
    worlds: Worlds, device: FakeDevice
) -> None:
    world = world_of_addresses(worlds, 4)
    move = Move((4, 6), Side([0, 1], (1,)), Side([0, 1, 2, 3], (None,)))
    tensors = [move.local_tensors(rank) for rank in range(4)]
    for _ in range(2):
        world.run(lambda group: move.call_drop_in(group, *tensors[group.rank]))
    calls = [entry for entry in device.log if isinstance(entry, tuple) and entry[0] != "held"]
    assert {handle for _, handle in calls} == {HANDLE}
    assert {method for method, _ in calls} == {"p2p", "collectives", "copies"}


@pytest.mark.requirement("RS-STREAM-3")
def test_a_handle_stands_after_its_own_call_though_another_thread_asks_for_it_later(
    worlds: Worlds, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watcher asks for the event of a call while the next one is enqueued."""
    works: list[Work] = []

    def watched_copies(_: AddressTracer, copies: Any) -> Any:
        def enqueue(handle: int | None) -> None:
            for work in works:
                assert work.event
            device.log.append("copy")

        return enqueue

    monkeypatch.setattr(AddressTracer, "copies", watched_copies)

    def body(group: Group) -> None:
        src, dst = LOCAL.local_tensors(0)
        for _ in range(2):
            works.append(restripe.reshard(src, dst, group, **LOCAL.arguments))  # noqa: PERF401 - a call sees those before

    world_of_addresses(worlds, 1).run(body)
    events = [work.event for work in works]
    relevant = [entry for entry in device.log if entry == "copy" or entry in events]
    assert relevant == ["copy", events[0], "copy", events[1]]


@pytest.mark.requirement("RS-STREAM-1")
def test_an_exchange_of_records_comes_after_the_calls_so_far_on_the_current_stream(
    worlds: Worlds, device: FakeDevice
) -> None:
    def body(group: Group) -> None:
        Resharder(group).prepare([])
        restripe.clear_caches(group)

    world = worlds(1)
    world.run(body)
    assert device.log == ["order"] * world.ops(0).count("exchange")
    assert len(device.log) == 3  # digests, lists, the clear


@pytest.mark.requirement("RS-STREAM-1")
@pytest.mark.parametrize("bound", [0, module.SIDE_STREAM_BYTES])
def test_large_local_copies_go_to_the_second_stream_of_a_transport_that_takes_addresses(
    worlds: Worlds, device: FakeDevice, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    monkeypatch.setattr(module.Communicators.__init__, "__kwdefaults__", {"side_stream_bytes": bound})
    world = world_of_addresses(worlds, 2)
    world.run(TRANSPOSE.run_rank)
    assert [side_stream.calls for side_stream in device.side_streams] == [[] if bound else ["begin", "run"]] * 2


@pytest.mark.requirement("RS-STREAM-1")
def test_large_local_copies_of_a_transport_of_tensors_stay_on_the_stream(worlds: Worlds, device: FakeDevice) -> None:
    world = worlds(1)
    assert not isinstance(world.groups[0].communicator, AddressTracer)
    world.run(LOCAL.run_rank)
    assert device.side_streams == []


def test_on_the_cpu_transports_are_given_no_stream(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a caller passes as one; no address goes through Python's ints either."""
    streams: list[object] = []

    def recorded(call: Any) -> Any:
        def record(buffer: torch.Tensor, peer: int, stream: object = None) -> None:
            streams.append(stream)
            call(buffer, peer)

        return record

    move = Move((4, 6), Side([0, 1], (0,)), Side([2], (None,)))

    def body(group: Group) -> None:
        for op in ("send", "recv"):
            monkeypatch.setattr(group.communicator, op, recorded(getattr(group.communicator, op)))
        src, dst = move.local_tensors(group.rank)
        work = restripe.reshard(src, dst, group, stream=object(), **move.arguments)
        move.assert_moved(group.rank, src, dst)
        assert work.is_completed()

    worlds(4).run(body)
    assert streams == [None] * 4
