"""Transports of one rank that record their calls: one that takes tensors, and one that takes addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from restripe.transport.protocol import AddressCopy, Collective, Enqueue, Message

from .address_transport import bytes_at, prepare_copies

RECEIVED = 9  # the value of every byte that they receive


class TensorTransport:
    """A transport of tensors; it leaves alone what it gathers and broadcasts."""

    rank, size = 0, 2

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.calls: list[tuple[Any, ...]] = []

    @contextmanager
    def group(self) -> Iterator[None]:
        self.calls.append(("group",))
        yield
        self.calls.append(("end",))

    def send(self, buffer: torch.Tensor, peer: int, stream: Any = None) -> None:
        self.calls.append(("send", self._values(buffer), peer, stream))

    def recv(self, buffer: torch.Tensor, peer: int, stream: Any = None) -> None:
        self.calls.append(("recv", len(self._values(buffer)), peer, stream))
        buffer.fill_(RECEIVED)

    def all_gather(self, output: torch.Tensor, stripe: torch.Tensor, stream: Any = None) -> None:
        self.calls.append(("all_gather", self._values(output), self._values(stripe), stream))

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Any = None) -> None:
        self.calls.append(("broadcast", self._values(buffer), root, stream))

    def _values(self, buffer: torch.Tensor) -> list[int]:
        assert buffer.dtype == torch.uint8
        assert buffer.dim() == 1
        assert buffer.is_contiguous()
        assert not buffer.is_inference()
        assert not buffer.requires_grad
        return buffer.tolist()


class AddressTransport:
    """A transport that takes addresses, and records the calls that a `TensorTransport` would."""

    rank, size, device = 0, 2, torch.device("cpu")

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def p2p(self, sends: Sequence[Message], receives: Sequence[Message]) -> Enqueue:
        def enqueue(handle: int | None) -> None:
            self.calls.append(("group",))
            for address, length, peer in sends:
                self.calls.append(("send", bytes_at(address, length).tolist(), peer, handle))
            for address, length, peer in receives:
                self.calls.append(("recv", length, peer, handle))
                bytes_at(address, length).fill_(RECEIVED)
            self.calls.append(("end",))

        return enqueue

    def collectives(self, all_gathers: Sequence[Collective], broadcasts: Sequence[Collective]) -> Enqueue:
        def enqueue(handle: int | None) -> None:
            self.calls.append(("group",))
            for into, out_of, length in all_gathers:
                whole, stripe = bytes_at(into, self.size * length), bytes_at(out_of, length)
                self.calls.append(("all_gather", whole.tolist(), stripe.tolist(), handle))
            for address, length, root in broadcasts:
                self.calls.append(("broadcast", bytes_at(address, length).tolist(), root, handle))
            self.calls.append(("end",))

        return enqueue

    def copies(self, copies: Sequence[AddressCopy]) -> Enqueue:
        return prepare_copies(copies)
