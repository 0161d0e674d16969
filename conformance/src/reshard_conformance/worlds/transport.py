"""The transport protocol over gloo, on a store alone: no default process group is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, Work

from reshard_conformance.contract import Stream
from reshard_conformance.memory import unmetered
from reshard_conformance.worlds.holding import Holding

__all__ = ["GlooCommunicator"]

TAGS = 1 << 30


class GlooCommunicator:
    """One rank's end of a gloo communicator; see the transport protocol.

    store: shared by all members, with a prefix that no other communicator has.
    timeout: how long a call waits for the other ranks.
    """

    device = torch.device("cpu")

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.backend: Any = ProcessGroupGloo(store, rank, size, timeout)
        self.holding: Holding[Callable[[], Work]] = Holding(submit)
        self.splits = 0
        self.messages: Counter[tuple[str, int]] = Counter()

    def group(self) -> AbstractContextManager[None]:
        return self.holding.group()

    def send(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.call(lambda: self.alive().send([buffer], peer, self.tag("send", peer)), stream)

    def recv(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.call(lambda: self.alive().recv([buffer], peer, self.tag("recv", peer)), stream)

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Stream | None = None) -> None:  # noqa: A002 - the protocol's name
        self.call(lambda: self.alive()._allgather_base(output, input), stream)  # noqa: SLF001 - the flat form

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Stream | None = None) -> None:
        self.call(lambda: self.alive().broadcast(buffer, root), stream)

    def exchange(self, record: bytes) -> list[bytes]:
        with unmetered():
            lengths = self.gather_rows(torch.tensor([len(record)])).flatten().tolist()
            row = torch.zeros(max(1, *lengths), dtype=torch.uint8)
            row[: len(record)] = torch.tensor(list(record), dtype=torch.uint8)
            rows = self.gather_rows(row)
        return [bytes(row[:length].tolist()) for row, length in zip(rows, lengths, strict=True)]

    def split(self, color: int | None, key: int) -> GlooCommunicator | None:
        with unmetered():
            wishes = self.gather_rows(torch.tensor([color is None, color or 0, key])).tolist()
        number, self.splits = self.splits, self.splits + 1
        if color is None:
            return None
        order = sorted((wish[2], rank) for rank, wish in enumerate(wishes) if wish[:2] == [0, color])
        store = PrefixStore(f"{number}.{color}", self.store)
        return GlooCommunicator(store, order.index((key, self.rank)), len(order), self.timeout)

    def finalize(self) -> None:
        self.alive().barrier().wait()

    def destroy(self) -> None:
        self.alive()
        self.backend = None

    def abort(self) -> None:
        self.alive()
        self.backend = None

    def alive(self) -> Any:
        if self.backend is None:
            raise RuntimeError(f"rank {self.rank}: the communicator was destroyed before")
        return self.backend

    def call(self, call: Callable[[], Work], stream: Stream | None) -> None:
        if stream is not None:
            raise ValueError(f"rank {self.rank}: a call on the CPU expects no stream, got {stream}")
        self.alive()
        self.holding.take(call)

    def tag(self, op: str, peer: int) -> int:
        """The number of the message, which tells apart what a pair has in flight at once."""
        self.messages[op, peer] += 1
        return self.messages[op, peer] % TAGS

    def gather_rows(self, row: torch.Tensor) -> torch.Tensor:
        if self.holding.depth:
            raise RuntimeError(f"rank {self.rank}: exchange and split block the host, and cannot be part of a group()")
        rows = torch.empty(self.size * row.numel(), dtype=row.dtype)
        self.alive()._allgather_base(rows, row).wait()  # noqa: SLF001 - the flat form
        return rows.view(self.size, -1)


def submit(calls: list[Callable[[], Work]]) -> None:
    """Start all calls before waiting for any."""
    for work in [call() for call in calls]:
        work.wait()
