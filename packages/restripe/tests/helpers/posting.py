"""A simulated communicator that takes addresses, as NCCL's does: what is posted is what lies there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from reshard_conformance.trace import Tracer
from restripe.transport.copy_tables import Piece

Post = tuple[int, int, int]


def lying_at(address: int, length: int) -> torch.Tensor:
    """The bytes at an address."""
    return torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8)


def copied(piece: Piece) -> None:
    """Make a copy that is told by address."""
    if 0 in piece.sizes:
        return
    dst, src = (
        lying_at(start, 1 + sum((size - 1) * step for size, step in zip(piece.sizes, strides, strict=True))).as_strided(
            piece.sizes, strides
        )
        for start, strides in ((piece.dst, piece.dst_strides), (piece.src, piece.src_strides))
    )
    dst.copy_(src)


def copying(pieces: Sequence[Piece]) -> Callable[[Any], None]:
    """The call that makes copies, whatever the stream."""

    def copy(_: Any) -> None:
        for piece in pieces:
            copied(piece)

    return copy


def piece(dst: torch.Tensor, src: torch.Tensor) -> Piece:
    """The copy between two views, by address."""
    size = dst.element_size()
    strides = ((*(step * size for step in one.stride()), 1) for one in (dst, src))
    return Piece(dst.data_ptr(), src.data_ptr(), (*dst.shape, size), *strides)


def judge(make: Callable[[list[Piece]], None], pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """The copies from the second to the first of each pair are made as torch makes them, and no other byte is written."""
    stores = [torch.empty(0, dtype=torch.uint8, device=dst.device).set_(dst.untyped_storage()) for dst, _ in pairs]
    for store in stores:
        store.fill_(0xEE)
    make([piece(*both) for both in pairs])
    made = [store.clone() for store in stores]
    for store, (dst, src) in zip(stores, pairs, strict=True):
        store.fill_(0xEE)
        dst.copy_(src)
    assert all(map(torch.equal, made, stores))


class Posting:
    """A communicator over a traced one."""

    def __init__(self, base: Tracer) -> None:
        self._base = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def posts(self, sends: list[Post], receives: list[Post]) -> Callable[[Any], None]:
        def post(stream: Any) -> None:
            with self.group():
                for address, length, peer in sends:
                    self.send(lying_at(address, length), peer, stream)
                for address, length, peer in receives:
                    self.recv(lying_at(address, length), peer, stream)

        return post

    def shares(self, gathers: list[Post], spreads: list[Post]) -> Callable[[Any], None]:
        def share(stream: Any) -> None:
            with self.group():
                for into, out, length in gathers:
                    whole = lying_at(into, length * self._base.size)
                    self.all_gather(whole, lying_at(out, length), stream)
                for address, length, root in spreads:
                    self.broadcast(lying_at(address, length), root, stream)

        return share

    def copies(self, pieces: list[Piece]) -> Callable[[Any], None]:
        return copying(pieces)

    def split(self, color: int | None, key: int) -> Posting | None:
        made: Any = self._base.split(color, key)
        return None if made is None else Posting(made)
