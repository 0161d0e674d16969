"""Running a program: round by round, pack, exchange, unpack and rebuild. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from restripe.binding import Copy, Round, Span
from restripe.comm import Communicator
from restripe.planning import FanOutKind
from restripe.staging import Memory, allocate


class _Memories:
    """The memories of one run by number: locals as they are first needed, buffers while their round lasts."""

    def __init__(self, tensors: Sequence[torch.Tensor | None], device: torch.device) -> None:
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

    def raw(self, span: Span) -> tuple[int, int]:
        """The address and length of a span, for a transport that takes them: a tensor would cost more than the call."""
        tensor = self._tensors[span.memory] if span.memory < len(self._tensors) else None
        start = self[span.memory].address if tensor is None else tensor.data_ptr()
        return start + span.offset, span.length

    def begin(self, step: Round) -> None:
        for buffer in step.buffers:
            self._known[buffer.memory] = allocate(buffer, self._device)

    def end(self, step: Round) -> None:
        for number in step.drops:
            del self._known[number]


def execute(
    program: Sequence[Round],
    tensors: Sequence[torch.Tensor | None],
    communicator: Communicator,
    replicas: Mapping[int, Communicator],
    stream: Any = None,
) -> None:
    """Run a program on local tensors; every rank of the communicator runs its own of the same submission.

    Args:
        tensors: source and destination of each tensor, in turn; None where this rank has none.
        replicas: by tensor, the communicator of this rank's replica group.
    """
    memories = _Memories(tensors, communicator.device)
    at: Callable[[Span], Any] = memories.raw if getattr(communicator, "takes_pointers", False) else memories.at
    with torch.inference_mode(False):  # a transport may write to a buffer from elsewhere, where no mode is entered
        for step in program:
            memories.begin(step)
            _copy(step.packs, memories)
            _exchange(step, at, communicator, stream)
            _copy(step.unpacks, memories)
            _rebuild(step, at, replicas, stream)
            _copy(step.finishes, memories)
            memories.end(step)


def _exchange(step: Round, at: Callable[[Span], Any], communicator: Communicator, stream: Any) -> None:
    if not step.sends and not step.receives:
        return
    with communicator.group():
        for span, peer in step.sends:
            communicator.send(at(span), peer, stream)
        for span, peer in step.receives:
            communicator.recv(at(span), peer, stream)


def _rebuild(step: Round, at: Callable[[Span], Any], replicas: Mapping[int, Communicator], stream: Any) -> None:
    for tensor, fan_out, whole, stripe in step.rebuilds:
        if fan_out.kind is FanOutKind.ALL_GATHER:
            replicas[tensor].all_gather(at(whole), at(stripe), stream)
        else:
            replicas[tensor].broadcast(at(whole), 0, stream)


def _copy(copies: Sequence[Copy], memories: _Memories) -> None:
    """Copy views into views; many in one call, which may batch them."""
    if not copies:
        return
    into = [memories[to.memory].view(to) for to, _ in copies]
    out = [memories[of.memory].view(of) for _, of in copies]
    if len(copies) == 1:
        into[0].copy_(out[0])
    else:
        torch._foreach_copy_(into, out)
