"""The transport protocol over NCCL: nccl4py's bindings, called with raw pointers and byte counts, so that every dtype works.

This is the only module that imports nccl4py; it is imported when a group needs it for the first time.
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

from restripe.transport import copy_kernel
from restripe.transport.exchange import exchange_records
from restripe.transport.protocol import AddressCopy, Collective, Enqueue, Message

_BYTES = 1  # ncclUint8


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
        self._kernel = copy_kernel.load_kernel(self.device)
        self._queue: list[Callable[[], None]] | None = None

    @classmethod
    def meet(cls, store: Store, prefix: str, rank: int, size: int, device: torch.device) -> Self:
        """Make a communicator of all ranks that meet under the prefix on a store. Collective."""
        copy_kernel.load_kernel(device)  # a host that cannot fails before it meets the others
        if rank == 0:
            store.set(prefix, bytes(get_unique_id()))  # type: ignore[arg-type]  # torch types it narrower than it is
        with torch.cuda.device(device):
            return cls(Handle.init(size, rank, UniqueId.from_bytes(store.get(prefix))))

    def group(self) -> Self:
        """Return this communicator as the context in which operations are held back and then submitted together."""
        return self

    def __enter__(self) -> None:
        self._queue = []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        queue, self._queue = self._queue, None
        if error is None and queue:
            _submit_group(queue)

    def p2p(self, sends: Sequence[Message], receives: Sequence[Message]) -> Enqueue:
        """Prepare messages; see `AddressTransport`."""
        comm = self._comm
        return _group_call(
            [partial(bindings.send, address, length, _BYTES, peer, comm) for address, length, peer in sends]
            + [partial(bindings.recv, address, length, _BYTES, peer, comm) for address, length, peer in receives]
        )

    def collectives(self, all_gathers: Sequence[Collective], broadcasts: Sequence[Collective]) -> Enqueue:
        """Prepare all-gathers and broadcasts; see `AddressTransport`."""
        comm = self._comm
        return _group_call(
            [partial(bindings.all_gather, out_of, into, length, _BYTES, comm) for into, out_of, length in all_gathers]
            + [
                partial(bindings.broadcast, address, address, length, _BYTES, root, comm)
                for address, length, root in broadcasts
            ]
        )

    def copies(self, copies: Sequence[AddressCopy]) -> Enqueue:
        """Prepare strided copies on the device; see `AddressTransport`."""
        return copy_kernel.prepare_copies(copies, self._kernel)

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
        return exchange_records(record, self._gather_rows)

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

    def _submit(self, operation: Callable[[int], None], stream: Any) -> None:
        if stream is None:
            stream = torch.cuda.current_stream(self.device)
        call = partial(operation, stream.cuda_stream)
        if self._queue is None:
            call()
        else:
            self._queue.append(call)

    def _gather_rows(self, row: torch.Tensor) -> torch.Tensor:
        """Return the rows of all ranks, on the host."""
        on_device = row.to(self.device).view(torch.uint8)
        rows = torch.empty(self.size * on_device.numel(), dtype=torch.uint8, device=self.device)
        self.all_gather(rows, on_device)
        return rows.cpu().view(row.dtype).reshape(self.size, -1)


def _group_call(operations: Sequence[Callable[..., None]]) -> Enqueue:
    """Return the call that submits operations on the stream of a handle; one alone needs no group."""
    return operations[0] if len(operations) == 1 else partial(_submit_group, operations)


def _submit_group(operations: Sequence[Callable[..., None]], *arguments: int) -> None:
    """Make the operations, each with these arguments, in one NCCL group."""
    bindings.group_start()
    try:
        for operation in operations:
            operation(*arguments)
    finally:
        bindings.group_end()
