"""Every collective and message call of a rank, seen from outside the implementation, and whether the ranks agree.

A `Tracer` wraps any communicator and keeps a log of `Event`s; `symmetry` compares the logs of all ranks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest

import torch

from reshard_conformance.contract import Communicator, Stream

__all__ = ["COLLECTIVES", "DATA", "MESSAGES", "Event", "Log", "Tracer", "balance", "symmetry"]

#: Calls that every member of a communicator makes, in one order.
COLLECTIVES = ("split", "all_gather", "broadcast", "exchange", "finalize", "destroy")
#: Calls that pair one rank with another.
MESSAGES = ("send", "recv")
#: Calls that a refused reshard must not make: they move data, or prepare to.
DATA = ("send", "recv", "all_gather", "broadcast", "split")


@dataclass(frozen=True)
class Event:
    """One call of one rank.

    communicator: "0" for the own one of the first group, "0/2.1" for color 1 of its split number 2; equal on all members.
    members: the communicator's size. rank: this rank's number in it. number: the call's place on this communicator.
    peer: the other rank of a message, or the root of a broadcast. nbytes: of the buffer (of the input of an all_gather).
    submission: which group() of the communicator it belonged to; None outside one.
    made: for a split, the id of the communicator that this rank got, None when it joined none.
    """

    op: str
    communicator: str
    members: int
    rank: int
    number: int
    peer: int | None = None
    nbytes: int | None = None
    submission: int | None = None
    made: str | None = None

    def __str__(self) -> str:
        if self.op in MESSAGES:
            return f"{self.op} of {self.nbytes} bytes with rank {self.peer}"
        if self.op == "broadcast":
            return f"broadcast of {self.nbytes} bytes from root {self.peer}"
        return f"{self.op} of {self.nbytes} bytes" if self.nbytes is not None else self.op


@dataclass
class Log:
    """The events of one rank, over all its groups and the communicators that came from them."""

    events: list[Event] = field(default_factory=list)

    def take(self) -> tuple[Event, ...]:
        """The events since the last take."""
        events, self.events = tuple(self.events), []
        return events


class Tracer:
    """A communicator that passes every call on to another one and keeps an account of it."""

    def __init__(self, inner: Communicator, log: Log, name: str) -> None:
        self.inner, self.log, self.name = inner, log, name
        self.calls = self.splits = self.submissions = self.depth = 0
        self.held: list[Event] = []

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def size(self) -> int:
        return self.inner.size

    @property
    def device(self) -> torch.device:
        return self.inner.device

    @contextmanager
    def group(self) -> Iterator[None]:
        self.depth += 1
        try:
            with self.inner.group():
                yield
        except BaseException:
            self.held.clear()
            raise
        finally:
            self.depth -= 1
        if not self.depth:
            self.log.events += self.held
            self.held.clear()
            self.submissions += 1

    def send(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.note("send", peer, buffer.nbytes)
        self.inner.send(buffer, peer, stream)

    def recv(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.note("recv", peer, buffer.nbytes)
        self.inner.recv(buffer, peer, stream)

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Stream | None = None) -> None:  # noqa: A002 - the protocol's name
        self.note("all_gather", None, input.nbytes)
        self.inner.all_gather(output, input, stream)

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Stream | None = None) -> None:
        self.note("broadcast", root, buffer.nbytes)
        self.inner.broadcast(buffer, root, stream)

    def exchange(self, record: bytes) -> list[bytes]:
        self.note("exchange", None, len(record))
        return self.inner.exchange(record)

    def split(self, color: int | None, key: int) -> Tracer | None:
        name = None if color is None else f"{self.name}/{self.splits}.{color}"
        self.note("split", made=name)
        self.splits += 1
        child = self.inner.split(color, key)
        return None if child is None or name is None else Tracer(child, self.log, name)

    def finalize(self) -> None:
        self.note("finalize")
        self.inner.finalize()

    def destroy(self) -> None:
        self.note("destroy")
        self.inner.destroy()

    def abort(self) -> None:
        self.note("abort")
        self.inner.abort()

    def note(self, op: str, peer: int | None = None, nbytes: int | None = None, made: str | None = None) -> None:
        submission = self.submissions if self.depth else None
        event = Event(op, self.name, self.size, self.rank, self.calls, peer, nbytes, submission, made)
        self.calls += 1
        (self.held if self.depth else self.log.events).append(event)


def symmetry(events: Mapping[int, Sequence[Event]]) -> list[str]:
    """What the ranks of a group (keys: ranks of the group) did not do alike; one sentence a fault.

    On every communicator, all members make the same collective calls in one order, with equal sizes and roots
    (of exchanged records the sizes may differ); sends and receives of each ordered pair pair up in order and size.
    """
    members: dict[str, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    names: dict[tuple[str, int], int] = {}
    for rank, log in events.items():
        for event in log:
            members[event.communicator][event.rank].append(event)
            names[event.communicator, event.rank] = rank
    faults = []
    for communicator, logs in members.items():
        size = max((log[0].members for log in logs.values()), default=0)
        faults += collective_faults(communicator, size, logs, names)
        faults += message_faults(communicator, logs, names)
    return faults


def collective_faults(
    communicator: str, size: int, logs: Mapping[int, Sequence[Event]], names: Mapping[tuple[str, int], int]
) -> list[str]:
    """Compare each member's collective calls with those that most members made, of these the longest."""
    calls = {rank: [event for event in logs.get(rank, ()) if event.op in COLLECTIVES] for rank in range(size)}
    if not calls:
        return []
    outlines = {rank: tuple(map(outline, mine)) for rank, mine in calls.items()}
    votes = Counter(outlines.values())
    lead = max(calls, key=lambda rank: (votes[outlines[rank]], len(calls[rank])))
    faults = []
    for rank, mine in calls.items():
        place = difference(outlines[lead], outlines[rank])
        if place is not None:
            had, wanted = (str(log[place]) if place < len(log) else "missing" for log in (mine, calls[lead]))
            there = who(communicator, lead, names)
            faults.append(f"{who(communicator, rank, names)}: collective call {place} is {had}, at {there} {wanted}")
    return faults


def difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first place where two sequences differ."""
    pairs = enumerate(zip_longest(one, other, fillvalue=None))
    return next((place for place, (first, second) in pairs if first != second), None)


def message_faults(
    communicator: str, logs: Mapping[int, Sequence[Event]], names: Mapping[tuple[str, int], int]
) -> list[str]:
    """Pair the sends of each ordered pair of members with its receives."""
    sends, receives = directed(logs, "send"), directed(logs, "recv")
    faults = []
    for sender, receiver in sorted(sends.keys() | {(peer, rank) for rank, peer in receives}):
        sent, received = sends.get((sender, receiver), []), receives.get((receiver, sender), [])
        for place, (gave, took) in enumerate(zip_longest(sent, received)):
            if gave != took:
                faults.append(
                    f"{who(communicator, sender, names)}: message {place} to {who(communicator, receiver, names)} "
                    f"has {size_of(gave, 'send')}, but {size_of(took, 'receive')} meets it"
                )
                break
    return faults


def directed(logs: Mapping[int, Sequence[Event]], op: str) -> dict[tuple[int, int], list[int | None]]:
    """The sizes of all sends (or receives), in order, by (rank, peer)."""
    sizes = defaultdict(list)
    for rank, log in logs.items():
        for event in log:
            if event.op == op and event.peer is not None:
                sizes[rank, event.peer].append(event.nbytes)
    return sizes


def balance(events: Mapping[int, Sequence[Event]]) -> list[str]:
    """Which communicators a rank got from splits and never released, or released twice; one sentence each.

    To be asked over a whole history that ends with a clear: leftover colors count like any other.
    """
    faults = []
    for rank, log in events.items():
        made = [event.made for event in log if event.made is not None]
        ended = [event.communicator for event in log if event.op in {"destroy", "abort"}]
        faults += [
            f"rank {rank}: communicator {name} was made by a split and is still alive"
            for name in made
            if name not in ended
        ]
        faults += [
            f"rank {rank}: communicator {name} was released {ended.count(name)} times"
            for name in dict.fromkeys(ended)
            if ended.count(name) > 1
        ]
    return faults


def outline(event: Event) -> tuple[object, ...]:
    """What has to be equal on all members of a communicator."""
    return event.op, event.peer, None if event.op == "exchange" else event.nbytes


def size_of(nbytes: int | None, end: str) -> str:
    return f"no {end}" if nbytes is None else f"a {end} of {nbytes} bytes"


def who(communicator: str, rank: int, names: Mapping[tuple[str, int], int]) -> str:
    """A member, by its rank in the group where a call of it is known."""
    group_rank = names.get((communicator, rank))
    if "/" not in communicator:
        return f"rank {rank}"
    return f"member {rank} of communicator {communicator}" + (f" (rank {group_rank})" if group_rank is not None else "")
