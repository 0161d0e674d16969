"""Launching a program over a transport that takes addresses.

The calls that enqueue a program are built for the addresses of its memories and hold no memory themselves: they may be
made again as long as the caller's tensors lie where they did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import torch

from restripe.execution.program import AllGather, Broadcast, Program, Round, Span, StridedCopy
from restripe.execution.streams import SideStream
from restripe.transport.protocol import AddressCopy, AddressTransport, Collective, Enqueue, Message


class Endpoints(NamedTuple):
    """The communicators that a program goes over.

    `messages` carries sends, receives and copies; `replicas` has, by replica split, the communicator of this rank's replica
    group, None where it is in none. `side_stream` is a second stream for large local copies; None where there is no other.
    """

    messages: AddressTransport
    device: torch.device
    replicas: Sequence[AddressTransport | None]
    side_stream: SideStream | None = None


class Launcher:
    """Makes the calls that enqueue a program.

    Args:
        program: this rank's program; every rank of the communicators makes the calls of its own.
        endpoints: the communicators to go over.
    """

    def __init__(self, program: Program, endpoints: Endpoints) -> None:
        self.program, self.endpoints = program, endpoints

    def calls(self, starts: Sequence[int | None]) -> list[Enqueue]:
        """Return the calls that enqueue the program on the stream whose handle they are given, in order.

        Args:
            starts: the address of the first element of each tensor's source and destination, in turn, on the endpoints'
                device; None where this rank has none.
        """
        if self.program.allocates:
            return [_BufferedLaunch(self, starts)]
        return [call for step in self.program.rounds for call in self.round_calls(step, starts)]

    def round_calls(self, step: Round, starts: Sequence[int | None]) -> list[Enqueue]:
        """Return the calls of one round.

        Many bytes of local copies go to the second stream. Few go with the packs, or with the unpacks where there are none.
        """
        transport = self.endpoints.messages
        packs, unpacks, side_stream = step.packs, step.unpacks, self._side_stream_for(step)
        if step.local_copies and side_stream is None:
            packs, unpacks = (
                ([*packs, *step.local_copies], unpacks) if packs else (packs, [*unpacks, *step.local_copies])
            )
        calls: list[Enqueue] = [] if side_stream is None else [side_stream.begin]
        if packs:
            calls.append(_copy_call(transport, packs, starts))
        if step.sends or step.receives:
            calls.append(transport.p2p(_messages(step.sends, starts), _messages(step.receives, starts)))
        if unpacks:
            calls.append(_copy_call(transport, unpacks, starts))
        if side_stream is not None:
            calls.append(partial(side_stream.run, _copy_call(transport, step.local_copies, starts)))
        if step.replications:
            calls += self._replication_calls(step.replications, starts)
        if step.copy_back:
            calls.append(_copy_call(transport, step.copy_back, starts))
        return calls

    def _side_stream_for(self, step: Round) -> SideStream | None:
        """Return the second stream where a round has enough local copies to run beside its messages."""
        side_stream = self.endpoints.side_stream
        if side_stream is None or not (step.sends or step.receives):
            return None
        return side_stream if _bytes(step.local_copies) > side_stream.least_bytes else None

    def _replication_calls(
        self, replications: Sequence[AllGather | Broadcast], starts: Sequence[int | None]
    ) -> Iterator[Enqueue]:
        """Yield one call for the collectives of each replica split."""
        for split, collectives in groupby(replications, attrgetter("split")):
            members = self.endpoints.replicas[split]
            if members is None:
                raise RuntimeError(
                    f"replica split {split} has a stripe of this rank, but this rank is in no replica group"
                )
            gathers: list[Collective] = []
            broadcasts: list[Collective] = []
            for collective in collectives:
                stripe = _address(collective.stripe, starts)
                if isinstance(collective, AllGather):
                    gathers.append((_address(collective.whole, starts), stripe, collective.stripe.length))
                else:
                    broadcasts.append((stripe, collective.stripe.length, collective.root))
            yield members.collectives(gathers, broadcasts)


class _BufferedLaunch:
    """Enqueues a program with buffers: allocates them at every run, and rebuilds the calls of a round whose buffers moved."""

    def __init__(self, launcher: Launcher, starts: Sequence[int | None]) -> None:
        self._launcher, self._first = launcher, len(starts)
        self._starts = [*starts, *[None] * (launcher.program.memories - len(starts))]
        self._built: list[tuple[list[int | None], list[Enqueue]]] = [([], [])] * len(launcher.program.rounds)

    def __call__(self, handle: int | None) -> None:
        starts, buffers = self._starts, {}
        for number, step in enumerate(self._launcher.program.rounds):
            for buffer in step.buffers:
                memory = torch.empty(buffer.length, dtype=torch.uint8, device=self._launcher.endpoints.device)
                buffers[buffer.memory], starts[buffer.memory] = memory, memory.data_ptr()
            buffer_starts, calls = self._built[number]
            if buffer_starts != starts[self._first :]:
                calls = self._launcher.round_calls(step, starts)
                self._built[number] = starts[self._first :], calls
            for call in calls:
                call(handle)
            for memory_number in step.frees:
                starts[memory_number] = None
                del buffers[memory_number]


def _copy_call(transport: AddressTransport, copies: Sequence[StridedCopy], starts: Sequence[int | None]) -> Enqueue:
    return transport.copies([_address_copy(copy, starts) for copy in copies])


def _address_copy(copy: StridedCopy, starts: Sequence[int | None]) -> AddressCopy:
    into = _start(copy.into, starts) + copy.into_offset
    out_of = _start(copy.out_of, starts) + copy.out_offset
    return AddressCopy(into, out_of, copy.sizes, copy.into_strides, copy.out_strides)


def _messages(spans: Sequence[tuple[Span, int]], starts: Sequence[int | None]) -> list[Message]:
    return [(_address(span, starts), span.length, peer) for span, peer in spans]


def _address(span: Span, starts: Sequence[int | None]) -> int:
    return _start(span.memory, starts) + span.offset


def _start(memory: int, starts: Sequence[int | None]) -> int:
    start = starts[memory]
    if start is None:
        raise RuntimeError(
            f"memory {memory} of the program has no address on this rank; the plan uses a tensor that it has not"
        )
    return start


def _bytes(copies: Sequence[StridedCopy]) -> int:
    return sum(math.prod(copy.sizes) for copy in copies)
