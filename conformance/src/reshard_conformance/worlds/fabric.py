"""A simulated communicator between ranks of one process, which checks all that it is asked to do."""

from __future__ import annotations

import ctypes
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch

from reshard_conformance.contract import Stream
from reshard_conformance.worlds.holding import Holding

__all__ = ["Fabric", "SimCommunicator", "SimError"]

CPU = torch.device("cpu")


class SimError(RuntimeError):
    """A call that the transport protocol does not allow, or one that can never end."""


@dataclass(eq=False)
class Call:
    """One call of one member; done when all that it waits for has happened.

    target: the memory to fill. data: what is sent, as it was when the call was submitted.
    outline: what has to be the same on all members of a collective.
    """

    text: str
    op: str
    peer: int = -1
    source: torch.Tensor | None = None
    target: torch.Tensor | None = None
    data: bytes = b""
    outline: tuple[object, ...] = ()
    color: tuple[int | None, int] = (None, 0)
    result: object = None
    done: bool = False

    def submit(self) -> None:
        if self.source is not None:
            self.data = ctypes.string_at(self.source.data_ptr(), self.source.nbytes)

    def fill(self, data: bytes) -> None:
        if self.target is not None:
            ctypes.memmove(self.target.data_ptr(), data, len(data))


class Fabric:
    """What all communicators of one session share: who waits, and what went wrong for good.

    wait(rank, ready, why) blocks a rank (numbered in the session) until `ready`.
    """

    def __init__(self, wait: Callable[[int, Callable[[], bool], str], None]) -> None:
        self.wait = wait
        self.failure: str | None = None
        self.roots: dict[int, Hub] = {}

    def communicator(self, rank: int, size: int, serial: int) -> SimCommunicator:
        """This rank's end of communicator number `serial` over all ranks."""
        hub = self.roots.setdefault(serial, Hub(self, str(serial), tuple(range(size))))
        return SimCommunicator(hub, rank)

    def fail(self, text: str) -> None:
        """Make every call of every rank raise `text` from now on."""
        self.failure = self.failure or text


@dataclass(eq=False)
class Hub:
    """One communicator as all its members see it; members are numbered as in the session."""

    fabric: Fabric
    name: str
    members: tuple[int, ...]
    sends: dict[tuple[int, int], deque[Call]] = field(default_factory=lambda: defaultdict(deque))
    receives: dict[tuple[int, int], deque[Call]] = field(default_factory=lambda: defaultdict(deque))
    meetings: dict[int, dict[int, Call]] = field(default_factory=lambda: defaultdict(dict))
    met: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    splits: int = 0

    def post(self, rank: int, call: Call) -> None:
        """Take a call; complete it, and what it completes, when the others have called too."""
        if call.op == "send":
            self.pair((rank, call.peer), call, self.sends, self.receives)
        elif call.op == "recv":
            self.pair((call.peer, rank), call, self.receives, self.sends)
        else:
            self.meet(rank, call)

    def pair(
        self,
        way: tuple[int, int],
        call: Call,
        mine: dict[tuple[int, int], deque[Call]],
        others: dict[tuple[int, int], deque[Call]],
    ) -> None:
        if not others[way]:
            mine[way].append(call)
            return
        other = others[way].popleft()
        send, receive = (call, other) if call.op == "send" else (other, call)
        if receive.target is None or len(send.data) != receive.target.nbytes:
            self.fabric.fail(
                f"sizes differ: {self.who(way[0])} calls {send.text}, but {self.who(way[1])} calls {receive.text}"
            )
            return
        receive.fill(send.data)
        send.done = receive.done = True

    def meet(self, rank: int, call: Call) -> None:
        place = self.met[rank]
        self.met[rank] += 1
        meeting = self.meetings[place]
        for other, theirs in meeting.items():
            if theirs.outline != call.outline:
                self.fabric.fail(
                    f"collective call {place} differs: {self.who(other)} calls {theirs.text}, "
                    f"but {self.who(rank)} calls {call.text}"
                )
                return
        meeting[rank] = call
        if len(meeting) == len(self.members):
            del self.meetings[place]
            self.complete([meeting[member] for member in range(len(self.members))])

    def complete(self, calls: Sequence[Call]) -> None:
        op = calls[0].op
        if op == "split":
            self.divide(calls)
        for call in calls:
            if op == "all_gather":
                call.fill(b"".join(other.data for other in calls))
            elif op == "broadcast":
                call.fill(calls[call.peer].data)
            elif op == "exchange":
                call.result = [other.data for other in calls]
            call.done = True

    def divide(self, calls: Sequence[Call]) -> None:
        """Give each member of a split its communicator: one a color, ordered by (key, rank)."""
        number, self.splits = self.splits, self.splits + 1
        for color in {call.color[0] for call in calls} - {None}:
            order = [rank for rank, call in enumerate(calls) if call.color[0] == color]
            order.sort(key=lambda rank: calls[rank].color[1])
            hub = Hub(self.fabric, f"{self.name}/{number}.{color}", tuple(self.members[rank] for rank in order))
            for place, rank in enumerate(order):
                calls[rank].result = SimCommunicator(hub, place)

    def who(self, rank: int) -> str:
        return f"rank {self.members[rank]}"


