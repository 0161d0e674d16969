"""A simulated communicator that takes addresses, as NCCL's does: what is posted is what lies there."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from reshard_conformance.trace import Tracer

Place = tuple[int, int]  # address, length in bytes


def lying_at(place: Any) -> torch.Tensor:
    """The bytes at an address; a tensor as it is."""
    if isinstance(place, torch.Tensor):
        return place
    address, length = place
    return torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8)


class Posting:
    """A communicator over a traced one."""

    def __init__(self, base: Tracer) -> None:
        self._base = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def post(self, sends: list[tuple[int, int, int]], receives: list[tuple[int, int, int]], stream: Any = None) -> None:
        with self.group():
            for address, length, peer in sends:
                self.send(lying_at((address, length)), peer, stream)
            for address, length, peer in receives:
                self.recv(lying_at((address, length)), peer, stream)

    def all_gather(self, output: Place, part: Place, stream: Any = None) -> None:
        self._base.all_gather(lying_at(output), lying_at(part), stream)

    def broadcast(self, buffer: Place, root: int, stream: Any = None) -> None:
        self._base.broadcast(lying_at(buffer), root, stream)

    def split(self, color: int | None, key: int) -> Posting | None:
        made: Any = self._base.split(color, key)
        return None if made is None else Posting(made)
