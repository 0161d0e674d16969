"""Implementations with one unusual behaviour each; rank processes load them by name, such as `strange:dying`."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from reshard_conformance.contract import Claims, Level, Profile
from reshard_golden import reshard


class Strange:
    """Golden, with a hook before each call that subclasses override."""

    version = "0"
    claims = Claims(Level.L3, frozenset({Profile.CORE}))

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    def reshard(self, *arguments: Any) -> None:
        self.before_call(arguments[6])
        reshard(*arguments)

    def before_call(self, group: Any) -> None:
        """Do something before golden's call."""

    def clear_caches(self, group: Any) -> None:
        """Do nothing: golden keeps no caches."""

    def error_kind(self, exception: BaseException) -> str | None:
        return "layout" if isinstance(exception, ZeroDivisionError) else None


class Looping(Strange):
    def before_call(self, group: Any) -> None:
        while group.rank == 1:
            pass


class Waiting(Strange):
    def before_call(self, group: Any) -> None:
        if group.rank == 1:
            threading.Event().wait()


class Dying(Strange):
    def before_call(self, group: Any) -> None:
        if group.rank == 1:
            os._exit(3)


class Raising(Strange):
    def before_call(self, group: Any) -> None:
        if group.rank == 1:
            raise ZeroDivisionError("odd one out")


class Rounding(Strange):
    """Golden, but it does nothing for tensors with an odd dim."""

    def reshard(self, *arguments: Any) -> None:
        tensor = arguments[3] if arguments[0] is None else arguments[0]
        if not any(size % 2 for size in tensor.shape):
            super().reshard(*arguments)


class Exiting(Strange):
    def before_call(self, group: Any) -> None:
        raise SystemExit("bye")


class Plain(Strange):
    """Uses the torch process group, and checks that the trace is not judged."""

    def before_call(self, group: Any) -> None:
        total = torch.tensor([group.rank])
        dist.all_reduce(total, group=group.process_group)
        expect([dist.get_world_size(group.process_group), total.item()], [group.size, sum(range(group.size))])
        expect(group.traced, False)


class Probe(Strange):
    """Checks the group's communicator against the transport protocol."""

    def before_call(self, group: Any) -> None:
        communicator = group.communicator
        expect([group.rank, group.size], [communicator.rank, communicator.size])
        expect(group.traced, True)
        for check in (messages, dropped, staged, gathers, broadcasts, exchanges, splits):
            check(communicator)


def expect(actual: object, expected: object) -> None:
    if actual != expected:
        raise AssertionError(f"expected {expected!r}, got {actual!r}")


def row(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def messages(communicator: Any) -> None:
    rank, size = communicator.rank, communicator.size
    short, long = row(0), row(0, 0)
    with communicator.group():
        communicator.recv(short, (rank - 1) % size)
        communicator.send(row(rank), (rank + 1) % size)
        communicator.recv(long, (rank - 1) % size)
        communicator.send(row(rank, 7), (rank + 1) % size)
    expect([*short.tolist(), *long.tolist()], [(rank - 1) % size, (rank - 1) % size, 7])


def dropped(communicator: Any) -> None:
    """Check that a group that ends with an exception submits nothing."""
    with suppress(KeyError), communicator.group():
        communicator.send(row(9, 9, 9), (communicator.rank + 1) % communicator.size)
        raise KeyError
    messages(communicator)


def staged(communicator: Any) -> None:
    """Check that a group reads the sent buffers at its end."""
    rank, size = communicator.rank, communicator.size
    staging, received = row(1), row(0)
    with communicator.group():
        communicator.send(staging, (rank + 1) % size)
        communicator.recv(received, (rank - 1) % size)
        staging.fill_(2)
    expect(received.tolist(), [2])


def gathers(communicator: Any) -> None:
    rank, size = communicator.rank, communicator.size
    output = row(*[255] * 2 * size)
    mine = output[2 * rank : 2 * rank + 2].copy_(row(rank, 5))
    communicator.all_gather(output, mine)
    expect(output.tolist(), [value for other in range(size) for value in (other, 5)])
    other = row(*[0] * size)
    communicator.all_gather(other, row(rank + 1))
    expect(other.tolist(), [*range(1, size + 1)])


def broadcasts(communicator: Any) -> None:
    buffers = [row(communicator.rank, root) for root in range(communicator.size)]
    with communicator.group():
        for root, buffer in enumerate(buffers):
            communicator.broadcast(buffer, root)
    expect([buffer.tolist() for buffer in buffers], [[root, root] for root in range(communicator.size)])


def exchanges(communicator: Any) -> None:
    records = communicator.exchange(b"x" * communicator.rank)
    expect(records, [b"x" * rank for rank in range(communicator.size)])


def splits(communicator: Any) -> None:
    """Split all ranks but the last in reversed order, then split all of them alike."""
    rank, size = communicator.rank, communicator.size
    child = communicator.split(None if rank == size - 1 else 3, -rank)
    expect(child is None, rank == size - 1)
    if child is not None:
        expect([child.rank, child.size], [size - 2 - rank, size - 1])
        gathers(child)
        child.finalize()
        child.destroy()
        refused(lambda: child.broadcast(row(1), 0))
        refused(child.destroy)
    whole = communicator.split(0, 5)
    expect([whole.rank, whole.size], [rank, size])
    whole.abort()


def refused(call: Any) -> None:
    try:
        call()
    except RuntimeError:
        return
    raise AssertionError("expected a RuntimeError")


looping = Looping()
waiting = Waiting()
dying = Dying()
raising = Raising()
rounding = Rounding()
exiting = Exiting()
plain = Plain()
probe = Probe()
