"""The transport protocol: the calls that restripe makes on a communicator. Anything that offers them can carry a reshard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeGuard

import torch


class Communicator(Protocol):
    """Messages and collectives between the ranks of one group.

    Buffers are flat, contiguous, nonempty uint8 tensors on `device`. `stream` is the CUDA stream to enqueue on, None on the
    CPU. A CPU transport has completed everything for this rank when the call, or the surrounding `group()`, ends.

    A transport that is also an `AddressTransport` is given addresses in place of tensors; NCCL's is one.
    """

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def device(self) -> torch.device:
        """The device of buffers."""

    def group(self) -> AbstractContextManager[Any]:
        """Submit the operations called inside together at the end; on an exception submit none."""

    def send(self, buffer: torch.Tensor, peer: int, stream: Any = None) -> None:
        """Send to `peer`; paired with its receives in order."""

    def recv(self, buffer: torch.Tensor, peer: int, stream: Any = None) -> None:
        """Receive from `peer`; paired with its sends in order."""

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Any = None) -> None:
        """Gather equal counts in rank order; `input` may be this rank's part of `output`."""

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Any = None) -> None:
        """Broadcast in place."""

    def exchange(self, record: bytes) -> list[bytes]:
        """Return every rank's record, in rank order; blocks the host."""

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Make a communicator of the ranks of one color, collective, ordered by key; None for color None."""

    def finalize(self) -> None:
        """Collective end of use."""

    def destroy(self) -> None:
        """Release."""

    def abort(self) -> None:
        """Release without waiting for any other rank."""


Message = tuple[int, int, int]  # address, length in bytes, peer
#: Of an all-gather: address to, address from, length there in bytes. Of a broadcast: address, length in bytes, root.
Collective = tuple[int, int, int]
Enqueue = Callable[[int | None], None]  # takes the handle of a stream, None on the CPU


class AddressCopy(NamedTuple):
    """A strided copy from one address to another; sizes and strides in bytes, the last dim of adjacent bytes."""

    into: int
    out_of: int
    sizes: tuple[int, ...]
    into_strides: tuple[int, ...]
    out_strides: tuple[int, ...]

    def widest_unit(self, most: int) -> int:
        """Return the power of two, at most `most` bytes, that both addresses, all strides and the last size are multiples of.

        The stride of a dim of size 1 is never taken.
        """
        bits = self.into | self.out_of | self.sizes[-1] | most
        for size, *strides in zip(self.sizes[:-1], self.into_strides[:-1], self.out_strides[:-1], strict=True):
            if size != 1:
                bits |= strides[0] | strides[1]
        return bits & -bits


class AddressTransport(Protocol):
    """The part of a transport that takes addresses, since making a tensor of a piece costs more than sending it.

    Each method prepares operations and returns a call that submits them together on the stream whose handle it is given, as
    often as wanted. No operation of one call depends on another.
    """

    def p2p(self, sends: Sequence[Message], receives: Sequence[Message]) -> Enqueue:
        """Prepare messages."""

    def collectives(self, all_gathers: Sequence[Collective], broadcasts: Sequence[Collective]) -> Enqueue:
        """Prepare all-gathers of equal lengths, and broadcasts in place."""

    def copies(self, copies: Sequence[AddressCopy]) -> Enqueue:
        """Prepare strided copies on the device."""


def takes_addresses(communicator: Any) -> TypeGuard[AddressTransport]:
    """Return whether a transport takes addresses."""
    return all(hasattr(communicator, name) for name in ("p2p", "collectives", "copies"))
