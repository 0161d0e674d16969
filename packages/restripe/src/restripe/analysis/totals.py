"""Totals of a submission of many tensors: bytes by pair and by rank, balance, and predicted time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from restripe.analysis.cost import Prediction, Rates, predict_time
from restripe.analysis.mapping import Move
from restripe.analysis.traffic import Members, Traffic, loads
from restripe.planning.plan import Holders, Reason
from restripe.planning.planner import holder_rule


@dataclass
class Totals:
    """Totals of one submission, in bytes where no other unit is named.

    tensors, distinct: number of tensors, and of those that were planned.
    size: the global bytes of all tensors.
    needed: the bytes of all destination shards, replicas included.
    fan_out_bytes: the bytes that fan-outs bring to all ranks.
    sent, messages: bytes and number of messages by (sender, receiver).
    copied: by rank, the bytes that it copies in its own memory.
    fan_outs: by the members of a replica group, the most bytes that fan-outs bring to one member.
    reasons: number of tensors by the reason of their plans.
    holders: number of tensors that cross by the rule that chooses the sending holder.
    mesh_bytes: by set of ranks, the bytes that a source mesh sends and those that a destination mesh receives.
    """

    tensors: int = 0
    distinct: int = 0
    size: int = 0
    needed: int = 0
    fan_out_bytes: int = 0
    sent: Counter[tuple[int, int]] = field(default_factory=Counter)
    messages: Counter[tuple[int, int]] = field(default_factory=Counter)
    copied: Counter[int] = field(default_factory=Counter)
    fan_outs: Counter[Members] = field(default_factory=Counter)
    reasons: Counter[Reason] = field(default_factory=Counter)
    holders: Counter[Holders] = field(default_factory=Counter)
    mesh_bytes: tuple[Counter[frozenset[int]], Counter[frozenset[int]]] = field(
        default_factory=lambda: (Counter(), Counter())
    )

    @property
    def crossed(self) -> int:
        """The bytes that go from one rank to another before the fan-outs."""
        return sum(self.sent.values())

    def add(self, move: Move, traffic: Traffic) -> None:
        """Add the traffic of a tensor."""
        width = move.dtype.itemsize
        self.tensors += 1
        self.size += width * move.numel
        self.needed += width * traffic.needed
        self.reasons[traffic.reason] += 1
        if traffic.sent:
            self.holders[holder_rule(move.src, move.dst)] += 1
        self._count(width, traffic)
        crossed = width * sum(traffic.sent.values())
        for mesh_bytes, layout in zip(self.mesh_bytes, (move.src, move.dst), strict=True):
            mesh_bytes[frozenset(layout.mesh.ranks)] += crossed

    def _count(self, width: int, traffic: Traffic) -> None:
        """Add messages, local copies and fan-outs of a tensor whose elements have `width` bytes."""
        for pair, elements in traffic.sent.items():
            self.sent[pair] += width * elements
            self.messages[pair] += 1
        for rank, elements in traffic.copied.items():
            self.copied[rank] += width * elements
        for members, lacking in traffic.lacking.items():
            self.fan_outs[members] += width * max(lacking.values())
            self.fan_out_bytes += width * sum(lacking.values())

    def balance(self) -> Balance:
        """Return the loads of the busiest sender and the busiest receiver beside their lower bounds."""
        sender, receiver = (max(bytes_by_rank.values(), default=0) for bytes_by_rank in loads(self.sent))
        return Balance(sender, bound(self.mesh_bytes[0]), receiver, bound(self.mesh_bytes[1]))

    def messages_within_host(self, rates: Rates) -> int:
        """Return the number of messages between ranks of one host."""
        return sum(count for pair, count in self.messages.items() if rates.same_host(*pair))

    def predicted_time(self, rates: Rates) -> Prediction:
        """Predict the time of this submission."""
        copied = max(self.copied.values(), default=0)
        return predict_time(rates, self.sent, self.messages, copied, self.fan_outs)


@dataclass(frozen=True)
class Balance:
    """The bytes of the busiest sender and the busiest receiver, each with a lower bound that holds for every plan."""

    sender: int
    sender_bound: float
    receiver: int
    receiver_bound: float

    @property
    def sending(self) -> float:
        """The busiest sender's bytes over its bound; 1 where nothing is sent."""
        return self.sender / self.sender_bound if self.sender else 1.0

    @property
    def receiving(self) -> float:
        """The busiest receiver's bytes over its bound; 1 where nothing is received."""
        return self.receiver / self.receiver_bound if self.receiver else 1.0


def bound(mesh_bytes: Mapping[frozenset[int], int]) -> float:
    """Return a lower bound of the bytes of the busiest rank: total bytes over the ranks that can share them.

    Only the ranks of a mesh can carry the bytes of that mesh. So for each mesh, and for all meshes together, the bytes of all
    meshes inside it are at best spread evenly over its ranks. The largest of these averages is the bound.
    """
    all_ranks = frozenset().union(*mesh_bytes)
    inside = (
        (ranks, sum(size for mesh, size in mesh_bytes.items() if mesh <= ranks)) for ranks in {*mesh_bytes, all_ranks}
    )
    return max((size / len(ranks) for ranks, size in inside if ranks), default=0.0)
