"""A simulated communicator that takes addresses, as NCCL's does: what is posted is what lies there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from reshard_conformance.trace import Tracer
from restripe.comm import Piece

Post = tuple[int, int, int]


def lying_at(address: int, length: int) -> torch.Tensor:
    """The bytes at an address."""
    return torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8)


def copied(piece: Piece) -> None:
    """Make a copy that is told by address."""
    dst, src = (
        lying_at(start, 1 + sum((size - 1) * step for size, step in zip(piece.sizes, strides, strict=True))).as_strided(
            piece.sizes, strides
        )
        for start, strides in ((piece.dst, piece.dst_strides), (piece.src, piece.src_strides))
    )
    dst.copy_(src)


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
        def copy(stream: Any) -> None:
            for piece in pieces:
                copied(piece)

        return copy

    def split(self, color: int | None, key: int) -> Posting | None:
        made: Any = self._base.split(color, key)
        return None if made is None else Posting(made)
