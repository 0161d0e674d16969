"""The transport protocol: all that restripe asks of a communicator. Anything that follows it can carry a reshard."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch


class Communicator(Protocol):
    """Messages and collectives between the ranks of one group.

    Buffers are flat, contiguous, nonempty uint8 tensors on `device`. `stream` is the CUDA stream to enqueue on, None on the
    CPU. A CPU transport has completed everything for this rank when the call, or the surrounding `group()`, ends.

    A transport that also has `posts`, `shares` and `copies` is given addresses, see `takes_addresses`. NCCL's is one.
    """

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def device(self) -> torch.device:
        """Where buffers live."""

    def group(self) -> AbstractContextManager[Any]:
        """What is called inside is submitted together at its end; on an exception nothing is submitted."""

    def send(self, buffer: torch.Tensor, peer: int, stream: Any = None) -> None:
        """Send to `peer`; paired with its receives in order."""

    def recv(self, buffer: torch.Tensor, peer: int, stream: Any = None) -> None:
        """Receive from `peer`; paired with its sends in order."""

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Any = None) -> None:
        """Gather equal counts in rank order; `input` may be this rank's part of `output`."""

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Any = None) -> None:
        """Broadcast in place."""

    def exchange(self, record: bytes) -> list[bytes]:
        """Every rank's record, in rank order; blocks the host."""

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Collective: a communicator of the ranks of one color, ordered by key; None for color None."""

    def finalize(self) -> None:
        """Collective end of use."""

    def destroy(self) -> None:
        """Release."""

    def abort(self) -> None:
        """Release without waiting for any other rank."""


def takes_addresses(communicator: Communicator) -> bool:
    """Whether a transport takes addresses in place of tensors: making a tensor of a piece costs more than sending it.

    Its `posts(sends, receives)` prepares lists of (address, length in bytes, peer), its `shares(gathers, spreads)` all-gathers,
    (address to, address from, length there) each, and broadcasts in place, (address, length, root) each, and its
    `copies(pieces)` a list of `Piece`, copies that no other one depends on. Each gives a call that submits them together on the
    stream whose handle it is given (None on the CPU), as often as wanted.
    """
    return all(hasattr(communicator, name) for name in ("posts", "shares", "copies"))
