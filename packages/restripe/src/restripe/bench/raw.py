"""The hand-written move: what crosses is sent as it lies, or packed, and replicas share what they received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from restripe.bench.calls import Call, Ready, Unfit, captured, chain
from restripe.bench.case import Case, octets
from restripe.bench.pieces import Box, Piece, Rebuild, Route, Way, box, route, view
from restripe.bench.wires import Wire

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Raw:
    """A move by hand.

    Args:
        wire: what it sends through; a captured one needs its own, which no eager call shares.
        each: whether every tensor goes in a group of its own.
        graph: whether it is replayed from a CUDA graph.
        way: how replicas come by their shard.
    """

    wire: Wire
    each: bool = False
    graph: bool = False
    way: Way = Way.STRIPES
    _splits: dict[Groups, Wire] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        if self.way is Way.REPRESENTATIVE:
            return self.way.value
        return "raw" + " each" * self.each + " graph" * self.graph

    def ready(self, case: Case) -> Ready:
        tensors = case.row.tensors
        if self.each and len(tensors) == 1:
            raise Unfit("the same as raw for one tensor")
        routes = [route(tensor, self.way, turn) for turn, tensor in enumerate(tensors)]
        if self.way is Way.REPRESENTATIVE and not all(found.rebuilds for found in routes):
            raise Unfit("not every tensor has replicas to broadcast to")
        wires = [self._among(found.rebuilds, case) for found in routes]
        steps = [_Steps(case, self.wire) for _ in (tensors if self.each else tensors[:1])]
        for number, (found, wire) in enumerate(zip(routes, wires, strict=True)):
            steps[number if self.each else 0].add(number, found, wire)
        call = chain([one for step in steps for one in step.calls()])
        return Ready(captured(call) if self.graph else call)

    def _among(self, rebuilds: Sequence[Rebuild], case: Case) -> Wire:
        """The wire of this rank's replica group; collective when new.

        Ranks outside every group share one too, since some releases of nccl4py hang where a rank joins none.
        """
        groups = tuple(one.members for one in rebuilds)
        if groups in {(), (tuple(range(case.size)),)}:
            return self.wire
        if groups not in self._splits:
            seats = [(color, members.index(case.rank)) for color, members in enumerate(groups) if case.rank in members]
            color, place = seats[0] if seats else (len(groups), case.rank)
            self._splits[groups] = self.wire.split(color, place)
        return self._splits[groups]


class _Steps:
    """What one rank does for some tensors, in one group."""

    def __init__(self, case: Case, wire: Wire) -> None:
        self.case, self.wire = case, wire
        self.packs, self.unpacks, self.local = _Copies(), _Copies(), _Copies()
        self.sends: list[tuple[torch.Tensor, int]] = []
        self.receives: list[tuple[torch.Tensor, int]] = []
        self.shares: dict[int, tuple[Wire, list[Call]]] = {}

    def add(self, number: int, found: Route, wire: Wire) -> None:
        """One more tensor."""
        rank, own = self.case.rank, None
        for piece in found.pieces:
            if piece.sender == rank == piece.receiver:
                own = self._own(number, piece, found.rebuilds)
            elif piece.sender == rank:
                self._send(self._source(number, piece.box), piece)
            elif piece.receiver == rank:
                self._receive(self._destination(number, piece.box), piece)
        for rebuild in found.rebuilds:
            if rank in rebuild.members:
                _, calls = self.shares.setdefault(id(wire), (wire, []))
                calls += self._share(number, rebuild, wire, own)

    def calls(self) -> list[Call]:
        """Copies of what stays on a second stream, meanwhile pack, exchange, unpack; then share."""
        steps: list[Call] = []
        if self.packs.out:
            steps.append(self.packs.together)
        if self.sends or self.receives:
            steps.append(self.wire.messages(self.sends, self.receives))
        if self.unpacks.out:
            steps.append(self.unpacks.together)
        if self.local.out:
            side = torch.cuda.Stream(self.case.device)
            steps = [_aside(side, self.local.each), *steps, lambda: torch.cuda.current_stream().wait_stream(side)]
        for wire, calls in self.shares.values():
            steps.append(calls[0] if len(calls) == 1 else wire.together(calls))
        return steps

    def _source(self, number: int, part: Box) -> torch.Tensor:
        tensor = self.case.row.tensors[number]
        return view(self.case.sources[tensor.name], box(tensor.src, tensor.shape, self.case.rank), part)

    def _destination(self, number: int, part: Box) -> torch.Tensor:
        tensor = self.case.row.tensors[number]
        return view(self.case.destinations[tensor.name], box(tensor.dst, tensor.shape, self.case.rank), part)

    def _own(self, number: int, piece: Piece, rebuilds: Sequence[Rebuild]) -> torch.Tensor | None:
        """Copy what stays here, unless an all-gather can take it from where it lies."""
        source = self._source(number, piece.box)
        if source.is_contiguous() and any(one.even and piece.box in one.parts for one in rebuilds):
            return source
        self.local.add(self._destination(number, piece.box), source)
        return None

    def _send(self, source: torch.Tensor, piece: Piece) -> None:
        buffer = source
        if not source.is_contiguous():
            buffer = torch.empty(source.shape, dtype=source.dtype, device=source.device)
            self.packs.add(buffer, source)
        self.sends.append((octets(buffer), piece.receiver))

    def _receive(self, destination: torch.Tensor, piece: Piece) -> None:
        buffer = destination
        if not destination.is_contiguous():
            buffer = torch.empty(destination.shape, dtype=destination.dtype, device=destination.device)
            self.unpacks.add(destination, buffer)
        self.receives.append((octets(buffer), piece.sender))

    def _share(self, number: int, rebuild: Rebuild, wire: Wire, own: torch.Tensor | None) -> list[Call]:
        whole = self.case.destinations[self.case.row.tensors[number].name]
        parts = [octets(self._destination(number, part)) for part in rebuild.parts]
        if rebuild.even:
            mine = parts[rebuild.members.index(self.case.rank)] if own is None else octets(own)
            return [wire.gather(octets(whole), mine)]
        return [wire.broadcast(part, root) for root, part in enumerate(parts) if part.numel()]


class _Copies:
    """Copies that are made at once."""

    def __init__(self) -> None:
        self.into: list[torch.Tensor] = []
        self.out: list[torch.Tensor] = []

    def add(self, into: torch.Tensor, out: torch.Tensor) -> None:
        self.into.append(into)
        self.out.append(out)

    def together(self) -> None:
        torch._foreach_copy_(self.into, self.out)

    def each(self) -> None:
        for into, out in zip(self.into, self.out, strict=True):
            into.copy_(out)


def _aside(side: torch.cuda.Stream, call: Call) -> Call:
    """The call on another stream, after what is on the current one."""

    def aside() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()

    return aside
