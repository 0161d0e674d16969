"""Running a program: round by round, pack, exchange, unpack and rebuild. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import torch

from restripe.execution.memory import Memory, allocate
from restripe.execution.program import Copy, Gather, Program, Round, Span
from restripe.transport.protocol import Communicator


class _Memories:
    """The memories of one run by number: locals as they are first needed, buffers while their round lasts."""

    def __init__(self, tensors: list[torch.Tensor | None], device: torch.device) -> None:
        self._tensors, self._device = tensors, device
        self._known: dict[int, Memory] = {}

    def __getitem__(self, number: int) -> Memory:
        memory = self._known.get(number)
        if memory is None:
            tensor = self._tensors[number]
            if tensor is None:
                raise IndexError(f"memory {number} is not this rank's")
            memory = self._known[number] = Memory(tensor)
        return memory

    def at(self, span: Span) -> torch.Tensor:
        """The bytes of a span."""
        return self[span.memory].span(span)

    def begin(self, step: Round) -> None:
        for buffer in step.buffers:
            self._tensors[buffer.memory] = allocate(buffer, self._device)

    def end(self, step: Round) -> None:
        for number in step.drops:
            self._tensors[number] = None
            self._known.pop(number, None)


@torch.inference_mode(False)  # a transport may write to a tensor made here from elsewhere, where no mode is entered
def execute(
    program: Program,
    tensors: Sequence[torch.Tensor | None],
    communicator: Communicator,
    replicas: Sequence[Communicator | None],
    stream: Any = None,
) -> None:
    """Run a program on local tensors; every rank of the communicator runs its own of the same submission.

    Args:
        tensors: source and destination of each tensor, in turn; None where this rank has none.
        replicas: by split, the communicator of this rank's replica group, where it is in one.
    """
    buffers = [None] * (program.memories - len(tensors))
    memories = _Memories([*tensors, *buffers], communicator.device)
    for step in program.rounds:
        memories.begin(step)
        _copy(step.packs, memories)
        if step.sends or step.receives:
            _exchange(step, memories, communicator, stream)
        _copy([*step.unpacks, *step.stays], memories)  # what crosses may be on its way meanwhile
        _rebuild(step, memories, replicas, stream)
        _copy(step.finishes, memories)
        memories.end(step)


def _exchange(step: Round, memories: _Memories, communicator: Communicator, stream: Any) -> None:
    with communicator.group():
        for span, peer in step.sends:
            communicator.send(memories.at(span), peer, stream)
        for span, peer in step.receives:
            communicator.recv(memories.at(span), peer, stream)


def _rebuild(step: Round, memories: _Memories, replicas: Sequence[Communicator | None], stream: Any) -> None:
    """The fan-outs, those of one split in one group."""
    for split, rebuilds in groupby(step.rebuilds, attrgetter("split")):
        members = members_of(replicas, split)
        with members.group():
            for one in rebuilds:
                if isinstance(one, Gather):
                    members.all_gather(memories.at(one.whole), memories.at(one.stripe), stream)
                else:
                    members.broadcast(memories.at(one.stripe), one.root, stream)


def members_of(replicas: Sequence[Any], split: int) -> Any:
    """The communicator that a rank's stripes are shared over."""
    members = replicas[split]
    if members is None:
        raise RuntimeError("a rank with a stripe has to be in a replica group")
    return members


def _copy(copies: Sequence[Copy], memories: _Memories) -> None:
    """All in one call, which may batch them."""
    if copies:
        into = [memories[to.memory].view(to) for to, _ in copies]
        torch._foreach_copy_(into, [memories[of.memory].view(of) for _, of in copies])
