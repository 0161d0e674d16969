"""Ways to move a row's tensors: restripe's own, and the same sends and receives by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from restripe.api import Resharder, reshard
from restripe.arguments import Item, TensorRef
from restripe.bench.case import Case, octets
from restripe.bench.rows import DTYPE, Move
from restripe.comm import Communicator
from restripe.xferdtensor_python import xferdtensor_python_impl

Messages = Sequence[tuple[torch.Tensor, int]]  # bytes and the other rank
Call = Callable[[], object]


class Unfit(Exception):  # noqa: N818 - no error: some contenders cannot play some rows
    """A row that a contender cannot play; the text says why."""


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Ready:
    """A row made ready: `call` enqueues one move on the current stream; `land` brings its outcome to the row's destination."""

    call: Call
    land: Call = nothing


class Contender(Protocol):
    """A way to move tensors. Making a row ready may be collective and slow; it is not timed."""

    @property
    def name(self) -> str:
        """How it is shown."""

    def ready(self, case: Case) -> Ready:
        """The row made ready; Unfit where it cannot be played."""


@dataclass(frozen=True)
class OneByOne:
    """A function with the drop-in's signature, called tensor by tensor.

    Args:
        function: as `restripe.xferdtensor_python.xferdtensor_python_impl`.
        limit: the most elements of one tensor that it can be given in reasonable time; None without a bound.
    """

    name: str
    function: Callable[..., object]
    group: Any
    limit: int | None = None

    def ready(self, case: Case) -> Ready:
        calls = []
        for name, shape in case.row.tensors:
            whole = torch.Size(shape)
            if self.limit is not None and whole.numel() > self.limit:
                raise Unfit(f"takes long beyond {self.limit} elements a tensor")
            src, dst = (
                TensorRef(whole, DTYPE, case.device, held[name]) if name in held else None
                for held in (case.sources, case.destinations)
            )
            calls.append((src, case.src.mesh, case.src.placements, dst, case.dst.mesh, case.dst.placements, self.group))
        return Ready(lambda: [self.function(*arguments) for arguments in calls])


@dataclass(frozen=True)
class Reshard:
    """restripe.reshard, tensor by tensor."""

    group: Any
    name: str = "reshard"

    def ready(self, case: Case) -> Ready:
        calls = [(case.sources.get(name), case.destinations.get(name), shape) for name, shape in case.row.tensors]

        def call() -> None:
            for src, dst, shape in calls:
                reshard(src, dst, self.group, src_layout=case.src, dst_layout=case.dst, shape=shape, dtype=DTYPE)

        return Ready(call)


@dataclass(frozen=True)
class Refit:
    """A prepared refit: all tensors in one submission, eager or replayed from a CUDA graph."""

    session: Resharder
    graph: bool = False

    @property
    def name(self) -> str:
        return "refit graph" if self.graph else "refit"

    def ready(self, case: Case) -> Ready:
        items = [Item(name, shape, DTYPE, case.src, case.dst) for name, shape in case.row.tensors]
        refit = self.session.prepare(items, graph=self.graph)

        def call() -> None:
            refit.run(case.sources, case.destinations)

        return Ready(captured(call) if self.graph else call)


def captured(call: Call) -> Call:
    """The call recorded in a CUDA graph, after one run outside it."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # torch's own NCCL threads may ask after events
        call()
    return graph.replay


class Wire(Protocol):
    """Sends and receives without a library's help: the calls are put together beforehand, and enqueue on the current stream."""

    def messages(self, sends: Messages, receives: Messages) -> Call:
        """All of them in one group."""

    def gather(self, output: torch.Tensor, part: torch.Tensor) -> Call:
        """An all-gather of equal parts, in rank order."""


@dataclass(frozen=True)
class ModuleWire:
    """Through a communicator of restripe's."""

    communicator: Communicator

    def messages(self, sends: Messages, receives: Messages) -> Call:
        def call() -> None:
            with self.communicator.group():
                for buffer, peer in sends:
                    self.communicator.send(buffer, peer)
                for buffer, peer in receives:
                    self.communicator.recv(buffer, peer)

        return call

    def gather(self, output: torch.Tensor, part: torch.Tensor) -> Call:
        return lambda: self.communicator.all_gather(output, part)


@dataclass(frozen=True)
class Raw:
    """The hand-written move.

    Args:
        wire: what it sends through; a captured one needs its own, which no eager call shares.
        each: whether every tensor goes in a group of its own.
        graph: whether it is replayed from a CUDA graph.
    """

    wire: Wire
    each: bool = False
    graph: bool = False

    @property
    def name(self) -> str:
        return "raw" + " each" * self.each + " graph" * self.graph

    def ready(self, case: Case) -> Ready:
        if self.each and len(case.row.tensors) == 1:
            raise Unfit("the same as raw for one tensor")
        by_hand = {Move.POINT: self._point, Move.EXCHANGE: self._exchange, Move.GATHER: self._gather}
        call = by_hand[case.row.move](case)
        return Ready(captured(call) if self.graph else call)

    def _point(self, case: Case) -> Call:
        half = case.size // 2
        sends = [(octets(tensor), case.rank + half) for tensor in case.sources.values()]
        receives = [(octets(tensor), case.rank - half) for tensor in case.destinations.values()]
        if not self.each:
            return self.wire.messages(sends, receives)
        calls = [self.wire.messages([one], []) for one in sends] + [self.wire.messages([], [one]) for one in receives]
        return lambda: [call() for call in calls]

    def _gather(self, case: Case) -> Call:
        (src,), (dst,) = case.sources.values(), case.destinations.values()
        return self.wire.gather(octets(dst), octets(src))

    def _exchange(self, case: Case) -> Call:
        """Pack the columns that others need, exchange, and meanwhile copy on another stream what stays here."""
        (src,), (dst,) = case.sources.values(), case.destinations.values()
        columns, rows = src.chunk(case.size, 1), dst.chunk(case.size, 0)
        peers = [rank for rank in range(case.size) if rank != case.rank]
        pieces = [columns[peer] for peer in peers]
        packed = [torch.empty(piece.shape, dtype=piece.dtype, device=piece.device) for piece in pieces]
        sends = [(octets(piece), peer) for piece, peer in zip(packed, peers, strict=True)]
        cross = self.wire.messages(sends, [(octets(rows[peer]), peer) for peer in peers])
        side = torch.cuda.Stream(case.device)

        def call() -> None:
            stream = torch.cuda.current_stream()
            side.wait_stream(stream)
            with torch.cuda.stream(side):
                rows[case.rank].copy_(columns[case.rank])
            torch._foreach_copy_(packed, pieces)
            cross()
            stream.wait_stream(side)

        return call


def own(session: Resharder, wires: Sequence[Wire]) -> list[Contender]:
    """Raw and restripe's ways, in the order of the table; three wires, each with a communicator of its own."""
    return [
        Raw(wires[0]),
        Raw(wires[1], graph=True),
        Raw(wires[2], each=True),
        OneByOne("drop-in", xferdtensor_python_impl, session.group),
        Reshard(session.group),
        Refit(session),
        Refit(session, graph=True),
    ]
