"""The simulated communicator: the calls that it refuses, and its errors where ranks can never continue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from reshard_conformance.worlds.network import SimCommunicator, SimError, SimNetwork


def row(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


class OneThread:
    """All ranks in one thread: a call that has to wait raises BlockingIOError."""

    def __init__(self, size: int) -> None:
        self.network = SimNetwork(self.wait)
        self.ends = [self.network.communicator(rank, size, 0) for rank in range(size)]

    def wait(self, rank: int, ready: Callable[[], bool], reason: str) -> None:
        if not ready():
            raise BlockingIOError(reason)


def pending(call: Callable[[], object]) -> None:
    """Make a call that is left waiting."""
    with pytest.raises(BlockingIOError):
        call()


def bad_buffers() -> list[torch.Tensor]:
    return [
        torch.zeros(2, dtype=torch.int8),
        torch.zeros((1, 2), dtype=torch.uint8),
        torch.zeros(4, dtype=torch.uint8)[::2],
        torch.zeros(0, dtype=torch.uint8),
        torch.zeros(2, dtype=torch.uint8, device="meta"),
    ]


@pytest.mark.parametrize("buffer", bad_buffers(), ids=["dtype", "dims", "strides", "empty", "device"])
@pytest.mark.parametrize("op", ["send", "recv", "broadcast"])
def test_a_buffer_is_flat_contiguous_nonempty_bytes(op: str, buffer: torch.Tensor) -> None:
    end = OneThread(2).ends[0]
    with pytest.raises(SimError, match=f"rank 0: {op} expects a flat, contiguous, nonempty uint8 tensor"):
        getattr(end, op)(buffer, 1)


@pytest.mark.parametrize("op", ["send", "recv", "broadcast"])
@pytest.mark.parametrize("peer", [-1, 2])
def test_a_rank_is_one_of_the_communicator(op: str, peer: int) -> None:
    with pytest.raises(SimError, match=f"rank 0: {op} names rank {peer} of a communicator of 2"):
        getattr(OneThread(2).ends[0], op)(row(1), peer)


def test_a_stream_is_refused() -> None:
    stream: Any = object()
    with pytest.raises(SimError, match="expects no stream"):
        OneThread(2).ends[0].send(row(1), 1, stream)


@pytest.mark.parametrize("counts", [(3, 2), (4, 1)])
def test_an_all_gather_fills_its_output(counts: tuple[int, int]) -> None:
    with pytest.raises(SimError, match=r"all_gather of . bytes of 2 ranks into . bytes"):
        OneThread(2).ends[0].all_gather(row(*[0] * counts[0]), row(*[0] * counts[1]))


@pytest.mark.parametrize("start", [0, 1, 3])
def test_the_input_of_an_all_gather_is_no_other_part_of_its_output(start: int) -> None:
    output = row(*[0] * 8)
    with pytest.raises(SimError, match=f"rank 1: all_gather's input overlaps its output at byte {start}"):
        OneThread(4).ends[1].all_gather(output, output[start : start + 2])


def send(end: SimCommunicator) -> None:
    end.send(row(1), 0)


ALL = [
    send,
    lambda end: end.recv(row(1), 0),
    lambda end: end.all_gather(row(1, 2), row(1)),
    lambda end: end.broadcast(row(1), 0),
    lambda end: end.exchange(b""),
    lambda end: end.split(0, 0),
    lambda end: end.finalize(),
]


@pytest.mark.parametrize("call", ALL)
@pytest.mark.parametrize("how", ["destroy", "abort"])
def test_nothing_is_called_after_the_end(call: Callable[[SimCommunicator], None], how: str) -> None:
    end = OneThread(2).ends[0]
    getattr(end, how)()
    with pytest.raises(SimError, match="on communicator 0, which was " + how):
        call(end)


def test_a_communicator_ends_once() -> None:
    end = OneThread(1).ends[0]
    end.finalize()
    with pytest.raises(SimError, match="which was finalized"):
        end.exchange(b"")
    end.destroy()
    with pytest.raises(SimError, match="was destroyed before"):
        end.destroy()


@pytest.mark.parametrize("call", ALL[4:])
def test_what_blocks_the_host_is_no_part_of_a_group(call: Callable[[SimCommunicator], None]) -> None:
    end = OneThread(1).ends[0]
    with pytest.raises(SimError, match=r"cannot be part of a group\(\)"), end.group():
        call(end)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            lambda end: end.send(row(1, 2), 1),
            lambda end: end.recv(row(1), 0),
            "sizes differ: rank 0 calls send of 2 bytes to rank 1, but rank 1 calls recv of 1 bytes from rank 0",
        ),
        (
            lambda end: end.exchange(b""),
            lambda end: end.split(0, 0),
            "collective call 0 differs: rank 0 calls exchange of 0 bytes, but rank 1 calls split",
        ),
        (
            lambda end: end.broadcast(row(1), 0),
            lambda end: end.broadcast(row(1), 1),
            "rank 0 calls broadcast of 1 bytes from rank 0, but rank 1 calls broadcast of 1 bytes from rank 1",
        ),
        (
            lambda end: end.all_gather(row(1, 2), row(1)),
            lambda end: end.all_gather(row(1, 2, 3, 4), row(1, 2)),
            "rank 0 calls all_gather of 1 bytes, but rank 1 calls all_gather of 2 bytes",
        ),
    ],
)
def test_calls_that_do_not_match_are_errors_on_all_ranks(
    first: Callable[[SimCommunicator], None], second: Callable[[SimCommunicator], None], expected: str
) -> None:
    ends = OneThread(2).ends
    pending(lambda: first(ends[0]))
    with pytest.raises(SimError, match=expected):
        second(ends[1])
    with pytest.raises(SimError, match=expected):
        ends[0].exchange(b"")


def test_messages_of_one_pair_meet_in_order() -> None:
    ends = OneThread(2).ends
    got = [row(0), row(0)]
    pending(lambda: ends[0].send(row(1), 1))
    pending(lambda: ends[0].send(row(2), 1))
    with ends[1].group():
        for buffer in got:
            ends[1].recv(buffer, 0)
    assert [buffer.item() for buffer in got] == [1, 2]


def test_a_send_reads_its_buffer_at_the_end_of_the_group_and_not_later() -> None:
    ends = OneThread(2).ends
    staging, got = row(1), row(0)

    def late() -> None:
        with ends[0].group():
            ends[0].send(staging, 1)
            staging.fill_(2)

    pending(late)
    ends[1].recv(got, 0)
    assert got.item() == 2


def test_what_a_group_receives_cannot_be_sent_on_in_it() -> None:
    ends = OneThread(2).ends
    stripe, whole = row(0), [row(0, 0), row(0, 0)]
    pending(lambda: ends[0].send(row(7), 1))

    def hasty() -> None:
        with ends[1].group():
            ends[1].recv(stripe, 0)
            ends[1].all_gather(whole[1], stripe)

    pending(hasty)
    ends[0].all_gather(whole[0], row(5))
    assert [buffer.tolist() for buffer in whole] == [[5, 0], [5, 0]]


def test_split_names_its_children_alike() -> None:
    ends = OneThread(1).ends
    child = ends[0].split(4, 0)
    assert child is not None
    assert child.channel.name == "0/0.4"
    assert ends[0].split(None, 0) is None
    again = ends[0].split(4, 0)
    assert again is not None
    assert again.channel.name == "0/2.4"
