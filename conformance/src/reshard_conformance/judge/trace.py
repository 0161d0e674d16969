"""Logs of every collective and message call of a rank, kept outside the implementation, and checks of these logs.

A `Tracer` wraps any communicator and keeps a log of `Event`s; `symmetry_faults` compares the logs of all ranks, and
`release_faults` checks that every communicator made by a split was released once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest

import torch

from reshard_conformance.contract import Communicator, Stream

__all__ = [
    "COLLECTIVE_CALLS",
    "DATA_CALLS",
    "MESSAGE_CALLS",
    "Event",
    "EventLog",
    "Tracer",
    "release_faults",
    "symmetry_faults",
]

#: Calls that every member of a communicator makes, in one order.
COLLECTIVE_CALLS = ("split", "all_gather", "broadcast", "exchange", "finalize", "destroy")
#: Calls that pair one rank with another.
MESSAGE_CALLS = ("send", "recv")
#: Calls that a refused reshard must not make: they move data, or prepare to.
DATA_CALLS = ("send", "recv", "all_gather", "broadcast", "split")


@dataclass(frozen=True)
class Event:
    """One call of one rank.

    communicator: "0" for the first group's communicator, "0/2.1" for color 1 of its split number 2; equal on all members.
    members: the communicator's size. rank: this rank's number in it. number: counts the calls on this communicator.
    peer: the other rank of a message, or the root of a broadcast. nbytes: of the buffer (of the input of an all_gather).
    submission: the number of the communicator's group() that it belongs to; None outside one.
    made: for a split, the name of the communicator that this rank got, None when it joined none.
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
        if self.op in MESSAGE_CALLS:
            return f"{self.op} of {self.nbytes} bytes with rank {self.peer}"
        if self.op == "broadcast":
            return f"broadcast of {self.nbytes} bytes from root {self.peer}"
        return f"{self.op} of {self.nbytes} bytes" if self.nbytes is not None else self.op


@dataclass
class EventLog:
    """The events of one rank, over all its groups and the communicators that came from them."""

    events: list[Event] = field(default_factory=list)

    def take(self) -> tuple[Event, ...]:
        """Return the events since the last call, and forget them."""
        events, self.events = tuple(self.events), []
        return events


class Tracer:
    """A communicator that logs every call and passes it on to another one."""

    def __init__(self, inner: Communicator, log: EventLog, name: str) -> None:
        self.inner, self.log, self.name = inner, log, name
        self.calls = self.splits = self.submissions = self.depth = 0
        self.unsubmitted: list[Event] = []

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
            self.unsubmitted.clear()
            raise
        finally:
            self.depth -= 1
        if not self.depth:
            self.log.events += self.unsubmitted
            self.unsubmitted.clear()
            self.submissions += 1

    def send(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.record("send", peer, buffer.nbytes)
        self.inner.send(buffer, peer, stream)

    def recv(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.record("recv", peer, buffer.nbytes)
        self.inner.recv(buffer, peer, stream)

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Stream | None = None) -> None:  # noqa: A002 - the protocol's name
        self.record("all_gather", None, input.nbytes)
        self.inner.all_gather(output, input, stream)

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Stream | None = None) -> None:
        self.record("broadcast", root, buffer.nbytes)
        self.inner.broadcast(buffer, root, stream)

    def exchange(self, record: bytes) -> list[bytes]:
        self.record("exchange", None, len(record))
        return self.inner.exchange(record)

    def split(self, color: int | None, key: int) -> Tracer | None:
        name = None if color is None else f"{self.name}/{self.splits}.{color}"
        self.record("split", made=name)
        self.splits += 1
        child = self.inner.split(color, key)
        return None if child is None or name is None else Tracer(child, self.log, name)

    def finalize(self) -> None:
        self.record("finalize")
        self.inner.finalize()

    def destroy(self) -> None:
        self.record("destroy")
        self.inner.destroy()

    def abort(self) -> None:
        self.record("abort")
        self.inner.abort()

    def record(self, op: str, peer: int | None = None, nbytes: int | None = None, made: str | None = None) -> None:
        submission = self.submissions if self.depth else None
        event = Event(op, self.name, self.size, self.rank, self.calls, peer, nbytes, submission, made)
        self.calls += 1
        (self.unsubmitted if self.depth else self.log.events).append(event)


