"""The calls of NCCL and their order; nccl4py itself is not there on the CPU, so its calls are recorded instead."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from restripe.transport.protocol import AddressCopy

STREAM = SimpleNamespace(cuda_stream=77)


class Handle:
    """nccl4py's communicator, of which nothing but the object is needed."""

    ptr, rank, nranks, device = 5, 1, 3, SimpleNamespace(device_id=2)

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.log.append((name, *arguments))


class Parent(Handle):
    """A communicator of nccl4py's that can be split."""

    def split(self, color: int | None, key: int) -> Handle:
        self.log.append(("split", color, key))
        return Handle(self.log)


@pytest.fixture
def log() -> list[Any]:
    return []


@pytest.fixture
def module(log: list[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """restripe's module over bindings that record their calls."""

    def recording(name: str) -> Any:
        return lambda *arguments: log.append((name, *arguments))

    names = ("group_start", "group_end", "send", "recv", "all_gather", "broadcast")
    bindings: Any = ModuleType("nccl.bindings.nccl")
    vars(bindings).update({name: recording(name) for name in names}, Comm=lambda pointer: ("comm", pointer))
    package: Any = ModuleType("nccl.bindings")
    package.nccl = bindings
    core: Any = ModuleType("nccl.core")
    vars(core).update(Communicator=Handle, UniqueId=None, get_unique_id=None)
    kernel: Any = ModuleType("restripe.transport.copy_kernel")
    kernel.load_kernel = lambda device: ("kernel", device)
    kernel.prepare_copies = lambda copies, loaded: partial(recording("copies"), copies, loaded)
    for stub in (ModuleType("nccl"), package, bindings, core, kernel):
        monkeypatch.setitem(sys.modules, stub.__name__, stub)
    monkeypatch.setattr("restripe.transport.copy_kernel", kernel, raising=False)
    monkeypatch.delitem(sys.modules, "restripe.transport.nccl", raising=False)
    yield importlib.import_module("restripe.transport.nccl")
    del sys.modules["restripe.transport.nccl"]


COMM = ("comm", 5)


def test_messages_are_submitted_in_one_group_with_addresses_and_bytes(module: Any, log: list[Any]) -> None:
    made = module.NcclCommunicator(Handle(log))
    assert (made.rank, made.size, made.device) == (1, 3, torch.device("cuda", 2))
    enqueue = made.p2p([(100, 8, 0), (200, 4, 2)], [(300, 2, 0)])
    assert log == []
    for _ in range(2):
        enqueue(77)
    assert log == 2 * [
        ("group_start",),
        ("send", 100, 8, 1, 0, COMM, 77),
        ("send", 200, 4, 1, 2, COMM, 77),
        ("recv", 300, 2, 1, 0, COMM, 77),
        ("group_end",),
    ]


def test_a_group_is_ended_also_where_a_message_fails(module: Any, log: list[Any]) -> None:
    def fail(*_: object) -> None:
        raise OSError("no such peer")

    made = module.NcclCommunicator(Handle(log))
    module.bindings.recv = fail
    with pytest.raises(OSError, match="no such peer"):
        made.p2p([], [(1, 1, 9), (2, 1, 9)])(77)
    assert log == [("group_start",), ("group_end",)]


def test_a_message_alone_needs_no_group(module: Any, log: list[Any]) -> None:
    made = module.NcclCommunicator(Handle(log))
    made.p2p([(100, 8, 0)], [])(77)
    made.p2p([], [(300, 2, 0)])(77)
    assert log == [("send", 100, 8, 1, 0, COMM, 77), ("recv", 300, 2, 1, 0, COMM, 77)]


def test_all_gathers_and_broadcasts_are_submitted_in_one_group(module: Any, log: list[Any]) -> None:
    made = module.NcclCommunicator(Handle(log))
    made.collectives([(10, 12, 2)], [])(77)
    gather, broadcast = ("all_gather", 12, 10, 2, 1, COMM, 77), ("broadcast", 20, 20, 4, 1, 1, COMM, 77)
    assert log == [gather]
    log.clear()
    made.collectives([(10, 12, 2)], [(20, 4, 1)])(77)
    assert log == [("group_start",), gather, broadcast, ("group_end",)]


def test_copies_are_made_on_the_communicator_s_device(module: Any, log: list[Any]) -> None:
    made, copies = module.NcclCommunicator(Handle(log)), [AddressCopy(1, 2, (3,), (1,), (1,))]
    module.copy_kernel.load_kernel = None  # it was loaded when the communicator was made
    made.copies(copies)(77)
    assert log == [("copies", copies, ("kernel", made.device), 77)]


def test_calls_in_a_group_are_submitted_at_its_end_and_not_at_all_after_an_error(module: Any, log: list[Any]) -> None:
    made = module.NcclCommunicator(Handle(log))
    whole = torch.zeros(6, dtype=torch.uint8)
    start = whole.data_ptr()
    with made.group():
        made.all_gather(whole, whole[2:4], STREAM)
        made.broadcast(whole[3:], 1, STREAM)
        assert log == []
    gather = ("all_gather", start + 2, start, 2, 1, COMM, 77)
    assert log == [("group_start",), gather, ("broadcast", start + 3, start + 3, 3, 1, 1, COMM, 77), ("group_end",)]
    log.clear()
    with suppress(ZeroDivisionError), made.group():
        made.send(whole, 0, STREAM)
        made.send(whole, 1 // 0, STREAM)
    with made.group():
        pass
    assert log == []


def test_a_tensor_s_own_bytes_are_sent(module: Any, log: list[Any]) -> None:
    buffer = torch.zeros(6, dtype=torch.uint8)
    module.NcclCommunicator(Handle(log)).send(buffer[2:], 0, STREAM)
    assert log == [("send", buffer.data_ptr() + 2, 4, 1, 0, COMM, 77)]


def test_a_split_gives_a_communicator_and_lets_its_parent_forget_it(module: Any, log: list[Any]) -> None:
    made = module.NcclCommunicator(Parent(log))
    assert isinstance(made.split(3, 1), module.NcclCommunicator)
    assert made.split(None, 0) is None
    asked = ("get_async_error",)
    assert log == [("split", 3, 1), asked, ("split", None, 0), asked]


def test_records_of_different_lengths_are_exchanged(module: Any, log: list[Any]) -> None:
    class Echo(module.NcclCommunicator):  # type: ignore[misc]
        """Three ranks, of which the first exchanges an empty record and the last the same as this one."""

        def _gather_rows(self, row: torch.Tensor) -> torch.Tensor:
            return torch.stack([torch.zeros_like(row), row, row])

    made = Echo(Handle(log))
    for record, default in ((b"a few words", "cpu"), (b"", "cpu"), (b"more", "meta")):
        with torch.device(default):
            assert made.exchange(record) == [b"", record, record]
