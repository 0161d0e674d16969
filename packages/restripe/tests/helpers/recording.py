"""A communicator that only notes how it is released, and a group that holds some."""

from __future__ import annotations

import torch

from restripe.group.communicators import Links
from restripe.group.registry import state


class Recorder:
    """A communicator that only notes how it is released."""

    rank, device = 0, torch.device("cpu")

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def finalize(self) -> None:
        self.log.append(f"finalize {self.name}")

    def destroy(self) -> None:
        self.log.append(f"destroy {self.name}")

    def abort(self) -> None:
        self.log.append(f"abort {self.name}")


class Failing(Recorder):
    """One that cannot even be aborted."""

    def abort(self) -> None:
        super().abort()
        raise OSError(self.name)


class Plain:
    """A group with nothing but an identity."""


def used(name: str, log: list[str], kind: type[Recorder] = Recorder) -> Plain:
    """A group that holds one communicator."""
    group = Plain()
    hold(group, kind(name, log))
    return group


def hold(group: Plain, recorder: Recorder) -> None:
    """Let the group's state own one more communicator."""
    state(group)._retired.append(Links(recorder, owned=True))  # type: ignore[arg-type]