def symmetry_faults(events: Mapping[int, Sequence[Event]]) -> list[str]:
    """Compare the calls of all ranks of a group (keys: ranks of the group); one sentence a fault.

    On every communicator, all members make the same collective calls in one order, with equal sizes and roots
    (of exchanged records the sizes may differ); sends and receives of each ordered pair match in order and size.
    """
    logs_by_communicator: dict[str, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    group_ranks: dict[tuple[str, int], int] = {}
    for rank, log in events.items():
        for event in log:
            logs_by_communicator[event.communicator][event.rank].append(event)
            group_ranks[event.communicator, event.rank] = rank
    faults = []
    for communicator, logs in logs_by_communicator.items():
        size = max((log[0].members for log in logs.values()), default=0)
        faults += collective_faults(communicator, size, logs, group_ranks)
        faults += message_faults(communicator, logs, group_ranks)
    return faults


def collective_faults(
    communicator: str, size: int, logs: Mapping[int, Sequence[Event]], group_ranks: Mapping[tuple[str, int], int]
) -> list[str]:
    """Compare each member's collective calls with those of the majority; of several majorities, with the longest."""
    calls = {rank: [event for event in logs.get(rank, ()) if event.op in COLLECTIVE_CALLS] for rank in range(size)}
    if not calls:
        return []
    signatures = {rank: tuple(map(collective_signature, events)) for rank, events in calls.items()}
    votes = Counter(signatures.values())
    reference = max(calls, key=lambda rank: (votes[signatures[rank]], len(calls[rank])))
    faults = []
    for rank, events in calls.items():
        number = first_difference(signatures[reference], signatures[rank])
        if number is not None:
            actual, expected = (
                str(log[number]) if number < len(log) else "missing" for log in (events, calls[reference])
            )
            member, other = (member_name(communicator, member_rank, group_ranks) for member_rank in (rank, reference))
            faults.append(f"{member}: collective call {number} is {actual}, at {other} {expected}")
    return faults


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """Return the index of the first difference of two sequences."""
    pairs = enumerate(zip_longest(one, other, fillvalue=None))
    return next((index for index, (left, right) in pairs if left != right), None)


def message_faults(
    communicator: str, logs: Mapping[int, Sequence[Event]], group_ranks: Mapping[tuple[str, int], int]
) -> list[str]:
    """Match the sends of each ordered pair of members with its receives."""
    sends, receives = message_sizes(logs, "send"), message_sizes(logs, "recv")
    faults = []
    for sender, receiver in sorted(sends.keys() | {(peer, rank) for rank, peer in receives}):
        sent, received = sends.get((sender, receiver), []), receives.get((receiver, sender), [])
        for number, (sent_bytes, received_bytes) in enumerate(zip_longest(sent, received)):
            if sent_bytes != received_bytes:
                source, target = (
                    member_name(communicator, member_rank, group_ranks) for member_rank in (sender, receiver)
                )
                faults.append(
                    f"{source}: message {number} to {target} "
                    f"has {message_text(sent_bytes, 'send')}, but {message_text(received_bytes, 'receive')} meets it"
                )
                break
    return faults


def message_sizes(logs: Mapping[int, Sequence[Event]], op: str) -> dict[tuple[int, int], list[int | None]]:
    """Return the sizes of all sends (or receives), in order, by (rank, peer)."""
    sizes = defaultdict(list)
    for rank, log in logs.items():
        for event in log:
            if event.op == op and event.peer is not None:
                sizes[rank, event.peer].append(event.nbytes)
    return sizes


def release_faults(events: Mapping[int, Sequence[Event]]) -> list[str]:
    """Name the communicators that a rank got from splits and never released, or released twice; one sentence each.

    The events have to be a whole history that ends with a clear. Communicators of leftover colors count too.
    """
    faults = []
    for rank, log in events.items():
        made = [event.made for event in log if event.made is not None]
        released = [event.communicator for event in log if event.op in {"destroy", "abort"}]
        faults += [
            f"rank {rank}: communicator {name} was made by a split and is still alive"
            for name in made
            if name not in released
        ]
        faults += [
            f"rank {rank}: communicator {name} was released {released.count(name)} times"
            for name in dict.fromkeys(released)
            if released.count(name) > 1
        ]
    return faults


def collective_signature(event: Event) -> tuple[object, ...]:
    """Return the parts of a collective call that have to be equal on all members of a communicator."""
    return event.op, event.peer, None if event.op == "exchange" else event.nbytes


def message_text(nbytes: int | None, end: str) -> str:
    return f"no {end}" if nbytes is None else f"a {end} of {nbytes} bytes"


def member_name(communicator: str, rank: int, group_ranks: Mapping[tuple[str, int], int]) -> str:
    """Name a member of a communicator, with its rank in the group where a call of it was logged."""
    group_rank = group_ranks.get((communicator, rank))
    if "/" not in communicator:
        return f"rank {rank}"
    return f"member {rank} of communicator {communicator}" + (f" (rank {group_rank})" if group_rank is not None else "")
