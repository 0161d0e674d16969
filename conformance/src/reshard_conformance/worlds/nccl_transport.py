"""The transport protocol over NCCL: nccl4py's bindings, with raw pointers and byte counts, so that every dtype works."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from nccl.bindings import nccl as bindings
from nccl.core import Communicator as Handle
from nccl.core import UniqueId, get_unique_id
from torch._C._distributed_c10d import Store

from reshard_conformance.contract import Stream
from reshard_conformance.judge.memory import unmetered
from reshard_conformance.worlds.deferred import DeferredCalls

__all__ = ["NcclCommunicator", "create_communicator", "nccl_version"]

#: ncclUint8
UINT8 = 1


def nccl_version() -> int:
    """Return the loaded nccl_version of NCCL, such as 23007 for 2.30.7."""
    return int(bindings.get_version())


def create_communicator(store: Store, key: str, rank: int, size: int) -> Any:
    """Return nccl4py's communicator over all ranks that call with this key, on the current device. Collective."""
    if rank == 0:
        store.set(key, bytes(get_unique_id()).hex())
    return Handle.init(size, rank, UniqueId.from_bytes(bytes.fromhex(store.get(key).decode())))


class NcclCommunicator:
    """One rank's NCCL communicator; see the transport protocol. handle: nccl4py's communicator."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.raw = bindings.Comm(handle.ptr)
        self.rank, self.size = int(handle.rank), int(handle.nranks)
        self.device = torch.device("cuda", int(handle.device.device_id))
        self.deferred: DeferredCalls[Callable[[], None]] = DeferredCalls(submit)

    def group(self) -> AbstractContextManager[None]:
        return self.deferred.group()

    def send(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.call(bindings.send, (buffer,), buffer.numel(), UINT8, peer, self.raw, self.stream_pointer(stream))

    def recv(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.call(bindings.recv, (buffer,), buffer.numel(), UINT8, peer, self.raw, self.stream_pointer(stream))

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Stream | None = None) -> None:  # noqa: A002 - the protocol's name
        self.call(bindings.all_gather, (input, output), input.numel(), UINT8, self.raw, self.stream_pointer(stream))

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Stream | None = None) -> None:
        self.call(
            bindings.broadcast, (buffer, buffer), buffer.numel(), UINT8, root, self.raw, self.stream_pointer(stream)
        )

    def exchange(self, record: bytes) -> list[bytes]:
        with unmetered():
            lengths = self.gather_rows(torch.tensor([len(record)])).flatten().tolist()
            row = torch.zeros(max(1, *lengths), dtype=torch.uint8)
            row[: len(record)] = torch.tensor(list(record), dtype=torch.uint8)
            rows = self.gather_rows(row)
        return [bytes(row[:length].tolist()) for row, length in zip(rows, lengths, strict=True)]

    def split(self, color: int | None, key: int) -> NcclCommunicator | None:
        child = self.handle.split(color, key)
        self.handle.get_async_error()  # until it is asked, nccl4py's parent keeps every child alive
        return None if color is None else NcclCommunicator(child)

    def finalize(self) -> None:
        self.handle.finalize()

    def destroy(self) -> None:
        self.handle.destroy()

    def abort(self) -> None:
        self.handle.abort()

    def call(self, function: Callable[..., None], buffers: tuple[torch.Tensor, ...], *arguments: Any) -> None:
        """Make or defer the call; a deferred call keeps its buffers alive, which nothing else does."""
        self.deferred.add(lambda: function(*(buffer.data_ptr() for buffer in buffers), *arguments))

    def stream_pointer(self, stream: Stream | None) -> int:
        return int((torch.cuda.current_stream(self.device) if stream is None else stream).cuda_stream)

    def gather_rows(self, row: torch.Tensor) -> torch.Tensor:
        """Return the rows of all ranks, on the host."""
        own_row = row.to(self.device).view(torch.uint8)
        rows = torch.empty(self.size * own_row.numel(), dtype=torch.uint8, device=self.device)
        self.all_gather(rows, own_row)
        return rows.cpu().view(row.dtype).view(self.size, -1)


def submit(calls: list[Callable[[], None]]) -> None:
    """Make the calls; several of them as one NCCL group."""
    if len(calls) == 1:
        calls[0]()
        return
    bindings.group_start()
    try:
        for call in calls:
            call()
    finally:
        bindings.group_end()
