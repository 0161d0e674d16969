"""The hand-written move: contiguous parts are sent from their shard, others packed, and replicas share what they received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch

from gpu_bench.moves import Call, PreparedMove, UnsupportedRowError, call_all, record_graph
from gpu_bench.routes import Box, ReplicaStrategy, Replication, Route, Transfer, box_view, route, shard_box
from gpu_bench.rows import RowTensors, flat_bytes

Groups = tuple[tuple[int, ...], ...]
Messages = Sequence[tuple[torch.Tensor, int]]  # bytes and the other rank


class RawTransport(Protocol):
    """Sends and receives without a library's help: calls are put together beforehand, and enqueue on the current stream."""

    def p2p_group(self, sends: Messages, receives: Messages) -> Call:
        """Return a call that submits all of them in one group."""

    def all_gather(self, output: torch.Tensor, part: torch.Tensor) -> Call:
        """Return an all-gather of equal parts, in rank order; `part` may be this rank's part of `output`."""

    def broadcast(self, buffer: torch.Tensor, root: int) -> Call:
        """Return a broadcast in place."""

    def collective_group(self, calls: Sequence[Call]) -> Call:
        """Return a call that makes all-gathers and broadcasts in one group."""

    def split(self, color: int, key: int) -> Self:
        """Return a transport among the ranks of one color, ordered by key. Collective."""


@dataclass(frozen=True)
class RawMove:
    """A move by hand.

    Args:
        transport: a captured move needs its own, which no eager call shares.
        one_by_one: whether every tensor goes in a group of its own.
        graph: whether it is replayed from a CUDA graph.
        strategy: the way a shard comes to its replicas.
    """

    transport: RawTransport
    one_by_one: bool = False
    graph: bool = False
    strategy: ReplicaStrategy = ReplicaStrategy.STRIPES
    _splits: dict[Groups, RawTransport] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        if self.strategy is ReplicaStrategy.REPRESENTATIVE:
            return self.strategy.value
        return "raw" + " each" * self.one_by_one + " graph" * self.graph

    def prepare(self, tensors: RowTensors) -> PreparedMove:
        moves = tensors.row.tensors
        if self.one_by_one and len(moves) == 1:
            raise UnsupportedRowError("the same as raw for one tensor")
        routes = [route(move, self.strategy, number) for number, move in enumerate(moves)]
        if self.strategy is ReplicaStrategy.REPRESENTATIVE and not all(path.replications for path in routes):
            raise UnsupportedRowError("not every tensor has replicas to broadcast to")
        transports = [self._replica_transport(path.replications, tensors) for path in routes]
        schedules = [RankSchedule(tensors, self.transport) for _ in (moves if self.one_by_one else moves[:1])]
        for number, (path, transport) in enumerate(zip(routes, transports, strict=True)):
            schedules[number if self.one_by_one else 0].add(number, path, transport)
        call = call_all([step for schedule in schedules for step in schedule.calls()])
        return PreparedMove(record_graph(call) if self.graph else call)

    def _replica_transport(self, replications: Sequence[Replication], tensors: RowTensors) -> RawTransport:
        """Return the transport of this rank's replica group; collective when new.

        Ranks outside every group share one too, since some releases of nccl4py hang where a rank joins none.
        """
        groups = tuple(replication.members for replication in replications)
        if groups in {(), (tuple(range(tensors.size)),)}:
            return self.transport
        if groups not in self._splits:
            rank = tensors.rank
            seats = [(color, members.index(rank)) for color, members in enumerate(groups) if rank in members]
            color, key = seats[0] if seats else (len(groups), rank)
            self._splits[groups] = self.transport.split(color, key)
        return self._splits[groups]


