"""Hand-made traces with one fault each, and the log of a tracer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from reshard_conformance.judge.trace import Event, EventLog, Tracer, release_faults, symmetry_faults

CHILD = "0/0.7"


class Silent:
    """A communicator of three ranks that does nothing; a split puts this rank into a color of two."""

    device = torch.device("cpu")

    def __init__(self, rank: int, size: int = 3) -> None:
        self.rank, self.size = rank, size

    @contextmanager
    def group(self) -> Iterator[None]:
        yield

    def send(self, buffer: torch.Tensor, peer: int, stream: object = None) -> None: ...

    def recv(self, buffer: torch.Tensor, peer: int, stream: object = None) -> None: ...

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: object = None) -> None: ...  # noqa: A002 - the protocol's name

    def broadcast(self, buffer: torch.Tensor, root: int, stream: object = None) -> None: ...

    def exchange(self, record: bytes) -> list[bytes]:
        return [record] * self.size

    def split(self, color: int | None, key: int) -> Silent | None:
        return None if color is None else Silent(key, 2)

    def finalize(self) -> None: ...

    def destroy(self) -> None: ...

    def abort(self) -> None: ...


def buffer(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.uint8)


def call(op: str, rank: int, *, name: str = "0", peer: int | None = None, nbytes: int | None = None) -> Event:
    return Event(op, name, 2 if name == CHILD else 3, rank, 0, peer, nbytes)


def good_log(rank: int) -> list[Event]:
    """Return the calls of one of three ranks: a split with ranks 1 and 2 in one color and rank 0 in another, then a clear."""
    name = "0/0.9" if rank == 0 else CHILD
    child = rank - 1
    ring = [
        call("send", rank, peer=(rank + 1) % 3, nbytes=8 + rank),
        call("recv", rank, peer=(rank - 1) % 3, nbytes=8 + (rank - 1) % 3),
    ]
    split = [Event("split", "0", 3, rank, 2, made=name)]
    gather = [call("all_gather", child, name=CHILD, nbytes=4), call("broadcast", child, name=CHILD, peer=1, nbytes=6)]
    end = [Event(op, name, 1 if rank == 0 else 2, max(child, 0), 5) for op in ("finalize", "destroy")]
    exchange = [call("exchange", rank, nbytes=10 * rank)]
    return ring + split + (gather if rank else []) + exchange + end


def changed_logs(rank: int, index: int, *events: Event) -> dict[int, list[Event]]:
    """Return the good logs with one event of a rank replaced by others."""
    logs = {log_rank: good_log(log_rank) for log_rank in range(3)}
    logs[rank][index : index + 1] = events
    return logs


def test_ranks_in_step_have_no_faults() -> None:
    logs = {rank: good_log(rank) for rank in range(3)}
    assert symmetry_faults(logs) == []
    assert release_faults(logs) == []


def test_records_may_differ_in_size() -> None:
    sizes = {event.nbytes for rank in range(3) for event in good_log(rank) if event.op == "exchange"}
    assert len(sizes) == 3


@pytest.mark.requirement("RS-CACHE-2")
@pytest.mark.parametrize(
    ("rank", "index", "events", "expected"),
    [
        (1, 2, [], ["rank 1: collective call 0 is exchange", "at rank 0 split"]),
        (2, 5, [], ["rank 2: collective call 1 is missing, at rank 0 exchange"]),
        (1, 5, [call("exchange", 1)] * 2, ["rank 1: collective call 2 is exchange, at rank 0 missing"]),
        (
            2,
            3,
            [],
            [f"member 1 of communicator {CHILD} (rank 2): collective call 0 is broadcast", "(rank 1) all_gather"],
        ),
        (
            2,
            3,
            [call("all_gather", 1, name=CHILD, nbytes=5)],
            ["member 1 of", "is all_gather of 5 bytes", "all_gather of 4 bytes"],
        ),
        (
            1,
            4,
            [call("broadcast", 0, name=CHILD, peer=0, nbytes=6)],
            [
                "(rank 2): collective call 1 is broadcast of 6 bytes from root 1",
                "(rank 1) broadcast of 6 bytes from root 0",
            ],
        ),
        (1, 6, [], [f"member 0 of communicator {CHILD} (rank 1): collective call 2 is destroy", "finalize"]),
        (2, 7, [], [f"member 1 of communicator {CHILD} (rank 2): collective call 3 is missing", "destroy"]),
        (0, 0, [], ["rank 0: message 0 to rank 1 has no send, but a receive of 8 bytes meets it"]),
        (0, 1, [], ["rank 2: message 0 to rank 0 has a send of 10 bytes, but no receive meets it"]),
        (
            1,
            0,
            [call("send", 1, peer=2, nbytes=4)],
            ["rank 1: message 0 to rank 2 has a send of 4 bytes, but a receive of 9 bytes meets it"],
        ),
        (
            1,
            0,
            [call("send", 1, peer=2, nbytes=9), call("send", 1, peer=2, nbytes=1)],
            ["rank 1: message 1 to rank 2 has a send of 1 bytes, but no receive meets it"],
        ),
    ],
)
def test_a_deviation_of_one_rank_is_named(rank: int, index: int, events: list[Event], expected: list[str]) -> None:
    faults = symmetry_faults(changed_logs(rank, index, *events))
    assert len(faults) == 1
    for part in expected:
        assert part in faults[0]


def test_two_messages_in_another_order_are_named() -> None:
    logs = {
        0: [call("send", 0, peer=1, nbytes=1), call("send", 0, peer=1, nbytes=2)],
        1: [call("recv", 1, peer=0, nbytes=2), call("recv", 1, peer=0, nbytes=1)],
    }
    assert symmetry_faults(logs) == [
        "rank 0: message 0 to rank 1 has a send of 1 bytes, but a receive of 2 bytes meets it"
    ]


@pytest.mark.requirement("RS-CACHE-7")
def test_a_leftover_communicator_that_stays_alive_is_named() -> None:
    logs = changed_logs(0, 5)
    assert release_faults(logs) == ["rank 0: communicator 0/0.9 was made by a split and is still alive"]


def test_a_communicator_released_twice_is_named() -> None:
    logs = {rank: good_log(rank) for rank in range(3)}
    logs[1].append(call("abort", 0, name=CHILD))
    assert release_faults(logs) == [f"rank 1: communicator {CHILD} was released 2 times"]


def test_a_tracer_logs_every_call() -> None:
    log = EventLog()
    tracer = Tracer(Silent(1), log, "0")
    tracer.send(buffer(3), 2)
    tracer.recv(buffer(4), 0)
    tracer.broadcast(buffer(5), 2)
    tracer.exchange(b"six...")
    child = tracer.split(7, 0)
    assert child is not None
    child.all_gather(buffer(4), buffer(2))
    assert tracer.split(None, 0) is None
    child.finalize()
    child.destroy()
    assert log.take() == (
        Event("send", "0", 3, 1, 0, 2, 3),
        Event("recv", "0", 3, 1, 1, 0, 4),
        Event("broadcast", "0", 3, 1, 2, 2, 5),
        Event("exchange", "0", 3, 1, 3, None, 6),
        Event("split", "0", 3, 1, 4, made=CHILD),
        Event("all_gather", CHILD, 2, 0, 0, None, 2),
        Event("split", "0", 3, 1, 5),
        Event("finalize", CHILD, 2, 0, 1),
        Event("destroy", CHILD, 2, 0, 2),
    )
    assert log.take() == ()


def test_calls_of_one_group_have_its_number() -> None:
    log = EventLog()
    tracer = Tracer(Silent(0), log, "0")
    for _ in range(2):
        with tracer.group():
            tracer.send(buffer(1), 1)
            with tracer.group():
                tracer.send(buffer(1), 2)
    tracer.send(buffer(1), 1)
    assert [event.submission for event in log.take()] == [0, 0, 1, 1, None]


def test_a_group_that_raises_leaves_no_trace() -> None:
    log = EventLog()
    tracer = Tracer(Silent(0), log, "0")

    def broken() -> None:
        with tracer.group():
            tracer.send(buffer(1), 1)
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    with tracer.group():
        tracer.send(buffer(2), 2)
    assert [event.peer for event in log.take()] == [2]


def test_a_tracer_has_rank_size_and_device_of_its_communicator() -> None:
    tracer = Tracer(Silent(2), EventLog(), "0")
    assert (tracer.rank, tracer.size, tracer.device) == (2, 3, torch.device("cpu"))
