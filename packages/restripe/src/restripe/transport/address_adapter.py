"""Gives a transport that takes tensors the methods of one that takes addresses, so that one executor serves both."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from restripe.transport.protocol import (
    AddressCopy,
    AddressTransport,
    Collective,
    Communicator,
    Enqueue,
    Message,
    takes_addresses,
)

#: The widest unit that torch copies at once, and the narrower ones that odd addresses, sizes or strides need, by bytes.
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def addressed(communicator: Communicator) -> AddressTransport:
    """Return the transport itself where it takes addresses, else an adapter over it."""
    return communicator if takes_addresses(communicator) else AddressAdapter(communicator)


class AddressAdapter:
    """A transport of tensors, given addresses.

    The tensors are made when operations are prepared. They own no memory, and are no inference tensors in whatever mode they
    are made: a transport may write to them from a thread of its own, where no mode is entered.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._device = communicator.device

    def p2p(self, sends: Sequence[Message], receives: Sequence[Message]) -> Enqueue:
        """Prepare messages, submitted in one group."""
        out = [(self._bytes(address, length), peer) for address, length, peer in sends]
        into = [(self._bytes(address, length), peer) for address, length, peer in receives]

        def enqueue(_: int | None) -> None:
            stream = self._stream()
            with self._communicator.group():
                for buffer, peer in out:
                    self._communicator.send(buffer, peer, stream)
                for buffer, peer in into:
                    self._communicator.recv(buffer, peer, stream)

        return enqueue

    def collectives(self, all_gathers: Sequence[Collective], broadcasts: Sequence[Collective]) -> Enqueue:
        """Prepare all-gathers and broadcasts, submitted in one group."""
        size = self._communicator.size
        gathered = [
            (self._bytes(into, length * size), self._bytes(out_of, length)) for into, out_of, length in all_gathers
        ]
        shared = [(self._bytes(address, length), root) for address, length, root in broadcasts]

        def enqueue(_: int | None) -> None:
            stream = self._stream()
            with self._communicator.group():
                for output, stripe in gathered:
                    self._communicator.all_gather(output, stripe, stream)
                for buffer, root in shared:
                    self._communicator.broadcast(buffer, root, stream)

        return enqueue

    def copies(self, copies: Sequence[AddressCopy]) -> Enqueue:
        """Prepare strided copies, made by one call of torch's."""
        pairs = [self._views(copy) for copy in copies if 0 not in copy.sizes]
        into, out_of = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

        def enqueue(_: int | None) -> None:
            if pairs:  # torch refuses empty lists
                torch._foreach_copy_(into, out_of)

        return enqueue

    def _stream(self) -> Any:
        """Return the caller's stream, which is the current one; None on the CPU."""
        return torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None

    def _bytes(self, address: int, length: int) -> torch.Tensor:
        return tensor_at(address, length, self._device)

    def _views(self, copy: AddressCopy) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both sides of a copy, in elements of the widest integer that all of it is a multiple of."""
        unit = copy.widest_unit(max(INTEGERS))
        sizes = (*copy.sizes[:-1], copy.sizes[-1] // unit)
        with torch.inference_mode(False):  # a view in another dtype is an inference tensor in that mode
            into, out_of = (
                tensor_at(address, _extent(copy.sizes, strides), self._device)
                .view(INTEGERS[unit])
                .as_strided(sizes, (*(stride // unit for stride in strides[:-1]), 1))
                for address, strides in ((copy.into, copy.into_strides), (copy.out_of, copy.out_strides))
            )
        return into, out_of


def tensor_at(address: int, length: int, device: torch.device) -> torch.Tensor:
    """Return the bytes at an address of the device as a uint8 tensor that owns no memory."""
    with torch.inference_mode(False):
        if device.type == "cpu":
            return torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8)
        # what torch's own CUDA graphs use; the public way, __cuda_array_interface__, needs numpy
        storage = torch._C._construct_storage_from_data_pointer(address, device, length)
        return torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (length,), (1,))


def _extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """Return the bytes from the first to the last that a side of a copy touches."""
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
