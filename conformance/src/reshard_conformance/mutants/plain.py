"""A plain implementation of every profile that a CPU can show. Each mutant overrides it with one fault.

It plans over every pair of ranks and replicates by broadcast: each decision is a method that a mutant can override.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch

from reshard_conformance.contract import Claims, Communicator, Group, Item, Level, Profile, Stream
from reshard_conformance.mutants.calls import Box, Call, Layout, Reader, Refusal, Runs, Side, lengths

__all__ = ["Message", "Piece", "Plain", "Posting", "State", "breaks"]

#: Kinds of errors in the order in which they win.
ORDER = ("placement", "layout", "missing", "device", "dtype", "shape", "aliasing", "agreement")


class Message(NamedTuple):
    """A box that one rank sends to another, or copies locally."""

    sender: int
    receiver: int
    box: Box


Posting: TypeAlias = tuple[Call, list[Message]]


class Piece(NamedTuple):
    """A received part of a local tensor. buffer: the bytes to fill. target: the view to copy them to, if they are staged."""

    buffer: torch.Tensor
    target: torch.Tensor | None


@dataclass
class State:
    """The plans, communicators and agreed calls of a group."""

    mode: str = "first"
    calls: int = 0
    agreed: set[object] = field(default_factory=set)
    plans: dict[object, list[Message]] = field(default_factory=dict)
    replicas: dict[object, Communicator | None] = field(default_factory=dict)
    made: list[Communicator] = field(default_factory=list)


class Plain(Reader):
    """Nothing is wrong: this is what the mutants break."""

    name = "plain"
    version = "1"
    breaks = ""
    claims = Claims(
        Level.L3,
        frozenset(Profile) - {Profile.LARGE, Profile.STREAMS, Profile.FAULTS},
        frozenset({"sim", "nccl"}),
    )

    def __init__(self) -> None:
        self.states: WeakKeyDictionary[Group, State] = WeakKeyDictionary()

    # What the suite calls

    def reshard(
        self,
        src_tensor: Any,
        src_mesh: Any,
        src_placement: Any,
        dst_tensor: Any,
        dst_mesh: Any,
        dst_placement: Any,
        process_group: Group,
        stream: Stream | None = None,
    ) -> None:
        """One tensor: a batch of one."""
        item = ("tensor", src_tensor, src_mesh, src_placement, dst_tensor, dst_mesh, dst_placement)
        self.reshard_many([item], process_group, stream)

    def reshard_many(self, items: Sequence[Item], group: Group, stream: Stream | None = None) -> None:
        """Check, agree, move."""
        state = self.state(group)
        state.calls += 1
        calls: list[Call] = []
        fault: Refusal | None = None
        try:
            calls = self.read(items, group)
            for call in calls:
                self.check(call, group)
        except Refusal as refusal:
            fault = refusal
        self.agree(calls, fault, group, state)
        with self.on(stream):
            for first, part in self.rounds(calls, group):
                self.move(part, first, group, state)

    def clear_caches(self, group: Group) -> None:
        """Collective: ranks that clear alone meet the others' next call, and all of them see it."""
        state = self.state(group)
        if set(group.communicator.exchange(b"clear")) != {b"clear"}:
            raise Refusal("agreement", f"rank {group.rank}: some ranks clear their caches and others do not")
        self.release(state)
        self.states[group] = State(mode=state.mode)

    def set_check(self, group: Group, mode: str) -> None:
        """See contract.Agreeing."""
        self.state(group).mode = mode

    def live_communicators(self, group: Group) -> int:
        """See contract.Counting."""
        return len(self.state(group).made)

    def error_kind(self, exception: BaseException) -> str | None:
        """See contract.Implementation."""
        return exception.kind if isinstance(exception, Refusal) else None

    # State

    def state(self, group: Group) -> State:
        """Return the state of the group."""
        return self.states.setdefault(group, State())

    def release(self, state: State) -> None:
        """Destroy every communicator that was made."""
        while state.made:
            state.made.pop(0).destroy()

    # Agreement

    def agree(self, calls: Sequence[Call], fault: Refusal | None, group: Group, state: State) -> None:
        """Raise this rank's fault, and with an exchange of records everybody's."""
        key = tuple((call.src.layout, call.dst.layout, call.shape, call.dtype) for call in calls)
        fresh = key not in state.agreed if fault is None else not state.agreed
        if state.mode == "always" or (state.mode == "first" and fresh):
            told = self.told(calls, state) if fault is None else None
            record = {"told": told} if fault is None else {"fault": [fault.kind, str(fault)]}
            self.compare(group.communicator.exchange(json.dumps(record).encode()))
            state.agreed.add(key)
        if fault is not None:
            raise fault

    def told(self, calls: Sequence[Call], state: State) -> dict[str, object]:
        """Return the record that must be equal on all ranks."""
        return {
            "dtype": [str(call.dtype) for call in calls],
            "shape": [call.shape for call in calls],
            "rest": repr((state.calls, [(call.name, call.src.layout, call.dst.layout) for call in calls])),
        }

    def compare(self, records: Sequence[bytes]) -> None:
        """Raise the first fault, or the first difference, of all ranks' records."""
        if b"clear" in records:
            raise Refusal("agreement", f"rank {records.index(b'clear')} clears its caches, which all ranks must do")
        read = [json.loads(record) for record in records]
        faults = [record["fault"] for record in read if "fault" in record]
        if faults:
            raise Refusal(*min(faults, key=lambda fault: ORDER.index(fault[0])))
        differing = {
            name for name in read[0]["told"] if any(one["told"][name] != read[0]["told"][name] for one in read)
        }
        if differing:
            kind = min(differing, key=ORDER.index) if differing <= {"dtype", "shape"} else "agreement"
            raise Refusal(kind, f"ranks differ from rank 0 in {', '.join(sorted(differing))}")

    # Planning

    def groups(self, layout: Layout) -> list[tuple[int, ...]]:
        """The replica groups: ranks that differ only on replicating mesh dims, in mesh order."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, coordinate in layout.coordinates():
            shard = tuple(index for index, dim in zip(coordinate, layout.dims, strict=True) if dim is not None)
            found.setdefault(shard, []).append(rank)
        return [tuple(members) for members in found.values()]

    def plan_key(self, call: Call) -> object:
        """Return the cache key of the call's plan."""
        return call.src.layout, call.dst.layout, call.shape

    def plan(self, call: Call, turn: int, state: State) -> list[Message]:
        """Return all messages of the call, in an order that all ranks share."""
        key = (self.plan_key(call), turn)
        if key not in state.plans:
            state.plans[key] = self.make_plan(call, turn)
        return state.plans[key]

    def make_plan(self, call: Call, turn: int) -> list[Message]:
        held, wanted = self.boxes(call.src.layout, call.shape), self.boxes(call.dst.layout, call.shape)
        messages = []
        for number, members in enumerate(self.groups(call.dst.layout)):
            for receiver in self.receivers(members):
                for holders in self.groups(call.src.layout):
                    sender = self.holder(holders, receiver, number + turn)
                    boxes = [common(*pair) for pair in product(held[holders[0]], wanted[receiver])]
                    messages += [Message(sender, receiver, box) for box in boxes if math.prod(lengths(box))]
        return messages

    def receivers(self, members: Sequence[int]) -> Sequence[int]:
        """The members of a replica group that receive messages; the others get it from them."""
        return members[:1]

    def holder(self, holders: Sequence[int], receiver: int, number: int) -> int:
        """Who sends: the receiver itself if it can, else the holders in turn."""
        return receiver if receiver in holders else holders[number % len(holders)]

    # Moving

    def rounds(self, calls: Sequence[Call], group: Group) -> Iterable[tuple[int, Sequence[Call]]]:
        """The calls that are submitted together, with the place of the first: each by itself."""
        del group
        return [(place, [call]) for place, call in enumerate(calls)]

    def move(self, calls: Sequence[Call], first: int, group: Group, state: State) -> None:
        """Submit the messages of some calls together, then replicate each destination."""
        plans = [self.plan(call, first + place, state) for place, call in enumerate(calls)]
        pieces = []
        self.hold(calls)
        with torch.inference_mode():  # the only mode in which tensors made in inference mode can be written
            with group.communicator.group():
                for call, plan in self.posted(list(zip(calls, plans, strict=True)), group):
                    pieces += self.post(call, plan, group)
            for piece in pieces:
                self.unpack(piece)
            for call, plan in zip(calls, plans, strict=True):
                self.copy_own(call, plan, group)
                self.replicate(call, group, state)

    def on(self, stream: Stream | None) -> AbstractContextManager[object]:
        """Where all is enqueued: on the caller's stream."""
        return nullcontext() if stream is None else torch.cuda.stream(stream)

    def hold(self, calls: Sequence[Call]) -> None:
        """Record the caller's memory on this stream, so that it is not reused too early."""
        for local in (side.local for call in calls for side in (call.src, call.dst)):
            if local is not None and local.is_cuda:
                local.record_stream(torch.cuda.current_stream(local.device))

    def posted(self, calls: list[Posting], group: Group) -> list[Posting]:
        """The calls with their plans in the order in which messages are posted."""
        del group
        return calls

    def post(self, call: Call, plan: Sequence[Message], group: Group) -> list[Piece]:
        """Post what this rank sends and receives."""
        pieces = []
        for message in plan:
            if group.rank == message.sender != message.receiver and call.src.local is not None:
                view = self.part(call.src, call.shape, message, group.rank)
                group.communicator.send(self.pack(view, call, message, group), message.receiver)
            elif group.rank == message.receiver != message.sender and call.dst.local is not None:
                pieces.append(self.landing(self.part(call.dst, call.shape, message, group.rank)))
                group.communicator.recv(pieces[-1].buffer, message.sender)
        return pieces

    def part(self, side: Side, shape: tuple[int, ...], message: Message, rank: int) -> torch.Tensor:
        """The view of a local tensor that a message is about."""
        if side.local is None:
            raise Refusal("missing", f"rank {rank}: {side.name} has no tensor")
        places = map(place, self.runs(side.layout, shape)[rank], message.box)
        return side.local[tuple(slice(*interval) for interval in places)]

    def pack(self, view: torch.Tensor, call: Call, message: Message | None, group: Group) -> torch.Tensor:
        """The bytes of a view in row-major order, its own memory where that has them so, for a message or to all."""
        del call, message, group
        plain = view.resolve_conj().resolve_neg()
        return flat(plain.contiguous())

    def landing(self, view: torch.Tensor) -> Piece:
        """Where the bytes for a view are received: in place, or staged where it is not contiguous."""
        if view.is_contiguous() and not view.is_conj() and not view.is_neg():
            return Piece(flat(view), None)
        buffer = torch.empty(view.numel() * view.element_size(), dtype=torch.uint8, device=view.device)
        return Piece(buffer, view)

    def unpack(self, piece: Piece) -> None:
        """Copy staged bytes to their target."""
        if piece.target is not None:
            piece.target.copy_(piece.buffer.view(piece.target.dtype).view(piece.target.shape))

    def copy_own(self, call: Call, plan: Sequence[Message], group: Group) -> None:
        """Copy what this rank holds on both sides."""
        for message in plan:
            if message.sender == message.receiver == group.rank:
                source = self.part(call.src, call.shape, message, group.rank)
                self.part(call.dst, call.shape, message, group.rank).copy_(source)

    def splits_for(self, layout: Layout) -> bool:
        """Return True if a call to this destination splits, which mesh and placements alone decide."""
        return any(size > 1 and dim is None for size, dim in zip(layout.grid, layout.dims, strict=True))

    def replicate(self, call: Call, group: Group, state: State) -> None:
        """Broadcast every shard inside its replica group."""
        if not self.splits_for(call.dst.layout):
            return
        communicator = self.communicator(call.dst.layout, group, state)
        local = call.dst.local
        if local is None or communicator is None or not local.numel():
            return
        piece = self.landing(local) if communicator.rank else Piece(self.pack(local, call, None, group), None)
        communicator.broadcast(piece.buffer, 0)
        self.unpack(piece)

    def replica_key(self, layout: Layout, group: Group) -> object:
        """Return the cache key of the replica groups' communicators."""
        del group
        return layout

    def communicator(self, layout: Layout, group: Group, state: State) -> Communicator | None:
        """The communicator of this rank's replica group, or of the ranks that are left over; split once for all."""
        key = self.replica_key(layout, group)
        if key not in state.replicas:
            members = self.groups(layout)
            color = next((number for number, ranks in enumerate(members) if group.rank in ranks), len(members))
            place = members[color].index(group.rank) if color < len(members) else group.rank
            made = group.communicator.split(color, place)
            if made is not None:
                state.made.append(made)
            state.replicas[key] = made
        return state.replicas[key]


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor; strides of dims of size 1, which may be odd, play no part."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def place(runs: Runs, interval: tuple[int, int]) -> tuple[int, int]:
    """Return the local interval of a global interval that lies in one of the runs."""
    before = 0
    for low, high in runs:
        if low <= interval[0] < high:
            return before + interval[0] - low, before + interval[1] - low
        before += high - low
    raise ValueError(f"{interval} is not in {runs}")


def common(one: Box, other: Box) -> Box:
    return tuple((max(a, c), max(min(b, d), a, c)) for (a, b), (c, d) in zip(one, other, strict=True))


def breaks(requirement: str) -> Callable[[type[Plain]], type[Plain]]:
    """Name a mutant after its class, and the requirement that it breaks."""

    def enter(kind: type[Plain]) -> type[Plain]:
        kind.name, kind.breaks = kind.__name__.lower(), requirement
        return kind

    return enter
