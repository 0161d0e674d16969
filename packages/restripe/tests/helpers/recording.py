"""A communicator that only records how it is released, and groups that own some."""

from __future__ import annotations

from typing import Any

import torch

from restripe.group.communicators import Communicators
from restripe.group.registry import state_of


class RecordingCommunicator:
    """A communicator that only records how it is released."""

    rank, device = 0, torch.device("cpu")

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def finalize(self) -> None:
        self.log.append(f"finalize {self.name}")

    def destroy(self) -> None:
        self.log.append(f"destroy {self.name}")

    def abort(self) -> None:
        self.log.append(f"abort {self.name}")


class UnabortableCommunicator(RecordingCommunicator):
    """A communicator whose abort fails too."""

    def abort(self) -> None:
        super().abort()
        raise OSError(self.name)


class BareGroup:
    """A group with nothing but an identity."""


def group_owning(name: str, log: list[str], kind: type[RecordingCommunicator] = RecordingCommunicator) -> BareGroup:
    """Return a group whose state owns one communicator."""
    group = BareGroup()
    give_communicator(group, kind(name, log))
    return group


def give_communicator(group: BareGroup, communicator: RecordingCommunicator) -> None:
    """Let the group's state own one more communicator."""
    base: Any = communicator
    state_of(group)._retired.append(Communicators(base, owned=True))