class RankSchedule:
    """The calls of one rank for some tensors, in one group.

    Args:
        members: the ranks that the transport counts from 0; () for all.
    """

    def __init__(self, tensors: RowTensors, transport: RawTransport, members: Sequence[int] = ()) -> None:
        self.tensors, self.transport, self.members = tensors, transport, members
        self.packs, self.unpacks, self.local_copies = _CopyBatch(), _CopyBatch(), _CopyBatch()
        self.sends: list[tuple[torch.Tensor, int]] = []
        self.receives: list[tuple[torch.Tensor, int]] = []
        self.collectives: dict[int, tuple[RawTransport, list[Call]]] = {}

    def add(self, number: int, path: Route, transport: RawTransport) -> None:
        """Add the tensor of this number; its replicas share over the transport."""
        rank, local_source = self.tensors.rank, None
        for transfer in path.transfers:
            if transfer.sender == rank == transfer.receiver:
                local_source = self._keep(number, transfer, path.replications)
            elif transfer.sender == rank:
                self._send(self._source(number, transfer.box), transfer)
            elif transfer.receiver == rank:
                self._receive(self._destination(number, transfer.box), transfer)
        for replication in path.replications:
            if rank in replication.members:
                _, calls = self.collectives.setdefault(id(transport), (transport, []))
                calls += self._replicate(number, replication, transport, local_source)

    def calls(self) -> list[Call]:
        """Return the calls: local copies on a second stream, meanwhile pack, exchange, unpack; then replicas share."""
        steps: list[Call] = []
        if self.packs.sources:
            steps.append(self.packs.copy_batched)
        if self.sends or self.receives:
            steps.append(self.transport.p2p_group(self.sends, self.receives))
        if self.unpacks.sources:
            steps.append(self.unpacks.copy_batched)
        if self.local_copies.sources:
            side = torch.cuda.Stream(self.tensors.device)
            join_side = _join_stream(side)
            steps = [_on_side_stream(side, self.local_copies.copy_one_by_one), *steps, join_side]
        for transport, calls in self.collectives.values():
            steps.append(calls[0] if len(calls) == 1 else transport.collective_group(calls))
        return steps

    def _source(self, number: int, part: Box) -> torch.Tensor:
        move = self.tensors.row.tensors[number]
        return box_view(self.tensors.sources[move.name], shard_box(move.src, move.shape, self.tensors.rank), part)

    def _destination(self, number: int, part: Box) -> torch.Tensor:
        move = self.tensors.row.tensors[number]
        return box_view(self.tensors.destinations[move.name], shard_box(move.dst, move.shape, self.tensors.rank), part)

    def _keep(self, number: int, transfer: Transfer, replications: Sequence[Replication]) -> torch.Tensor | None:
        """Copy what stays here, unless an all-gather can take it from the source: then return it."""
        source = self._source(number, transfer.box)
        gathered = any(replication.is_even and transfer.box in replication.parts for replication in replications)
        if source.is_contiguous() and gathered:
            return source
        self.local_copies.add(self._destination(number, transfer.box), source)
        return None

    def _send(self, source: torch.Tensor, transfer: Transfer) -> None:
        buffer = source
        if not source.is_contiguous():
            buffer = torch.empty(source.shape, dtype=source.dtype, device=source.device)
            self.packs.add(buffer, source)
        self.sends.append((flat_bytes(buffer), self._peer(transfer.receiver)))

    def _receive(self, destination: torch.Tensor, transfer: Transfer) -> None:
        buffer = destination
        if not destination.is_contiguous():
            buffer = torch.empty(destination.shape, dtype=destination.dtype, device=destination.device)
            self.unpacks.add(destination, buffer)
        self.receives.append((flat_bytes(buffer), self._peer(transfer.sender)))

    def _peer(self, rank: int) -> int:
        return self.members.index(rank) if self.members else rank

    def _replicate(
        self, number: int, replication: Replication, transport: RawTransport, local_source: torch.Tensor | None
    ) -> list[Call]:
        destination = self.tensors.destinations[self.tensors.row.tensors[number].name]
        parts = [flat_bytes(self._destination(number, part)) for part in replication.parts]
        if replication.is_even:
            own_part = parts[replication.members.index(self.tensors.rank)]
            part = own_part if local_source is None else flat_bytes(local_source)
            return [transport.all_gather(flat_bytes(destination), part)]
        return [transport.broadcast(part, root) for root, part in enumerate(parts) if part.numel()]


class _CopyBatch:
    """Copies that do not depend on each other."""

    def __init__(self) -> None:
        self.destinations: list[torch.Tensor] = []
        self.sources: list[torch.Tensor] = []

    def add(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        self.destinations.append(destination)
        self.sources.append(source)

    def copy_batched(self) -> None:
        torch._foreach_copy_(self.destinations, self.sources)

    def copy_one_by_one(self) -> None:
        for destination, source in zip(self.destinations, self.sources, strict=True):
            destination.copy_(source)


def _on_side_stream(side: torch.cuda.Stream, call: Call) -> Call:
    """Return the call on another stream, after what is on the current one."""

    def side_call() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()

    return side_call


def _join_stream(side: torch.cuda.Stream) -> Call:
    return lambda: torch.cuda.current_stream().wait_stream(side)
