"""The transport protocol over NCCL: nccl4py's bindings, with raw pointers and byte counts, so that every dtype works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from nccl.bindings import nccl as bindings
from nccl.core import Communicator as Handle
from nccl.core import UniqueId, get_unique_id
from torch._C._distributed_c10d import Store

from reshard_conformance.contract import Stream
from reshard_conformance.memory import unmetered

__all__ = ["NcclCommunicator", "meet", "version"]

#: ncclUint8
BYTES = 1


def version() -> int:
    """The release of NCCL that is loaded, such as 23007 for 2.30.7."""
    return int(bindings.get_version())


def meet(store: Store, key: str, rank: int, size: int) -> Any:
    """nccl4py's communicator over all ranks that meet under a key of the store, on the current device. Collective."""
    if rank == 0:
        store.set(key, bytes(get_unique_id()).hex())
    return Handle.init(size, rank, UniqueId.from_bytes(bytes.fromhex(store.get(key).decode())))


class NcclCommunicator:
    """One rank's end of an NCCL communicator; see the transport protocol. handle: nccl4py's."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.raw = bindings.Comm(handle.ptr)
        self.rank, self.size = int(handle.rank), int(handle.nranks)
        self.device = torch.device("cuda", int(handle.device.device_id))
        self.held: list[Callable[[], None]] = []
        self.depth = 0

    @contextmanager
    def group(self) -> Iterator[None]:
        self.depth += 1
        try:
            yield
        except BaseException:
            self.held.clear()
            raise
        finally:
            self.depth -= 1
        if not self.depth:
            calls, self.held = self.held, []
            submit(calls)

    def send(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.call(bindings.send, buffer.data_ptr(), buffer.numel(), BYTES, peer, self.raw, self.pointer(stream))

    def recv(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.call(bindings.recv, buffer.data_ptr(), buffer.numel(), BYTES, peer, self.raw, self.pointer(stream))

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Stream | None = None) -> None:  # noqa: A002 - the protocol's name
        pointers = input.data_ptr(), output.data_ptr()
        self.call(bindings.all_gather, *pointers, input.numel(), BYTES, self.raw, self.pointer(stream))

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Stream | None = None) -> None:
        place = buffer.data_ptr()
        self.call(bindings.broadcast, place, place, buffer.numel(), BYTES, root, self.raw, self.pointer(stream))

    def exchange(self, record: bytes) -> list[bytes]:
        with unmetered():
            lengths = self.gather_rows(torch.tensor([len(record)])).flatten().tolist()
            row = torch.zeros(max(1, *lengths), dtype=torch.uint8)
            row[: len(record)] = torch.tensor(list(record), dtype=torch.uint8)
            rows = self.gather_rows(row)
        return [bytes(row[:length].tolist()) for row, length in zip(rows, lengths, strict=True)]

    def split(self, color: int | None, key: int) -> NcclCommunicator | None:
        child = self.handle.split(color, key)
        return None if color is None else NcclCommunicator(child)

    def finalize(self) -> None:
        self.handle.finalize()

    def destroy(self) -> None:
        self.handle.destroy()

    def abort(self) -> None:
        self.handle.abort()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        if self.depth:
            self.held.append(lambda: function(*arguments))
        else:
            function(*arguments)

    def pointer(self, stream: Stream | None) -> int:
        return int((torch.cuda.current_stream(self.device) if stream is None else stream).cuda_stream)

    def gather_rows(self, row: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, on the host."""
        mine = row.to(self.device).view(torch.uint8)
        rows = torch.empty(self.size * mine.numel(), dtype=torch.uint8, device=self.device)
        self.all_gather(rows, mine)
        return rows.cpu().view(row.dtype).view(self.size, -1)


def submit(calls: list[Callable[[], None]]) -> None:
    """Make the calls as one NCCL group."""
    bindings.group_start()
    try:
        for call in calls:
            call()
    finally:
        bindings.group_end()
