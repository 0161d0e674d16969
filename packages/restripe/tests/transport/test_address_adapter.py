"""The adapter that lets a transport of tensors take addresses: messages, collectives and copies are those of tensors."""

from __future__ import annotations

import gc
import weakref
from array import array
from collections.abc import Sequence
from random import Random
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restripe.transport import address_adapter
from restripe.transport.address_adapter import AddressAdapter, addressed, tensor_at
from restripe.transport.protocol import AddressCopy, Enqueue

from ..conftest import Worlds
from ..helpers.address_transport import address_copy, assert_copies_like_torch, bytes_at
from ..helpers.recording_transports import RECEIVED, AddressTransport, TensorTransport
from ..helpers.strided_views import ViewPair, view_pairs
from ..helpers.world import Group

MODES = [torch.inference_mode, torch.no_grad, torch.enable_grad]
Place = tuple[int, int, int]  # offset in a memory, length, and the other rank


def adapter() -> tuple[AddressAdapter, list[tuple[Any, ...]]]:
    """Return an adapter over a transport of tensors, and the calls that this records."""
    transport = TensorTransport()
    return AddressAdapter(cast("Any", transport)), transport.calls


def make_copies(copies: Sequence[AddressCopy]) -> None:
    adapter()[0].copies(copies)(None)


def random_bytes(random: Random, count: int) -> torch.Tensor:
    return torch.tensor([random.randrange(256) for _ in range(count)], dtype=torch.uint8)


def exchanged(size: int, seed: int) -> list[tuple[list[Place], list[Place]]]:
    """Return for each rank what it sends and where it receives: up to three messages a pair, at odd offsets too."""
    random = Random(seed)
    places: list[tuple[list[Place], list[Place]]] = [([], []) for _ in range(size)]
    ends = [0] * size
    for sender in range(size):
        for receiver in range(size):
            for _ in range(random.randrange(4) if sender != receiver else 0):
                length = random.choice([1, 2, 3, 8, 21])
                places[sender][0].append((random.randrange(40), length, receiver))
                places[receiver][1].append((ends[receiver] + random.randrange(3), length, sender))
                ends[receiver] = places[receiver][1][-1][0] + length
    return places


@pytest.mark.requirement("RS-EXACT-1")
@pytest.mark.parametrize("seed", range(5))
def test_messages_by_address_bring_what_tensors_bring(worlds: Worlds, seed: int) -> None:
    places = exchanged(3, seed)

    def body(group: Group) -> None:
        communicator = getattr(group.communicator, "base", group.communicator)
        sends, receives = places[group.rank]
        source = random_bytes(Random(group.rank), 64)
        by_tensor, by_address = torch.zeros(300, dtype=torch.uint8), torch.zeros(300, dtype=torch.uint8)
        with communicator.group():
            for start, length, peer in sends:
                communicator.send(source[start : start + length], peer)
            for start, length, peer in receives:
                communicator.recv(by_tensor[start : start + length], peer)
        outgoing = [(source.data_ptr() + start, length, peer) for start, length, peer in sends]
        incoming = [(by_address.data_ptr() + start, length, peer) for start, length, peer in receives]
        enqueue = AddressAdapter(communicator).p2p(outgoing, incoming)
        for _ in range(2):
            by_address.zero_()
            enqueue(None)
            assert torch.equal(by_address, by_tensor)
        assert by_tensor.any() == bool(receives)

    world = worlds(3)
    world.run(body)
    for rank in range(3):
        assert len({event.submission for event in world.events[rank]} - {None}) == (3 if any(places[rank]) else 0)


@pytest.mark.requirement("RS-EXACT-1")
@pytest.mark.parametrize("in_place", [True, False])
def test_collectives_by_address_bring_what_tensors_bring(worlds: Worlds, *, in_place: bool) -> None:
    def body(group: Group) -> None:
        communicator = getattr(group.communicator, "base", group.communicator)
        rank, size = communicator.rank, communicator.size
        memories = [random_bytes(Random(rank), 100) for _ in range(2)]  # by tensor, and by address
        own = 3 + 7 * rank if in_place else 60

        def by_tensor(memory: torch.Tensor) -> None:
            with communicator.group():
                communicator.all_gather(memory[3 : 3 + 7 * size], memory[own : own + 7])
                for root in range(size):
                    communicator.broadcast(memory[70 + 5 * root : 75 + 5 * root], root)

        by_tensor(memories[0])
        address = memories[1].data_ptr()
        enqueue = AddressAdapter(communicator).collectives(
            [(address + 3, address + own, 7)], [(address + 70 + 5 * root, 5, root) for root in range(size)]
        )
        enqueue(None)
        assert torch.equal(*memories)
        for memory in memories:
            memory.copy_(random_bytes(Random(10 + rank), 100))
        by_tensor(memories[0])
        enqueue(None)
        assert torch.equal(*memories)

    world = worlds(3)
    world.run(body)
    for rank in range(3):
        assert [event.op for event in world.events[rank]] == ["all_gather", *["broadcast"] * 3] * 4
        assert len({event.submission for event in world.events[rank]}) == 4


@pytest.mark.requirement("RS-EXACT-1", "RS-EXACT-7")
@settings(max_examples=300)
@given(st.lists(view_pairs(), max_size=4))
def test_copies_are_torch_s_and_write_no_other_byte(pairs: list[ViewPair]) -> None:
    assert_copies_like_torch(make_copies, pairs)


