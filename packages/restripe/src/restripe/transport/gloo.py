"""The transport protocol over gloo, on a store and a prefix of its own: no default process group is needed or touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, Work

from restripe.transport.exchange import exchange_records

TAGS = 2**16  # the pair's count of messages starts anew after so many


class GlooCommunicator:
    """A gloo communicator.

    Args:
        store: a store that all ranks share.
        prefix: the keys' prefix; no other communicator on the store may have it.
        rank, size: this rank's number and the number of ranks.
        timeout: how long a rank waits for another, at birth and in every call.
    """

    device = torch.device("cpu")

    def __init__(self, store: Store, prefix: str, rank: int, size: int, timeout: timedelta) -> None:
        self.rank, self.size = rank, size
        self._store, self._prefix, self._timeout = store, prefix, timeout
        self._backend: Any = ProcessGroupGloo(PrefixStore(prefix, store), rank, size, timeout)
        self._splits = 0
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self._queue: list[Callable[[], Work]] | None = None

    @contextmanager
    def group(self) -> Iterator[None]:
        self._queue = []
        try:
            yield
            queue = self._queue
        finally:
            self._queue = None
        for work in [call() for call in queue]:
            work.wait()

    def send(self, buffer: torch.Tensor, peer: int, stream: Any = None) -> None:
        self._submit(lambda: self._backend.send([buffer], peer, _tag(self._sent, peer)))

    def recv(self, buffer: torch.Tensor, peer: int, stream: Any = None) -> None:
        self._submit(lambda: self._backend.recv([buffer], peer, _tag(self._received, peer)))

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Any = None) -> None:
        self._submit(lambda: self._backend._allgather_base(output, input))

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Any = None) -> None:
        self._submit(lambda: self._backend.broadcast(buffer, root))

    def exchange(self, record: bytes) -> list[bytes]:
        return exchange_records(record, self._gather_rows)

    def split(self, color: int | None, key: int) -> GlooCommunicator | None:
        choice = torch.tensor([color is not None, color or 0, key], dtype=torch.int64, device="cpu")
        choices = self._gather_rows(choice).tolist()
        self._splits += 1
        if color is None:
            return None
        members = sorted((choice[2], rank) for rank, choice in enumerate(choices) if choice[:2] == [1, color])
        prefix = f"{self._prefix}/{self._splits}.{color}"
        return GlooCommunicator(self._store, prefix, members.index((key, self.rank)), len(members), self._timeout)

    def finalize(self) -> None:
        """Do nothing: no operation of gloo's is in flight between two calls, so the collective end needs no message."""

    def destroy(self) -> None:
        del self._backend

    def abort(self) -> None:
        self._backend.abort()

    def _submit(self, call: Callable[[], Work]) -> None:
        if self._queue is None:
            call().wait()
        else:
            self._queue.append(call)

    def _gather_rows(self, row: torch.Tensor) -> torch.Tensor:
        output = torch.empty(self.size * row.numel(), dtype=row.dtype, device="cpu")
        self._backend._allgather_base(output, row).wait()
        return output.reshape(self.size, -1)


def _tag(counts: Counter[int], peer: int) -> int:
    """Return the next message's tag, so that a pair out of step times out instead of taking another call's bytes."""
    counts[peer] += 1
    return counts[peer] % TAGS
