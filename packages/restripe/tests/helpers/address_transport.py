"""A traced communicator that takes addresses itself, as NCCL's does, and copies by address held against torch's own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from reshard_conformance.judge.trace import Tracer
from restripe.execution.coalesce import collapse_dims
from restripe.execution.program import StridedCopy
from restripe.transport.protocol import AddressCopy, Collective, Enqueue, Message

GUARD = 0xEE  # what memory around a copy holds before it


def bytes_at(address: int, length: int) -> torch.Tensor:
    """Return the bytes at an address of the host's as a tensor that shares them."""
    return torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8)


def make_copy(copy: AddressCopy) -> None:
    """Make one copy on the host, byte by byte."""
    if 0 in copy.sizes:
        return
    into, out_of = (
        bytes_at(start, 1 + sum((size - 1) * step for size, step in zip(copy.sizes, strides, strict=True))).as_strided(
            copy.sizes, strides
        )
        for start, strides in ((copy.into, copy.into_strides), (copy.out_of, copy.out_strides))
    )
    into.copy_(out_of)


def prepare_copies(copies: Sequence[AddressCopy]) -> Enqueue:
    """Return the call that makes copies on the host, whatever the stream."""

    def enqueue(_: int | None) -> None:
        for copy in copies:
            make_copy(copy)

    return enqueue


def address_copy(into: torch.Tensor, out_of: torch.Tensor) -> AddressCopy:
    """Return the copy from one view to another of the same sizes, by address."""
    size = into.element_size()
    strides = ((*(step * size for step in tensor.stride()), 1) for tensor in (into, out_of))
    return AddressCopy(into.data_ptr(), out_of.data_ptr(), (*into.shape, size), *strides)


def collapsed_copy(into: torch.Tensor, out_of: torch.Tensor) -> AddressCopy:
    """Return the copy from one view to another as lowering makes it, in as few dims as it can have."""
    whole = address_copy(into, out_of)
    copy = collapse_dims(StridedCopy(0, 0, 0, 0, whole.sizes, whole.into_strides, whole.out_strides))
    return whole._replace(sizes=copy.sizes, into_strides=copy.into_strides, out_strides=copy.out_strides)


def assert_copies_like_torch(
    make: Callable[[list[AddressCopy]], None], pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Assert that the copies from the second to the first of each pair are torch's, and write no other byte.

    Every other copy has its dims collapsed.
    """
    storages = [torch.empty(0, dtype=torch.uint8, device=dst.device).set_(dst.untyped_storage()) for dst, _ in pairs]
    for storage in storages:
        storage.fill_(GUARD)
    make([(collapsed_copy if number % 2 else address_copy)(*pair) for number, pair in enumerate(pairs)])
    made = [storage.clone() for storage in storages]
    for storage, (dst, src) in zip(storages, pairs, strict=True):
        storage.fill_(GUARD)
        dst.copy_(src)
    assert all(map(torch.equal, made, storages))


class AddressTracer:
    """A communicator that takes addresses, over a traced one that takes tensors; its splits take addresses too."""

    def __init__(self, base: Tracer) -> None:
        self.base = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def p2p(self, sends: Sequence[Message], receives: Sequence[Message]) -> Enqueue:
        def enqueue(stream: Any) -> None:
            with self.group():
                for address, length, peer in sends:
                    self.send(bytes_at(address, length), peer, stream)
                for address, length, peer in receives:
                    self.recv(bytes_at(address, length), peer, stream)

        return enqueue

    def collectives(self, all_gathers: Sequence[Collective], broadcasts: Sequence[Collective]) -> Enqueue:
        def enqueue(stream: Any) -> None:
            with self.group():
                for into, out_of, length in all_gathers:
                    whole = bytes_at(into, length * self.base.size)
                    self.all_gather(whole, bytes_at(out_of, length), stream)
                for address, length, root in broadcasts:
                    self.broadcast(bytes_at(address, length), root, stream)

        return enqueue

    def copies(self, copies: Sequence[AddressCopy]) -> Enqueue:
        return prepare_copies(copies)

    def split(self, color: int | None, key: int) -> AddressTracer | None:
        made: Any = self.base.split(color, key)
        return None if made is None else AddressTracer(made)
