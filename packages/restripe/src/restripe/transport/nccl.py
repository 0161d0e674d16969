"""The transport protocol over NCCL: nccl4py's bindings, called with raw pointers and byte counts, so that every dtype works.

This is the only module that imports nccl4py, and it is imported when a group first needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
from nccl.bindings import nccl as bindings
from nccl.core import Communicator as Handle
from nccl.core import UniqueId, get_unique_id
from torch._C._distributed_c10d import Store

from restripe.transport import copy_kernel as kernel
from restripe.transport.copy_tables import Piece

_BYTES = 1  # ncclUint8
Posts = Sequence[tuple[int, int, int]]
Call = Callable[[Any], None]  # with the stream's handle


class NcclCommunicator:
    """An NCCL communicator on one GPU.

    Args:
        handle: nccl4py's communicator.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._comm = bindings.Comm(handle.ptr)
        self.rank, self.size = int(handle.rank), int(handle.nranks)
        self.device = torch.device("cuda", int(handle.device.device_id))
        self._kernel = kernel.loaded(self.device)
        self._queue: list[Callable[[], None]] | None = None

    @classmethod
    def meet(cls, store: Store, prefix: str, rank: int, size: int, device: torch.device) -> Self:
        """A communicator of all ranks that meet under the prefix on a store. Collective."""
        kernel.loaded(device)  # where it cannot be, nobody has met yet
        if rank == 0:
            store.set(prefix, bytes(get_unique_id()))  # type: ignore[arg-type]  # torch types it narrower than it is
        with torch.cuda.device(device):
            return cls(Handle.init(size, rank, UniqueId.from_bytes(store.get(prefix))))

    def group(self) -> Self:
        """This communicator, as the context in which calls are held back and then submitted together."""
        return self

    def __enter__(self) -> None:
        self._queue = []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        queue, self._queue = self._queue, None
        if error is None and queue:
            _together(queue)

    def posts(self, sends: Posts, receives: Posts) -> Call:
        """A call that submits messages together on the stream of a handle: (address, length in bytes, peer) each."""
        comm = self._comm
        return _prepared(
            [partial(bindings.send, address, length, _BYTES, peer, comm) for address, length, peer in sends]
            + [partial(bindings.recv, address, length, _BYTES, peer, comm) for address, length, peer in receives]
        )

    def shares(self, gathers: Posts, spreads: Posts) -> Call:
        """The same of all-gathers, (to, from, length there) each, and broadcasts in place, (address, length, root)."""
        comm = self._comm
        return _prepared(
            [partial(bindings.all_gather, out, into, length, _BYTES, comm) for into, out, length in gathers]
            + [partial(bindings.broadcast, at, at, length, _BYTES, root, comm) for at, length, root in spreads]
        )

    def copies(self, pieces: Sequence[Piece]) -> Call:
        """The same of strided copies on the device."""
        return kernel.copies(pieces, self._kernel)

    def send(self, buffer: torch.Tensor, peer: int, stream: Any = None) -> None:
        self._submit(partial(bindings.send, buffer.data_ptr(), buffer.numel(), _BYTES, peer, self._comm), stream)

    def recv(self, buffer: torch.Tensor, peer: int, stream: Any = None) -> None:
        self._submit(partial(bindings.recv, buffer.data_ptr(), buffer.numel(), _BYTES, peer, self._comm), stream)

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Any = None) -> None:
        addresses = input.data_ptr(), output.data_ptr()
        self._submit(partial(bindings.all_gather, *addresses, input.numel(), _BYTES, self._comm), stream)

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Any = None) -> None:
        addresses = buffer.data_ptr(), buffer.data_ptr()
        self._submit(partial(bindings.broadcast, *addresses, buffer.numel(), _BYTES, root, self._comm), stream)

    def exchange(self, record: bytes) -> list[bytes]:
        sizes = self._gather(torch.tensor([len(record)], dtype=torch.int64, device="cpu")).flatten().tolist()
        padded = torch.zeros(max(1, *sizes), dtype=torch.uint8, device="cpu")
        if record:
            padded[: len(record)] = torch.frombuffer(bytearray(record), dtype=torch.uint8)
        return [bytes(row[:size].tolist()) for row, size in zip(self._gather(padded), sizes, strict=True)]

    def split(self, color: int | None, key: int) -> NcclCommunicator | None:
        child = self._handle.split(color, key)
        self._handle.get_async_error()  # until it is asked, nccl4py's parent keeps every child alive
        return None if color is None else NcclCommunicator(child)

    def finalize(self) -> None:
        self._handle.finalize()

    def destroy(self) -> None:
        self._handle.destroy()

    def abort(self) -> None:
        self._handle.abort()

    def _submit(self, post: Call, stream: Any) -> None:
        if stream is None:
            stream = torch.cuda.current_stream(self.device)
        call = partial(post, stream.cuda_stream)
        if self._queue is None:
            call()
        else:
            self._queue.append(call)

    def _gather(self, row: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, on the host."""
        mine = row.to(self.device).view(torch.uint8)
        rows = torch.empty(self.size * mine.numel(), dtype=torch.uint8, device=self.device)
        self.all_gather(rows, mine)
        return rows.cpu().view(row.dtype).reshape(self.size, -1)


def _prepared(calls: Sequence[Call]) -> Call:
    """The call that makes these on the stream of a handle; one alone needs no group."""
    return calls[0] if len(calls) == 1 else partial(_together, calls)


def _together(calls: Sequence[Callable[..., None]], *arguments: int) -> None:
    """Make the calls, each with these arguments, in one group."""
    bindings.group_start()
    try:
        for call in calls:
            call(*arguments)
    finally:
        bindings.group_end()
