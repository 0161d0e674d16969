"""Running a program by address, for a transport that takes addresses: nothing is looked at again while nothing moves.

The first time, each round's copies, messages and fan-outs are written down where its memories lie; a call like it allocates
the buffers and enqueues what is written. What is written down holds no memory: its tensors are aliases of addresses, good
while a call's tensors and buffers lie there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
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


class Written(NamedTuple):
    """A round where its memories lie.

    `places` are its buffers'; `beside` the bytes that stay while others cross; `shares` the all-gathers and broadcasts of each
    split.
    """

    places: list[Any]
    packs: Pair
    sends: list[Post]
    receives: list[Post]
    unpacks: Pair
    stays: Pair
    beside: int
    shares: list[tuple[int, list[Post], list[Post]]]
    finishes: Pair


class Addressed:
    """A program with the places of its memories.

    Args:
        geometries: of source and destination of each tensor, in turn; None where this rank has none.
        starts: where their first elements lie.
        device: which the addresses belong to.
    """

    def __init__(
        self,
        program: Program,
        geometries: Sequence[Geometry | None],
        starts: Sequence[int | None],
        device: torch.device,
    ) -> None:
        self._rounds, self._locals, self._device = program.rounds, len(geometries), device
        sizes = {n: (one.extent // one.itemsize, one.itemsize) for n, one in enumerate(geometries) if one is not None}
        buffers = [buffer for step in program.rounds for buffer in step.buffers]
        self._sizes = sizes | {buffer.memory: (buffer.elements, buffer.itemsize) for buffer in buffers}
        self._starts: list[Any] = [*starts, *[None] * (program.memories - self._locals)]
        self._written: list[Written | None] = [None] * len(program.rounds)

    def run(self, communicator: Any, replicas: Sequence[Any], stream: Any, aside: Aside | None = None) -> None:
        """Enqueue the rounds; every rank of the communicator runs its own of the same submission.

        Args:
            replicas: by split, the communicator of this rank's replica group, where it is in one.
            aside: a second stream for what stays on this rank while the rest crosses; None where there is one alone.
        """
        starts, buffers = self._starts, {}
        for number, step in enumerate(self._rounds):
            for buffer in step.buffers:
                tensor = buffers[buffer.memory] = allocate(buffer, self._device)
                starts[buffer.memory] = tensor.data_ptr()
            written = self._written[number]
            if written is None or written.places != starts[self._locals :]:
                written = self._written[number] = self._write(step)
            _cross(written, communicator, stream, aside)
            for split, gathers, spreads in written.shares:
                members_of(replicas, split).share(gathers, spreads, stream)
            if step.finishes:
                copy(*written.finishes)
            for memory in step.drops:
                starts[memory] = None
                del buffers[memory]

    @torch.inference_mode(False)  # what is made in that mode cannot be written to outside of it
    def _write(self, step: Round) -> Written:
        aliases: dict[int, torch.Tensor] = {}

        def pair(copies: Sequence[Copy]) -> Pair:
            for memory in {view.memory for both in copies for view in both} - aliases.keys():
                aliases[memory] = alias(self._starts[memory], *self._sizes[memory], self._device)
            into, out = [
                [aliases[view.memory].as_strided(view.sizes, view.strides, view.offset) for view in views]
                for views in (zip(*copies, strict=True) if copies else ((), ()))
            ]
            return into, out

        stays = pair(step.stays)
        return Written(
            self._starts[self._locals :],
            pair(step.packs),
            [(self._at(span), span.length, peer) for span, peer in step.sends],
            [(self._at(span), span.length, peer) for span, peer in step.receives],
            pair(step.unpacks),
            stays,
            sum(one.nbytes for one in stays[0]) if step.sends or step.receives else 0,
            [(split, *self._shared(list(some))) for split, some in groupby(step.rebuilds, attrgetter("split"))],
            pair(step.finishes),
        )

    def _shared(self, rebuilds: Sequence[Gather | Spread]) -> tuple[list[Post], list[Post]]:
        at = self._at
        gathers = [(at(one.whole), at(one.stripe), one.stripe.length) for one in rebuilds if isinstance(one, Gather)]
        spreads = [(at(one.stripe), one.stripe.length, one.root) for one in rebuilds if isinstance(one, Spread)]
        return gathers, spreads

    def _at(self, span: Span) -> int:
        return self._starts[span.memory] + span.offset  # type: ignore[no-any-return]


def _cross(written: Written, communicator: Any, stream: Any, aside: Aside | None) -> None:
    """What a round does before replicas share their stripes. Messages are on their way before what stays is copied."""
    beside = aside if aside is not None and written.beside > aside.least else None
    if beside is not None:
        beside.begin(stream)
    if written.packs[0]:
        copy(*written.packs)
    if written.sends or written.receives:
        communicator.post(written.sends, written.receives, stream)
    if written.unpacks[0]:
        copy(*written.unpacks)
    if beside is not None:
        beside.run(partial(copy, *written.stays), stream)
    elif written.stays[0]:
        copy(*written.stays)


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
