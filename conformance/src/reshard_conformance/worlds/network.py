"""A simulated communicator between ranks of one process; it checks every call against the transport protocol."""

from __future__ import annotations

import ctypes
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch

from reshard_conformance.contract import Stream
from reshard_conformance.worlds.deferred import DeferredCalls

__all__ = ["SimCommunicator", "SimError", "SimNetwork"]

CPU = torch.device("cpu")


class SimError(RuntimeError):
    """A call that the transport protocol does not allow, or that can never end."""


@dataclass(eq=False)
class SimCall:
    """One call of one member, with its progress.

    target: the memory to fill. data: the bytes to send, read when the call was submitted.
    signature: the values that all members of a collective must agree on.
    """

    text: str
    op: str
    peer: int = -1
    source: torch.Tensor | None = None
    target: torch.Tensor | None = None
    data: bytes = b""
    signature: tuple[object, ...] = ()
    color: tuple[int | None, int] = (None, 0)
    result: object = None
    done: bool = False

    def submit(self) -> None:
        if self.source is not None:
            self.data = ctypes.string_at(self.source.data_ptr(), self.source.nbytes)

    def fill(self, data: bytes) -> None:
        if self.target is not None:
            ctypes.memmove(self.target.data_ptr(), data, len(data))


class SimNetwork:
    """The channels of one session, and its first failure.

    wait(rank, ready, reason) blocks a rank (numbered in the session) until `ready`.
    """

    def __init__(self, wait: Callable[[int, Callable[[], bool], str], None]) -> None:
        self.wait = wait
        self.failure: str | None = None
        self.roots: dict[int, SimChannel] = {}

    def communicator(self, rank: int, size: int, serial: int) -> SimCommunicator:
        """Return this rank's communicator over all ranks; equal `serial`s are connected."""
        channel = self.roots.setdefault(serial, SimChannel(self, str(serial), tuple(range(size))))
        return SimCommunicator(channel, rank)

    def fail(self, text: str) -> None:
        """Make every later call of every rank raise `text`."""
        self.failure = self.failure or text


@dataclass(eq=False)
class SimChannel:
    """The state of one communicator that its members share; members are numbered as in the session."""

    network: SimNetwork
    name: str
    members: tuple[int, ...]
    sends: dict[tuple[int, int], deque[SimCall]] = field(default_factory=lambda: defaultdict(deque))
    receives: dict[tuple[int, int], deque[SimCall]] = field(default_factory=lambda: defaultdict(deque))
    collectives: dict[int, dict[int, SimCall]] = field(default_factory=lambda: defaultdict(dict))
    calls_made: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    splits: int = 0

    def post(self, rank: int, call: SimCall) -> None:
        """Register a call; complete it, and its counterparts, once all of them are registered."""
        if call.op == "send":
            self.match_message((rank, call.peer), call, self.sends, self.receives)
        elif call.op == "recv":
            self.match_message((call.peer, rank), call, self.receives, self.sends)
        else:
            self.join_collective(rank, call)

    def match_message(
        self,
        pair: tuple[int, int],
        call: SimCall,
        pending: dict[tuple[int, int], deque[SimCall]],
        counterparts: dict[tuple[int, int], deque[SimCall]],
    ) -> None:
        if not counterparts[pair]:
            pending[pair].append(call)
            return
        counterpart = counterparts[pair].popleft()
        send, receive = (call, counterpart) if call.op == "send" else (counterpart, call)
        if receive.target is None or len(send.data) != receive.target.nbytes:
            self.network.fail(
                f"sizes differ: {self.rank_name(pair[0])} calls {send.text}, but {self.rank_name(pair[1])} calls {receive.text}"
            )
            return
        receive.fill(send.data)
        send.done = receive.done = True

    def join_collective(self, rank: int, call: SimCall) -> None:
        number = self.calls_made[rank]
        self.calls_made[rank] += 1
        joined_calls = self.collectives[number]
        for other, theirs in joined_calls.items():
            if theirs.signature != call.signature:
                self.network.fail(
                    f"collective call {number} differs: {self.rank_name(other)} calls {theirs.text}, "
                    f"but {self.rank_name(rank)} calls {call.text}"
                )
                return
        joined_calls[rank] = call
        if len(joined_calls) == len(self.members):
            del self.collectives[number]
            self.complete_collective([joined_calls[member] for member in range(len(self.members))])

    def complete_collective(self, calls: Sequence[SimCall]) -> None:
        op = calls[0].op
        if op == "split":
            self.split_members(calls)
        for call in calls:
            if op == "all_gather":
                call.fill(b"".join(other.data for other in calls))
            elif op == "broadcast":
                call.fill(calls[call.peer].data)
            elif op == "exchange":
                call.result = [other.data for other in calls]
            call.done = True

    def split_members(self, calls: Sequence[SimCall]) -> None:
        """Set each member's result of a split: one channel per color, its members ordered by (key, rank)."""
        number, self.splits = self.splits, self.splits + 1
        for color in {call.color[0] for call in calls} - {None}:
            order = [rank for rank, call in enumerate(calls) if call.color[0] == color]
            order.sort(key=lambda rank: calls[rank].color[1])
            channel = SimChannel(
                self.network, f"{self.name}/{number}.{color}", tuple(self.members[rank] for rank in order)
            )
            for member, rank in enumerate(order):
                calls[rank].result = SimCommunicator(channel, member)

    def rank_name(self, rank: int) -> str:
        return f"rank {self.members[rank]}"


