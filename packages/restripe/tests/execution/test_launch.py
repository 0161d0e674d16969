"""Calls that enqueue a program: built for the addresses of its memories, and made again while nothing moves."""

from __future__ import annotations

import gc
import weakref
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from restripe.execution.launch import Endpoints, Launcher
from restripe.execution.program import AllGather, Broadcast, Buffer, Program, Round, Span, StridedCopy
from restripe.transport.address_adapter import addressed
from restripe.transport.protocol import AddressCopy, Collective, Enqueue, Message

from ..helpers.recording_transports import RECEIVED, AddressTransport, TensorTransport

Tensors = Sequence[torch.Tensor | None]
Transport = AddressTransport | TensorTransport
MakeTransport = Callable[[], Transport]
KINDS = [AddressTransport, TensorTransport]
HANDLE = 77
STEP = Round(  # 3 columns of 2 rows are packed from memory 0, and 2 are unpacked to memory 1
    buffers=[Buffer(2, 5)],
    packs=[StridedCopy(2, 0, 0, 1, (3, 1), (1, 1), (2, 1))],
    sends=[(Span(2, 0, 3), 1)],
    receives=[(Span(2, 3, 2), 1)],
    unpacks=[StridedCopy(1, 2, 2, 3, (2, 1), (2, 1), (1, 1))],
    replications=[AllGather(0, Span(1, 0, 4), Span(1, 2, 2))],
    frees=[2],
)
LOCAL = StridedCopy(1, 0, 0, 4, (2,), (1,), (1,))  # two bytes


def endpoints(messages: Transport, replicas: Sequence[Transport | None] = (), side_stream: Any = None) -> Endpoints:
    wrapped = [None if members is None else addressed(cast("Any", members)) for members in replicas]
    return Endpoints(addressed(cast("Any", messages)), torch.device("cpu"), wrapped, side_stream)


def starts_of(tensors: Tensors) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def prepared(program: Program | Round, tensors: Tensors, ends: Endpoints) -> Enqueue:
    """Return all calls of a program, or of one round over three memories, as one."""
    program = Program([program], 3) if isinstance(program, Round) else program
    calls = Launcher(program, ends).calls(starts_of(tensors))

    def enqueue(handle: int | None) -> None:
        for call in calls:
            call(handle)

    return enqueue


def int8(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int8)


