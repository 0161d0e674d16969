"""What hand-written moves send through."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch

from restripe.bench.calls import Call
from restripe.transport.protocol import Communicator

Messages = Sequence[tuple[torch.Tensor, int]]  # bytes and the other rank


class Wire(Protocol):
    """Sends and receives without a library's help: the calls are put together beforehand, and enqueue on the current stream."""

    def messages(self, sends: Messages, receives: Messages) -> Call:
        """All of them in one group."""

    def gather(self, output: torch.Tensor, part: torch.Tensor) -> Call:
        """An all-gather of equal parts, in rank order; `part` may be this rank's place in `output`."""

    def broadcast(self, buffer: torch.Tensor, root: int) -> Call:
        """A broadcast in place."""

    def together(self, calls: Sequence[Call]) -> Call:
        """Gathers and broadcasts in one group."""

    def split(self, color: int, key: int) -> Self:
        """Collective: a wire among the ranks of one color, ordered by key."""


@dataclass(frozen=True)
class ModuleWire:
    """Through a communicator of restripe's; `closing` ends those that are split from it."""

    communicator: Communicator
    closing: ExitStack = field(default_factory=ExitStack)

    def messages(self, sends: Messages, receives: Messages) -> Call:
        def call() -> None:
            with self.communicator.group():
                for buffer, peer in sends:
                    self.communicator.send(buffer, peer)
                for buffer, peer in receives:
                    self.communicator.recv(buffer, peer)

        return call

    def gather(self, output: torch.Tensor, part: torch.Tensor) -> Call:
        return lambda: self.communicator.all_gather(output, part)

    def broadcast(self, buffer: torch.Tensor, root: int) -> Call:
        return lambda: self.communicator.broadcast(buffer, root)

    def together(self, calls: Sequence[Call]) -> Call:
        def call() -> None:
            with self.communicator.group():
                for one in calls:
                    one()

        return call

    def split(self, color: int, key: int) -> ModuleWire:
        made = self.communicator.split(color, key)
        if made is None:
            raise RuntimeError("a rank with a color has to get a communicator")
        self.closing.callback(made.abort)
        return ModuleWire(made, self.closing)