@pytest.mark.parametrize(
    ("shift", "columns", "stride", "unit"),
    [
        *[(0, 64, 128, 8), (0, 12, 128, 4), (0, 10, 128, 2), (0, 9, 128, 1)],  # by the length
        *[(1, 64, 128, 1), (2, 64, 128, 2), (4, 64, 128, 4), (8, 64, 128, 8)],  # by the address
        *[(0, 64, 129, 1), (0, 64, 130, 2), (0, 64, 132, 4), (0, 64, 136, 8)],  # by the stride
    ],
)
@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_copy_is_made_in_the_widest_unit_that_both_sides_allow(
    shift: int, columns: int, stride: int, unit: int, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories = [(torch.arange(500) % 251).to(torch.uint8) + number for number in (0, 1)]
    odd, even = memories[0].as_strided((3, columns), (stride, 1), shift), memories[1].as_strided((3, columns), (128, 1))
    into, out_of = (even, odd) if side == "source" else (odd, even)
    units: list[int] = []
    foreach_copy = torch._foreach_copy_

    def recording(destinations: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        units.extend(tensor.element_size() for tensor in (*destinations, *sources))
        foreach_copy(destinations, sources)

    monkeypatch.setattr(torch, "_foreach_copy_", recording)
    make_copies([AddressCopy(into.data_ptr(), out_of.data_ptr(), (3, columns), into.stride(), out_of.stride())])
    assert units == [unit, unit]
    assert torch.equal(into, out_of)


def test_copies_of_nothing_are_made_too() -> None:
    empty = torch.zeros(3, 0)
    make_copies([])
    make_copies([address_copy(empty, empty)])


@pytest.mark.requirement("RS-EXACT-9")
@pytest.mark.parametrize("prepared", MODES)
@pytest.mark.parametrize("called", MODES)
def test_operations_are_prepared_in_one_mode_and_made_in_another(prepared: type, called: type) -> None:
    """The transport refuses inference tensors, which a thread of its own could not write."""
    source, destination = torch.arange(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    with prepared():
        made_there = torch.arange(8, dtype=torch.int32)
    transport, calls = adapter()
    start = destination.data_ptr()
    with prepared():
        enqueues = [
            transport.copies(
                [address_copy(destination[:4], source[::2]), address_copy(destination[4:], made_there[4:])]
            ),
            transport.p2p([(start, 4, 1)], [(start + 4, 4, 1)]),
            transport.collectives([(start, start + 8, 2)], [(start + 12, 2, 1)]),
        ]
    with called():
        for enqueue in enqueues:
            enqueue(None)
    received = int.from_bytes([RECEIVED] * 4, "little")
    assert destination.tolist() == [0, received, 4, 6, 4, 5, 6, 7]
    assert [name for name, *_ in calls] == ["group", "send", "recv", "end", "group", "all_gather", "broadcast", "end"]
    assert destination.grad_fn is None


def test_every_call_is_one_group_on_the_caller_s_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, transport = object(), TensorTransport(torch.device("cuda", 1))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: {transport.device: stream}[device])
    monkeypatch.setattr(address_adapter, "tensor_at", lambda address, length, _: bytes_at(address, length))
    memory = torch.arange(16, dtype=torch.uint8)
    start, over = memory.data_ptr(), AddressAdapter(cast("Any", transport))
    over.p2p([(start, 2, 1), (start + 3, 1, 0)], [(start + 14, 1, 1)])(77)
    assert transport.calls == [
        *[("group",), ("send", [0, 1], 1, stream), ("send", [3], 0, stream), ("recv", 1, 1, stream), ("end",)]
    ]
    transport.calls.clear()
    over.collectives([(start + 2, start + 8, 2)], [(start, 2, 1), (start + 8, 1, 0)])(77)
    assert transport.calls == [
        *[("group",), ("all_gather", [2, 3, 4, 5], [8, 9], stream)],
        *[("broadcast", [0, 1], 1, stream), ("broadcast", [8], 0, stream), ("end",)],
    ]


def test_prepared_operations_keep_no_memory_alive() -> None:
    memory = array("B", range(64))
    gone, view = weakref.ref(memory), torch.frombuffer(memory, dtype=torch.uint8)
    transport, _ = adapter()
    start = view.data_ptr()
    enqueues: list[Enqueue] = [
        transport.p2p([(start, 4, 1)], [(start + 4, 4, 1)]),
        transport.collectives([(start, start + 8, 2)], [(start + 12, 2, 1)]),
        transport.copies([address_copy(view[:8], view[16:32:2])]),
    ]
    for enqueue in enqueues:
        enqueue(None)
    del memory, view
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("mode", MODES)
def test_a_tensor_at_an_address_is_that_memory(mode: type) -> None:
    memory = torch.arange(32, dtype=torch.uint8)
    with mode(), torch.device("meta"):
        tensor = tensor_at(memory.data_ptr() + 5, 7, torch.device("cpu"))
    assert not tensor.is_inference()
    assert tensor.tolist() == list(range(5, 12))
    tensor.fill_(RECEIVED)
    assert memory.tolist() == [*range(5), *[RECEIVED] * 7, *range(12, 32)]


def test_only_a_transport_of_tensors_is_adapted() -> None:
    native: Any = AddressTransport()
    assert addressed(native) is native
    assert isinstance(addressed(cast("Any", TensorTransport())), AddressAdapter)
