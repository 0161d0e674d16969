"""Running plans: bind each to its tensors, then, round by round, pack, exchange, unpack and fan out. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from restripe.comm import Communicator
from restripe.planning import FanOutKind, Part, RankPlan
from restripe.staging import Destination, Landing, Shard, flat_bytes, landing, packed, source


@dataclass(frozen=True)
class Task:
    """One tensor's plan with this rank's local tensors and, where it fans out, the replica group's communicator."""

    plan: RankPlan
    src: torch.Tensor | None
    dst: torch.Tensor | None
    replicas: Communicator | None


class _Bound:
    """A task's memory, taken up when its first part comes and given back after its last."""

    def __init__(self, task: Task) -> None:
        plan = task.plan
        self.source: Shard | None = None
        self.destination: Destination | None = None
        if task.src is not None and plan.source is not None and (plan.copies or plan.sends):
            self.source = source(task.src, plan.source)
        if task.dst is not None and plan.destination is not None and (plan.copies or plan.receives or plan.fan_out):
            self.destination = Destination(task.dst, plan.destination, collective=plan.fan_out is not None)


def execute(
    tasks: Sequence[Task], schedule: Sequence[Sequence[Part]], communicator: Communicator, stream: Any = None
) -> None:
    """Run the tasks in the rounds of their schedule; every rank of the communicator calls with the same schedule."""
    bound: dict[int, _Bound] = {}
    for parts in schedule:
        for part in parts:
            if part.first:
                bound[part.tensor] = _Bound(tasks[part.tensor])
                _copy(tasks[part.tensor].plan, bound[part.tensor])
        _exchange(tasks, parts, bound, communicator, stream)
        for part in parts:
            if part.last:
                _complete(tasks[part.tensor], bound.pop(part.tensor), stream)


def _copy(plan: RankPlan, bound: _Bound) -> None:
    if bound.source is None or bound.destination is None:
        return
    for region in plan.copies:
        for piece, place in zip(bound.source.pieces(region), bound.destination.shard.pieces(region), strict=True):
            place.copy_(piece)


def _exchange(
    tasks: Sequence[Task], parts: Sequence[Part], bound: dict[int, _Bound], communicator: Communicator, stream: Any
) -> None:
    """One round's messages, all in one group, in the order (tensor, peer)."""
    sends: list[tuple[torch.Tensor, int]] = []
    receives: list[tuple[Landing, int]] = []
    for part in parts:
        plan, memory = tasks[part.tensor].plan, bound[part.tensor]
        if memory.source is not None:
            sends += [(packed(memory.source.pieces(m.region)), m.peer) for m in part.of(plan.sends)]
        if memory.destination is not None:
            shard = memory.destination.shard
            receives += [(landing(shard.pieces(m.region)), m.peer) for m in part.of(plan.receives)]
    if sends or receives:
        with communicator.group():
            for buffer, peer in sends:
                communicator.send(buffer, peer, stream)
            for land, peer in receives:
                communicator.recv(land.bytes, peer, stream)
    for land, _ in receives:
        land.unpack()


def _complete(task: Task, bound: _Bound, stream: Any) -> None:
    """Rebuild the rest of the destination from its replicas, then hand it to the caller's tensor."""
    if bound.destination is None:
        return
    fan_out = task.plan.fan_out
    if fan_out is not None and task.replicas is not None:
        whole = flat_bytes(bound.destination.shard.memory)
        if fan_out.kind is FanOutKind.ALL_GATHER:
            stripe = whole.chunk(len(fan_out.members))[fan_out.index]
            task.replicas.all_gather(whole, stripe, stream)
        else:
            task.replicas.broadcast(whole, 0, stream)
    bound.destination.finish()
