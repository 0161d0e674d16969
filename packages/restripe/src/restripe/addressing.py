"""Running a program by address, for a transport that takes addresses: nothing is looked at again while nothing moves.

Each round's copies, messages and fan-outs are written down once where its memories lie, as calls that enqueue them; a program
with buffers allocates those each time. What is written down holds no memory: its tensors are aliases of addresses, good while
a call's tensors and buffers lie there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from restripe.execution import copy, members_of
from restripe.program import Copy, Gather, Geometry, Program, Round, Span, Spread
from restripe.staging import INTEGERS, allocate
from restripe.streams import Aside

Post = tuple[int, int, int]  # address, length in bytes, peer or root; of an all-gather to, from, length there
Pair = tuple[list[torch.Tensor], list[torch.Tensor]]  # into, out of
Enqueue = Callable[[Any], None]  # with the caller's stream


class Written(NamedTuple):
    """A round where its memories lie: the buffers' places, and what is called with the stream to enqueue it."""

    places: list[int | None]
    calls: list[Enqueue]


class Addressed:
    """A program with the places of its memories, over one communicator.

    Args:
        geometries: of source and destination of each tensor, in turn; None where this rank has none.
        starts: where their first elements lie, on the communicator's device.
        replicas: by split, the communicator of this rank's replica group, where it is in one.
        aside: a second stream for what stays on this rank while the rest crosses; None where there is one alone.
    """

    def __init__(
        self,
        program: Program,
        geometries: Sequence[Geometry | None],
        starts: Sequence[int | None],
        communicator: Any,
        replicas: Sequence[Any],
        aside: Aside | None = None,
    ) -> None:
        self._communicator, self._replicas, self._aside = communicator, replicas, aside
        sizes = {n: (one.extent // one.itemsize, one.itemsize) for n, one in enumerate(geometries) if one is not None}
        buffers = [buffer for step in program.rounds for buffer in step.buffers]
        self._sizes = sizes | {buffer.memory: (buffer.elements, buffer.itemsize) for buffer in buffers}
        self._starts = list(starts)
        self._places: list[int | None] = [None] * (program.memories - len(starts))
        self._rounds = program.rounds
        self._written: list[Written | None] = [None] * len(program.rounds)

    def calls(self) -> list[Enqueue]:
        """What enqueues the program; every rank of the communicator makes its own calls of the same submission."""
        if any(step.buffers for step in self._rounds):
            return [self._run]
        return [call for step in self._rounds for call in self._write(step)]

    def _run(self, stream: Any) -> None:
        """Enqueue the rounds; one is written down anew where a buffer of its has moved."""
        places, first, buffers = self._places, len(self._starts), {}
        for number, step in enumerate(self._rounds):
            for buffer in step.buffers:
                tensor = buffers[buffer.memory] = allocate(buffer, self._communicator.device)
                places[buffer.memory - first] = tensor.data_ptr()
            written = self._written[number]
            if written is None or written.places != places:
                written = self._written[number] = Written(places.copy(), self._write(step))
            for call in written.calls:
                call(stream)
            for memory in step.drops:
                places[memory - first] = None
                del buffers[memory]

    @torch.inference_mode(False)  # what is made in that mode cannot be written to outside of it
    def _write(self, step: Round) -> list[Enqueue]:
        """What a round enqueues, in order: messages are on their way before what stays is copied."""
        aliases: dict[int, torch.Tensor] = {}
        packs, unpacks, stays, finishes = (
            self._pair(copies, aliases) for copies in (step.packs, step.unpacks, step.stays, step.finishes)
        )
        calls, crosses, aside = _copying(packs), bool(step.sends or step.receives), self._aside
        if crosses:
            posts = [
                [(self._at(span), span.length, peer) for span, peer in some] for some in (step.sends, step.receives)
            ]
            calls.append(self._communicator.posts(*posts))
        calls += _copying(unpacks)
        if crosses and aside is not None and sum(one.nbytes for one in stays[0]) > aside.least:
            calls = [aside.begin, *calls, partial(aside.run, partial(copy, *stays))]
        else:
            calls += _copying(stays)
        for split, some in groupby(step.rebuilds, attrgetter("split")):
            calls.append(members_of(self._replicas, split).shares(*self._shared(list(some))))
        return calls + _copying(finishes)

    def _pair(self, copies: Sequence[Copy], aliases: dict[int, torch.Tensor]) -> Pair:
        """The pieces of copies, of one alias for each memory; new ones are added."""
        for memory in {view.memory for both in copies for view in both} - aliases.keys():
            aliases[memory] = alias(self._start(memory), *self._sizes[memory], self._communicator.device)
        into, out = [
            [aliases[view.memory].as_strided(view.sizes, view.strides, view.offset) for view in views]
            for views in (zip(*copies, strict=True) if copies else ((), ()))
        ]
        return into, out

    def _shared(self, rebuilds: Sequence[Gather | Spread]) -> tuple[list[Post], list[Post]]:
        at = self._at
        gathers = [(at(one.whole), at(one.stripe), one.stripe.length) for one in rebuilds if isinstance(one, Gather)]
        spreads = [(at(one.stripe), one.stripe.length, one.root) for one in rebuilds if isinstance(one, Spread)]
        return gathers, spreads

    def _at(self, span: Span) -> int:
        return self._start(span.memory) + span.offset

    def _start(self, memory: int) -> int:
        first = len(self._starts)
        start = self._starts[memory] if memory < first else self._places[memory - first]
        if start is None:
            raise IndexError(f"memory {memory} is not this rank's")
        return start


def _copying(pair: Pair) -> list[Enqueue]:
    """The call that copies, on the current stream, where there is anything to copy."""
    return [lambda _stream: copy(*pair)] if pair[0] else []


class _Memory:
    """Memory of a CUDA device as the array interface shows it: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html"""

    def __init__(self, address: int, elements: int, itemsize: int) -> None:
        kind = "|u1" if itemsize == 1 else f"<i{itemsize}"
        self.__cuda_array_interface__ = {
            "shape": (elements,),
            "strides": None,
            "typestr": kind,
            "data": (address, False),
            "version": 3,
        }


def alias(address: int, elements: int, itemsize: int, device: torch.device) -> torch.Tensor:
    """Integers of so many bytes each that lie at an address; the memory is another tensor's, which has to outlive their use."""
    if device.type == "cpu":
        return torch.frombuffer(
            (ctypes.c_uint8 * (elements * itemsize)).from_address(address), dtype=INTEGERS[itemsize]
        )
    found = torch.as_tensor(_Memory(address, elements, itemsize), device=device)
    if found.data_ptr() != address:
        raise RuntimeError(
            f"expected an alias of memory on {device}, and torch has copied it: it belongs to another device"
        )
    return found
