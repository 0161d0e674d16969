"""Running a program by address, for a transport that takes addresses: nothing is looked at again while nothing moves.

Each round's copies, messages and fan-outs are written down once where its memories lie, as calls that enqueue them; a program
with buffers allocates those each time. What is written down holds no memory: it is good while a call's tensors and buffers lie
there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from restripe.execution.by_tensor import members_of
from restripe.execution.memory import allocate
from restripe.execution.program import Copy, Gather, Geometry, Program, Round, Span, Spread, View
from restripe.execution.streams import Aside
from restripe.transport.copy_tables import Piece

Post = tuple[int, int, int]  # address, length in bytes, peer or root; of an all-gather to, from, length there
Enqueue = Callable[[Any], None]  # with the handle of the caller's stream, which is the current one


class Written(NamedTuple):
    """A round where its memories lie: the buffers' places, and what is called to enqueue it."""

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
        self._itemsizes = {number: one.itemsize for number, one in enumerate(geometries) if one is not None}
        self._itemsizes |= {buffer.memory: buffer.itemsize for step in program.rounds for buffer in step.buffers}
        self._starts = list(starts)
        self._places: list[int | None] = [None] * (program.memories - len(starts))
        self._rounds = program.rounds
        self._written: list[Written | None] = [None] * len(program.rounds)

    def calls(self) -> list[Enqueue]:
        """What enqueues the program; every rank of the communicator makes its own calls of the same submission."""
        if any(step.buffers for step in self._rounds):
            return [self._run]
        return [call for step in self._rounds for call in self._write(step)]

    def _run(self, handle: Any) -> None:
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
                call(handle)
            for memory in step.drops:
                places[memory - first] = None
                del buffers[memory]

    def _write(self, step: Round) -> list[Enqueue]:
        """What a round enqueues, in order.

        What stays is copied on the second stream where it is much, or else together with other copies, before the messages where
        those are packed first.
        """
        before, after = list(step.packs), list(step.unpacks)
        crosses, aside = bool(step.sends or step.receives), self._aside
        if crosses and aside is not None and self._bytes(step.stays) > aside.least:
            first, last = [aside.begin], [partial(aside.run, copies) for copies in self._copies(step.stays)]
        else:
            first, last = [], []
            (before or after).extend(step.stays)
        calls = first + self._copies(before) + (self._posts(step) if crosses else []) + self._copies(after) + last
        for split, some in groupby(step.rebuilds, attrgetter("split")):
            calls.append(members_of(self._replicas, split).shares(*self._shared(list(some))))
        return calls + self._copies(step.finishes)

    def _copies(self, copies: Sequence[Copy]) -> list[Enqueue]:
        """The call that makes the copies, where there are any."""
        return [self._communicator.copies([self._piece(*views) for views in copies])] if copies else []

    def _posts(self, step: Round) -> list[Enqueue]:
        posts = [[(self._at(span), span.length, peer) for span, peer in some] for some in (step.sends, step.receives)]
        return [self._communicator.posts(*posts)]

    def _shared(self, rebuilds: Sequence[Gather | Spread]) -> tuple[list[Post], list[Post]]:
        at = self._at
        gathers = [(at(one.whole), at(one.stripe), one.stripe.length) for one in rebuilds if isinstance(one, Gather)]
        spreads = [(at(one.stripe), one.stripe.length, one.root) for one in rebuilds if isinstance(one, Spread)]
        return gathers, spreads

    def _piece(self, into: View, out: View) -> Piece:
        """A copy in bytes; both its memories have elements of one size."""
        itemsize = self._itemsizes[into.memory]
        dst, src = (self._start(view.memory) + view.offset * itemsize for view in (into, out))
        strides = ((*(stride * itemsize for stride in view.strides), 1) for view in (into, out))
        return Piece(dst, src, (*into.sizes, itemsize), *strides)

    def _bytes(self, copies: Sequence[Copy]) -> int:
        return sum(math.prod(into.sizes) * self._itemsizes[into.memory] for into, _ in copies)

    def _at(self, span: Span) -> int:
        return self._start(span.memory) + span.offset

    def _start(self, memory: int) -> int:
        first = len(self._starts)
        start = self._starts[memory] if memory < first else self._places[memory - first]
        if start is None:
            raise IndexError(f"memory {memory} is not this rank's")
        return start