class SimCommunicator:
    """One member's end of a simulated communicator; follows the transport protocol, and refuses what it forbids.

    What is sent is read from the live buffer when the call is submitted, which is at the end of a `group()`.
    A call returns when it is complete for this rank.
    """

    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank, self.size, self.device = hub, rank, len(hub.members), CPU
        self.holding: Holding[Call] = Holding(self.submit)
        self.ended: str | None = None
        self.children: list[SimCommunicator] = []

    def group(self) -> AbstractContextManager[None]:
        return self.holding.group()

    def send(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.check_buffer("send", buffer, stream)
        self.check_rank("send", peer)
        text = f"send of {buffer.nbytes} bytes to {self.hub.who(peer)}"
        self.call(Call(text, "send", peer, source=buffer))

    def recv(self, buffer: torch.Tensor, peer: int, stream: Stream | None = None) -> None:
        self.check_buffer("recv", buffer, stream)
        self.check_rank("recv", peer)
        text = f"recv of {buffer.nbytes} bytes from {self.hub.who(peer)}"
        self.call(Call(text, "recv", peer, target=buffer))

    def all_gather(self, output: torch.Tensor, input: torch.Tensor, stream: Stream | None = None) -> None:  # noqa: A002 - the protocol's name
        self.check_buffer("all_gather", output, stream)
        self.check_buffer("all_gather", input, stream)
        self.check_gather(output, input)
        text = f"all_gather of {input.nbytes} bytes"
        self.call(Call(text, "all_gather", source=input, target=output, outline=("all_gather", input.nbytes)))

    def broadcast(self, buffer: torch.Tensor, root: int, stream: Stream | None = None) -> None:
        self.check_buffer("broadcast", buffer, stream)
        self.check_rank("broadcast", root)
        text = f"broadcast of {buffer.nbytes} bytes from {self.hub.who(root)}"
        source, target = (buffer, None) if root == self.rank else (None, buffer)
        self.call(Call(text, "broadcast", root, source, target, outline=("broadcast", buffer.nbytes, root)))

    def exchange(self, record: bytes) -> list[bytes]:
        result = self.ask(
            Call(f"exchange of {len(record)} bytes", "exchange", data=bytes(record), outline=("exchange",))
        )
        if not isinstance(result, list):
            raise SimError(f"{self.hub.who(self.rank)}: exchange ended without its records")
        return result

    def split(self, color: int | None, key: int) -> SimCommunicator | None:
        result = self.ask(Call("split", "split", color=(color, key), outline=("split",)))
        if not isinstance(result, SimCommunicator):
            return None
        self.children.append(result)
        return result

    def finalize(self) -> None:
        self.ask(Call("finalize", "finalize", outline=("finalize",)))
        self.ended = "finalized"

    def destroy(self) -> None:
        self.release("destroyed")

    def abort(self) -> None:
        self.release("aborted")

    def drop(self) -> None:
        """Its group is gone: nothing can be called any more on it and on what came from it, but to release it."""
        self.ended = self.ended or "dropped with its group"
        for child in self.children:
            child.drop()

    def release(self, how: str) -> None:
        if self.ended in {"destroyed", "aborted"}:
            raise SimError(f"{self.hub.who(self.rank)}: communicator {self.hub.name} was {self.ended} before")
        self.ended = how

    def ask(self, call: Call) -> object:
        """Make a call that blocks the host, and give its result."""
        if self.holding.depth:
            raise SimError(f"{self.hub.who(self.rank)}: {call.op} blocks the host, and cannot be part of a group()")
        self.call(call)
        return call.result

    def call(self, call: Call) -> None:
        if self.ended:
            raise SimError(
                f"{self.hub.who(self.rank)}: {call.text} on communicator {self.hub.name}, which was {self.ended}"
            )
        self.holding.take(call)

    def submit(self, calls: list[Call]) -> None:
        """Read what is sent from the live buffers, hand everything in, and wait until it is complete."""
        fabric = self.hub.fabric
        for call in calls:
            call.submit()
        for call in calls:
            if fabric.failure is None:
                self.hub.post(self.rank, call)
        for call in calls:
            self.wait(call)

    def wait(self, call: Call) -> None:
        fabric = self.hub.fabric
        why = f"{call.text} (communicator {self.hub.name})"
        fabric.wait(self.hub.members[self.rank], lambda: call.done or fabric.failure is not None, why)
        if not call.done:
            raise SimError(fabric.failure)

    def check_buffer(self, op: str, buffer: torch.Tensor, stream: Stream | None) -> None:
        if stream is not None:
            raise SimError(f"{self.hub.who(self.rank)}: {op} on the CPU expects no stream, got {stream}")
        flat = buffer.dtype == torch.uint8 and buffer.dim() == 1 and buffer.is_contiguous()
        if not flat or buffer.device != CPU or not buffer.numel():
            raise SimError(
                f"{self.hub.who(self.rank)}: {op} expects a flat, contiguous, nonempty uint8 tensor on the CPU, "
                f"got {buffer.dtype} of shape {tuple(buffer.shape)}, strides {buffer.stride()} on {buffer.device}"
            )

    def check_rank(self, op: str, peer: int) -> None:
        if not 0 <= peer < self.size:
            raise SimError(f"{self.hub.who(self.rank)}: {op} names rank {peer} of a communicator of {self.size}")

    def check_gather(self, output: torch.Tensor, part: torch.Tensor) -> None:
        who = self.hub.who(self.rank)
        if output.nbytes != part.nbytes * self.size:
            raise SimError(f"{who}: all_gather of {part.nbytes} bytes of {self.size} ranks into {output.nbytes} bytes")
        offset = part.data_ptr() - output.data_ptr()
        if -part.nbytes < offset < output.nbytes and offset != self.rank * part.nbytes:
            raise SimError(f"{who}: all_gather's input overlaps its output at byte {offset}, which is not its own part")