def names(calls: Sequence[tuple[Any, ...]]) -> list[str]:
    return [name for name, *_ in calls]


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_packs_exchanges_unpacks_and_replicates_in_any_mode_and_then_in_another(
    kind: MakeTransport, mode: type
) -> None:
    src, dst = int8(0, 1, 2, 3, 4, 5), int8(*[0] * 6)
    messages, members = kind(), kind()
    stream = HANDLE if kind is AddressTransport else None
    with mode():
        enqueue = prepared(STEP, [src, dst], endpoints(messages, [members]))
        enqueue(HANDLE)
    assert dst.tolist() == [0, 0, RECEIVED, 0, RECEIVED, 0]
    dst.zero_()
    src += 1
    enqueue(HANDLE)
    assert dst.tolist() == [0, 0, RECEIVED, 0, RECEIVED, 0]
    assert messages.calls == [
        call
        for n in (0, 1)
        for call in (("group",), ("send", [n + 1, n + 3, n + 5], 1, stream), ("recv", 2, 1, stream), ("end",))
    ]
    gather = ("all_gather", [0, 0, RECEIVED, 0], [RECEIVED, 0], stream)
    assert members.calls == [("group",), gather, ("end",)] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_without_messages_submits_none_and_every_stripe_is_broadcast_by_its_member(kind: MakeTransport) -> None:
    src, dst = torch.arange(4, dtype=torch.int16), torch.zeros(5, dtype=torch.int16)
    messages, members = kind(), kind()
    step = Round(
        packs=[StridedCopy(1, 0, 0, 0, (2, 2), (4, 1), (2, 1)), StridedCopy(1, 0, 2, 6, (2,), (1,), (1,))],
        replications=[Broadcast(0, 0, Span(1, 0, 4)), Broadcast(0, 2, Span(1, 4, 2))],
        copy_back=[StridedCopy(1, 0, 8, 4, (2,), (1,), (1,))],
    )
    prepared(step, [src, dst], endpoints(messages, [members]))(None)
    assert messages.calls == []
    stripes = [("broadcast", [0, 0, 3, 0], 0, None), ("broadcast", [1, 0], 2, None)]
    assert members.calls == [("group",), *stripes, ("end",)]
    assert dst.tolist() == [0, 3, 1, 0, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_the_collectives_of_one_split_are_one_group(kind: MakeTransport) -> None:
    dst, splits = int8(*[0] * 8), [kind(), kind()]
    replications: list[AllGather | Broadcast] = [
        AllGather(at // 2, Span(1, 2 * at, 2), Span(1, 2 * at + 1, 1)) for at in range(4)
    ]
    replications.insert(2, Broadcast(0, 1, Span(1, 0, 1)))
    prepared(Round(replications=replications), [None, dst], endpoints(kind(), splits))(None)
    assert [names(members.calls) for members in splits] == [
        ["group", "all_gather", "all_gather", "broadcast", "end"],
        ["group", "all_gather", "all_gather", "end"],
    ]


def test_messages_and_broadcasts_have_the_addresses_and_lengths_of_their_spans() -> None:
    """The source is a view that begins in the middle of its memory."""
    src, dst = torch.arange(9, dtype=torch.int16)[3:], torch.arange(6, dtype=torch.int16)
    replications: list[AllGather | Broadcast] = [Broadcast(0, 1, Span(1, 4, 8)), Broadcast(1, 0, Span(1, 0, 2))]
    messages, splits = AddressTransport(), [AddressTransport(), AddressTransport()]
    step = Round(sends=[(Span(0, 2, 4), 1)], replications=replications)
    prepared(step, [src, dst], endpoints(messages, splits))(HANDLE)
    assert messages.calls[1:-1] == [("send", [4, 0, 5, 0], 1, HANDLE)]
    assert splits[0].calls[1:-1] == [("broadcast", [2, 0, 3, 0, 4, 0, 5, 0], 1, HANDLE)]
    assert splits[1].calls[1:-1] == [("broadcast", [0, 0], 0, HANDLE)]


def test_an_empty_round_makes_no_call() -> None:
    messages = AddressTransport()
    launcher = Launcher(Program([Round(), Round()], 2), endpoints(messages))
    assert launcher.calls([None, None]) == []
    assert messages.calls == []


def test_rounds_are_enqueued_in_order() -> None:
    """The second round sends what the first received."""
    dst, messages = int8(0, 0), TensorTransport()
    rounds = [Round(receives=[(Span(1, 0, 1), 1)]), Round(sends=[(Span(1, 0, 2), 1)])]
    prepared(Program(rounds, 2), [None, dst], endpoints(messages))(None)
    assert messages.calls[4:] == [("send", [RECEIVED, 0], 1, None), ("end",)]


@pytest.mark.parametrize("step", [STEP, replace(STEP, buffers=[], packs=[], sends=[(Span(0, 0, 3), 1)])])
def test_a_memory_that_the_rank_has_not_is_refused(step: Round) -> None:
    with pytest.raises(RuntimeError, match="memory 0 of the program has no address on this rank"):
        prepared(step, [None, int8(*[0] * 6)], endpoints(AddressTransport(), [AddressTransport()]))(HANDLE)


def test_a_stripe_of_a_replica_group_without_this_rank_is_refused() -> None:
    step = Round(replications=STEP.replications)
    with pytest.raises(RuntimeError, match="split 0 has a stripe of this rank"):
        prepared(step, [None, int8(*[0] * 6)], endpoints(AddressTransport(), [None]))


class RecordingSideStream:
    """A second stream that records how many calls the transport had had when it began and when it ran."""

    def __init__(self, least_bytes: int, messages: AddressTransport) -> None:
        self.least_bytes, self.messages = least_bytes, messages
        self.made: list[int] = []

    def begin(self, handle: int | None) -> None:
        assert handle == HANDLE
        self.made.append(names(self.messages.calls).count("end"))

    def run(self, enqueue: Enqueue, handle: int | None) -> None:
        self.begin(handle)
        enqueue(handle)


@pytest.mark.parametrize(
    ("step", "least_bytes", "made"),
    [(STEP, 1, [0, 1]), (STEP, 2, []), (Round(replications=STEP.replications), 0, [])],
    ids=["many bytes", "few bytes", "no messages"],
)
def test_many_bytes_of_local_copies_go_to_the_side_stream_beside_messages(
    step: Round, least_bytes: int, made: list[int]
) -> None:
    src, messages = int8(0, 1, 2, 3, 4, 5), AddressTransport()
    side_stream = RecordingSideStream(least_bytes, messages)
    for second in (side_stream, None):
        dst = int8(*[0] * 6)
        ends = endpoints(messages, [AddressTransport()], second)
        prepared(replace(step, local_copies=[LOCAL]), [src, dst], ends)(HANDLE)
        assert dst[:2].tolist() == [4, 5]
        assert side_stream.made == made


@pytest.mark.parametrize(("least_bytes", "made"), [(15, [0, 1]), (16, [])])
def test_all_bytes_of_a_round_s_local_copies_are_counted(least_bytes: int, made: list[int]) -> None:
    src, dst = torch.arange(6, dtype=torch.int64), torch.zeros(6, dtype=torch.int64)
    copies = [StridedCopy(1, 0, 8 * at, 32 + 8 * at, (2, 4), (4, 1), (4, 1)) for at in range(2)]
    messages = AddressTransport()
    side_stream = RecordingSideStream(least_bytes, messages)
    step = Round(sends=[(Span(0, 0, 8), 1)], local_copies=copies)
    prepared(step, [src, dst], endpoints(messages, [], side_stream))(HANDLE)
    assert dst.tolist() == [4, 5, 0, 0, 0, 0]
    assert side_stream.made == made


class OrderTransport(AddressTransport):
    """A transport that only records the order of its calls, and how many copies each has."""

    def __init__(self, order: list[str]) -> None:
        super().__init__()
        self.order = order

    def p2p(self, sends: Sequence[Message], receives: Sequence[Message]) -> Enqueue:
        return lambda _: self.order.append("p2p")

    def collectives(self, all_gathers: Sequence[Collective], broadcasts: Sequence[Collective]) -> Enqueue:
        return lambda _: self.order.append("collectives")

    def copies(self, copies: Sequence[AddressCopy]) -> Enqueue:
        return lambda _: self.order.append(f"{len(copies)} copies")


class OrderSideStream:
    """A side stream for any local copies that records its calls in the same order."""

    least_bytes = 0

    def __init__(self, order: list[str]) -> None:
        self.order = order

    def begin(self, handle: int | None) -> None:
        self.order.append("begin")

    def run(self, enqueue: Enqueue, handle: int | None) -> None:
        self.order.append("run")
        enqueue(handle)


@pytest.mark.parametrize(
    ("packs", "aside", "expected"),
    [
        (True, False, ["3 copies", "p2p", "1 copies", "collectives", "1 copies"]),
        (False, False, ["p2p", "3 copies", "collectives", "1 copies"]),
        (True, True, ["begin", "1 copies", "p2p", "1 copies", "run", "2 copies", "collectives", "1 copies"]),
        (False, True, ["begin", "p2p", "1 copies", "run", "2 copies", "collectives", "1 copies"]),
    ],
)
def test_local_copies_go_with_packs_or_unpacks_or_begin_first_and_end_before_replicas_are_rebuilt(
    *, packs: bool, aside: bool, expected: list[str]
) -> None:
    src, dst, order = int8(*range(6)), int8(*[0] * 6), list[str]()
    step = STEP if packs else replace(STEP, packs=[], sends=[(Span(0, 0, 3), 1)])
    local_copies = [LOCAL._replace(into_offset=at, out_offset=4 + at, sizes=(1,)) for at in range(2)]
    step = replace(step, local_copies=local_copies, copy_back=[LOCAL])
    transport, side_stream = OrderTransport(order), OrderSideStream(order) if aside else None
    prepared(step, [src, dst], endpoints(transport, [transport], side_stream))(HANDLE)
    assert order == expected


def test_a_launch_leaves_the_program_as_it_is() -> None:
    src, dst = int8(*range(6)), int8(*[0] * 6)
    step = replace(STEP, local_copies=[LOCAL])
    before = replace(step, packs=list(step.packs), unpacks=list(step.unpacks), local_copies=list(step.local_copies))
    for _ in range(2):
        prepared(step, [src, dst], endpoints(AddressTransport(), [AddressTransport()]))(HANDLE)
        assert step == before


class CountingLauncher(Launcher):
    """A launcher that records the rounds whose calls it builds."""

    def __init__(self, program: Program, ends: Endpoints) -> None:
        super().__init__(program, ends)
        self.built: list[Round] = []

    def round_calls(self, step: Round, starts: Sequence[int | None]) -> list[Enqueue]:
        self.built.append(step)
        return super().round_calls(step, starts)


def allocate_from(monkeypatch: pytest.MonkeyPatch, rooms: list[torch.Tensor]) -> None:
    """Let the next buffers lie in these rooms."""

    def empty(length: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        assert (dtype, device) == (torch.uint8, torch.device("cpu"))
        return rooms.pop(0)[:length]

    monkeypatch.setattr(torch, "empty", empty)


def test_calls_without_buffers_are_built_once() -> None:
    src, dst = int8(*range(6)), int8(*[0] * 6)
    step = Round(local_copies=[LOCAL])
    launcher = CountingLauncher(Program([step, step], 2), endpoints(AddressTransport()))
    calls = launcher.calls(starts_of([src, dst]))
    for _ in range(2):
        for call in calls:
            call(HANDLE)
    assert launcher.built == [step, step]


def test_a_round_s_calls_are_rebuilt_only_where_a_buffer_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rounds with a buffer each, the one whose buffer moved."""
    src, dst, room = int8(*range(6)), int8(*[0] * 6), torch.zeros(3, 5, dtype=torch.uint8)
    first = replace(STEP, replications=[])
    second = Round(
        buffers=[Buffer(3, 2)],
        receives=[(Span(3, 0, 2), 1)],
        unpacks=[StridedCopy(1, 3, 0, 0, (2,), (1,), (1,))],
        frees=[3],
    )
    launcher = CountingLauncher(Program([first, second], 4), endpoints(AddressTransport()))
    (call,) = launcher.calls(starts_of([src, dst]))
    assert not launcher.built
    allocate_from(monkeypatch, [room[at] for at in (0, 1, 0, 1, 2, 1, 2, 0)])
    for built in ([first, second], [], [first], [second]):
        launcher.built.clear()
        dst.zero_()
        call(HANDLE)
        assert launcher.built == built
        assert dst.tolist() == [RECEIVED, RECEIVED, RECEIVED, 0, RECEIVED, 0]


def test_a_call_that_failed_halfway_can_be_made_again() -> None:
    class Failing(AddressTransport):
        fails = True

        def p2p(self, sends: Sequence[Message], receives: Sequence[Message]) -> Enqueue:
            enqueue = super().p2p(sends, receives)

            def call(handle: int | None) -> None:
                if self.fails:
                    raise OSError
                enqueue(handle)

            return call

    src, dst, transport = int8(*range(6)), int8(*[0] * 6), Failing()
    enqueue = prepared(STEP, [src, dst], endpoints(transport, [AddressTransport()]))
    with pytest.raises(OSError):  # noqa: PT011  (the transport's own)
        enqueue(HANDLE)
    transport.fails = False
    enqueue(HANDLE)
    assert dst.tolist() == [0, 0, RECEIVED, 0, RECEIVED, 0]


@pytest.mark.requirement("RS-TRAFFIC-3", "RS-TRAFFIC-4")
def test_buffers_live_from_their_round_to_the_one_that_frees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory 2 is freed in the round that allocates it, memory 3 in the next one."""
    rounds = [
        Round(buffers=[Buffer(2, 4), Buffer(3, 8)], receives=[(Span(2, 0, 4), 1)], frees=[2]),
        Round(buffers=[Buffer(4, 2)], receives=[(Span(4, 0, 2), 1)], frees=[3, 4]),
    ]
    alive: list[list[int]] = []
    storages: list[tuple[int, weakref.ref[torch.UntypedStorage]]] = []
    made = torch.empty

    def living() -> list[int]:
        return [length for length, storage in storages if storage() is not None]

    def empty(length: int, **options: Any) -> torch.Tensor:
        alive.append(living())
        tensor = made(length, **options)
        storages.append((length, weakref.ref(tensor)))  # type: ignore[arg-type]  # a tensor lives as long here
        return tensor

    monkeypatch.setattr(torch, "empty", empty)
    enqueue = prepared(Program(rounds, 5), [None, None], endpoints(AddressTransport()))
    for _ in range(2):
        enqueue(HANDLE)
        assert alive == [[], [4], [8]]
        assert living() == []
        alive.clear()


@pytest.mark.requirement("RS-STREAM-6")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "step", [STEP, replace(STEP, buffers=[], packs=[], unpacks=[], sends=[], receives=[], frees=[])]
)
def test_calls_keep_no_memory_of_the_caller_s_alive(step: Round, kind: MakeTransport) -> None:
    memory = array("b", range(6))
    gone, src, dst = weakref.ref(memory), torch.frombuffer(memory, dtype=torch.int8), int8(*[0] * 6)
    enqueue = prepared(replace(step, local_copies=[LOCAL]), [src, dst], endpoints(kind(), [kind()]))
    enqueue(HANDLE)
    assert dst[:2].tolist() == [4, 5]
    del memory, src
    gc.collect()
    assert gone() is None
