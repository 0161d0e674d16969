"""The transport protocol over gloo. It needs a store, but no default process group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, Work

from reshard_conformance.contract import Stream
from reshard_conformance.judge.memory import unmetered
from reshard_conformance.worlds.deferred import DeferredCalls

__all__ = ["GlooCommunicator"]

TAG_COUNT = 1 << 30


class GlooCommunicator:
    """One rank's gloo communicator; see the transport protocol.

    store: shared by all members, with a prefix of its own. timeout: of each call.
    """

    device = torch.device("cpu")

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.backend: Any = ProcessGroupGloo(store, rank, size, timeout)
        self.deferred: DeferredCalls[Callable[[], Work]] = DeferredCalls(submit)
        self.splits = 0
        self.messages: Counter[tuple[str, int]] = Counter()

    def group(self) -> AbstractContextManager[None]:
        return self.deferred.group()

    def send(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.call(lambda: self.open_backend().send([buffer], peer, self.tag("send", peer)), stream)

    def recv(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.call(lambda: self.open_backend().recv([buffer], peer, self.tag("recv", peer)), stream)

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Stream | None = None) -> None:  # noqa: A002 - the protocol's name
        self.call(lambda: self.open_backend()._allgather_base(output, input), stream)  # noqa: SLF001 - the flat form

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Stream | None = None) -> None:
        self.call(lambda: self.open_backend().broadcast(buffer, root), stream)

    def exchange(self, record: bytes) -> list[bytes]:
        with unmetered():
            lengths = self.gather_rows(torch.tensor([len(record)])).flatten().tolist()
            row = torch.zeros(max(1, *lengths), dtype=torch.uint8)
            row[: len(record)] = torch.tensor(list(record), dtype=torch.uint8)
            rows = self.gather_rows(row)
        return [bytes(row[:length].tolist()) for row, length in zip(rows, lengths, strict=True)]

    def split(self, color: int | None, key: int) -> GlooCommunicator | None:
        with unmetered():
            requests = self.gather_rows(torch.tensor([color is None, color or 0, key])).tolist()
        number, self.splits = self.splits, self.splits + 1
        if color is None:
            return None
        order = sorted((request[2], rank) for rank, request in enumerate(requests) if request[:2] == [0, color])
        store = PrefixStore(f"{number}.{color}", self.store)
        return GlooCommunicator(store, order.index((key, self.rank)), len(order), self.timeout)

    def finalize(self) -> None:
        self.open_backend().barrier().wait()

    def destroy(self) -> None:
        self.open_backend()
        self.backend = None

    def abort(self) -> None:
        self.open_backend()
        self.backend = None

    def open_backend(self) -> Any:
        if self.backend is None:
            raise RuntimeError(f"rank {self.rank}: the communicator was destroyed before")
        return self.backend

    def call(self, call: Callable[[], Work], stream: Stream | None) -> None:
        if stream is not None:
            raise ValueError(f"rank {self.rank}: a call on the CPU expects no stream, got {stream}")
        self.open_backend()
        self.deferred.add(call)

    def tag(self, op: str, peer: int) -> int:
        """Return the number of the message, which tells apart the messages that two ranks have in flight."""
        self.messages[op, peer] += 1
        return self.messages[op, peer] % TAG_COUNT

    def gather_rows(self, row: torch.Tensor) -> torch.Tensor:
        if self.deferred.depth:
            raise RuntimeError(f"rank {self.rank}: exchange and split block the host, and cannot be part of a group()")
        rows = torch.empty(self.size * row.numel(), dtype=row.dtype)
        self.open_backend()._allgather_base(rows, row).wait()  # noqa: SLF001 - the flat form
        return rows.view(self.size, -1)


def submit(calls: list[Callable[[], Work]]) -> None:
    """Start all calls, then wait for each."""
    for work in [call() for call in calls]:
        work.wait()