class SimCommunicator:
    """One member's simulated communicator: follows the transport protocol and refuses calls that it forbids.

    A send reads its buffer when the call is submitted, which is at the end of a `group()`. A call returns when it is
    complete for this rank.
    """

    def __init__(self, channel: SimChannel, rank: int) -> None:
        self.channel, self.rank, self.size, self.device = channel, rank, len(channel.members), CPU
        self.deferred: DeferredCalls[SimCall] = DeferredCalls(self.submit)
        self.ended: str | None = None
        self.children: list[SimCommunicator] = []

    def group(self) -> AbstractContextManager[None]:
        return self.deferred.group()

    def send(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.check_buffer("send", buffer, stream)
        self.check_rank("send", peer)
        text = f"send of {buffer.nbytes} bytes to {self.channel.rank_name(peer)}"
        self.call(SimCall(text, "send", peer, source=buffer))

    def recv(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.check_buffer("recv", buffer, stream)
        self.check_rank("recv", peer)
        text = f"recv of {buffer.nbytes} bytes from {self.channel.rank_name(peer)}"
        self.call(SimCall(text, "recv", peer, target=buffer))

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Stream | None = None) -> None:  # noqa: A002 - the protocol's name
        self.check_buffer("all_gather", output, stream)
        self.check_buffer("all_gather", input, stream)
        self.check_gather(output, input)
        text = f"all_gather of {input.nbytes} bytes"
        self.call(SimCall(text, "all_gather", source=input, target=output, signature=("all_gather", input.nbytes)))

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Stream | None = None) -> None:
        self.check_buffer("broadcast", buffer, stream)
        self.check_rank("broadcast", root)
        text = f"broadcast of {buffer.nbytes} bytes from {self.channel.rank_name(root)}"
        source, target = (buffer, None) if root == self.rank else (None, buffer)
        self.call(SimCall(text, "broadcast", root, source, target, signature=("broadcast", buffer.nbytes, root)))

    def exchange(self, record: bytes) -> list[bytes]:
        result = self.call_blocking(
            SimCall(f"exchange of {len(record)} bytes", "exchange", data=bytes(record), signature=("exchange",))
        )
        if not isinstance(result, list):
            raise SimError(f"{self.channel.rank_name(self.rank)}: exchange ended without its records")
        return result

    def split(self, color: int | None, key: int) -> SimCommunicator | None:
        result = self.call_blocking(SimCall("split", "split", color=(color, key), signature=("split",)))
        if not isinstance(result, SimCommunicator):
            return None
        self.children.append(result)
        return result

    def finalize(self) -> None:
        self.call_blocking(SimCall("finalize", "finalize", signature=("finalize",)))
        self.ended = "finalized"

    def destroy(self) -> None:
        self.mark_ended("destroyed")

    def abort(self) -> None:
        self.mark_ended("aborted")

    def end_with_group(self) -> None:
        """End it and its children with their group: later calls raise, except those that release it."""
        self.ended = self.ended or "ended with its group"
        for child in self.children:
            child.end_with_group()

    def mark_ended(self, how: str) -> None:
        if self.ended in {"destroyed", "aborted"}:
            raise SimError(
                f"{self.channel.rank_name(self.rank)}: communicator {self.channel.name} was {self.ended} before"
            )
        self.ended = how

    def call_blocking(self, call: SimCall) -> object:
        """Make a call that blocks the host, and return its result."""
        if self.deferred.depth:
            raise SimError(
                f"{self.channel.rank_name(self.rank)}: {call.op} blocks the host, and cannot be part of a group()"
            )
        self.call(call)
        return call.result

    def call(self, call: SimCall) -> None:
        if self.ended:
            raise SimError(
                f"{self.channel.rank_name(self.rank)}: {call.text} on communicator {self.channel.name}, which was {self.ended}"
            )
        self.deferred.add(call)

    def submit(self, calls: list[SimCall]) -> None:
        """Read the buffers to send, register all calls, and wait until they are complete."""
        network = self.channel.network
        for call in calls:
            call.submit()
        for call in calls:
            if network.failure is None:
                self.channel.post(self.rank, call)
        for call in calls:
            self.wait(call)

    def wait(self, call: SimCall) -> None:
        network = self.channel.network
        reason = f"{call.text} (communicator {self.channel.name})"
        network.wait(self.channel.members[self.rank], lambda: call.done or network.failure is not None, reason)
        if not call.done:
            raise SimError(network.failure)

    def check_buffer(self, op: str, buffer: torch.Tensor, stream: Stream | None) -> None:
        if stream is not None:
            raise SimError(f"{self.channel.rank_name(self.rank)}: {op} on the CPU expects no stream, got {stream}")
        flat = buffer.dtype == torch.uint8 and buffer.dim() == 1 and buffer.is_contiguous()
        if not flat or buffer.device != CPU or not buffer.numel():
            raise SimError(
                f"{self.channel.rank_name(self.rank)}: {op} expects a flat, contiguous, nonempty uint8 tensor on the CPU, "
                f"got {buffer.dtype} of shape {tuple(buffer.shape)}, strides {buffer.stride()} on {buffer.device}"
            )

    def check_rank(self, op: str, peer: int) -> None:
        if not 0 <= peer < self.size:
            raise SimError(
                f"{self.channel.rank_name(self.rank)}: {op} names rank {peer} of a communicator of {self.size}"
            )

    def check_gather(self, output: torch.Tensor, part: torch.Tensor) -> None:
        rank_name = self.channel.rank_name(self.rank)
        if output.nbytes != part.nbytes * self.size:
            raise SimError(
                f"{rank_name}: all_gather of {part.nbytes} bytes of {self.size} ranks into {output.nbytes} bytes"
            )
        offset = part.data_ptr() - output.data_ptr()
        if -part.nbytes < offset < output.nbytes and offset != self.rank * part.nbytes:
            raise SimError(
                f"{rank_name}: all_gather's input overlaps its output at byte {offset}, which is not its own part"
            )
