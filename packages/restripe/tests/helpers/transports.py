"""Hand-written moves over communicators of restripe's, so that they run in simulated worlds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpu_bench.moves import Call
from gpu_bench.raw import Messages
from restripe.transport.protocol import Communicator


@dataclass(frozen=True)
class CommunicatorTransport:
    """A raw transport through a communicator of restripe's."""

    communicator: Communicator

    def p2p_group(self, sends: Messages, receives: Messages) -> Call:
        def call() -> None:
            with self.communicator.group():
                for buffer, peer in sends:
                    self.communicator.send(buffer, peer)
                for buffer, peer in receives:
                    self.communicator.recv(buffer, peer)

        return call

    def all_gather(self, output: torch.Tensor, part: torch.Tensor) -> Call:
        return lambda: self.communicator.all_gather(output, part)

    def broadcast(self, buffer: torch.Tensor, root: int) -> Call:
        return lambda: self.communicator.broadcast(buffer, root)

    def collective_group(self, calls: Sequence[Call]) -> Call:
        def call() -> None:
            with self.communicator.group():
                for collective in calls:
                    collective()

        return call

    def split(self, color: int, key: int) -> CommunicatorTransport:
        communicator = self.communicator.split(color, key)
        assert communicator is not None
        return CommunicatorTransport(communicator)
