"""What crosses in a submission of many tensors: bytes by pair and by rank, balance, and predicted time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from restripe.analysis.cost import Prediction, Rates, predict
from restripe.analysis.mapping import Move
from restripe.analysis.traffic import Members, Traffic, loads
from restripe.planning.plan import Holders, Reason
from restripe.planning.planner import holders


@dataclass
class Totals:
    """What crosses in one submission of several tensors, in bytes.

    `size` counts every tensor once, `needed` every destination rank's shards. `sent` is by (sender, receiver), and so is
    `messages`, their number. `copied` is by rank, what it copies in its own memory. `rebuilt` is by the members of a replica
    group, the most that one of them gets from its fan-outs; `spread` is what all ranks get from them. `reasons` and `holders`
    count tensors, the latter those that cross. `shared` has the bytes that the ranks of a mesh send (first) and receive
    (second).
    """

    tensors: int = 0
    distinct: int = 0
    size: int = 0
    needed: int = 0
    spread: int = 0
    sent: Counter[tuple[int, int]] = field(default_factory=Counter)
    messages: Counter[tuple[int, int]] = field(default_factory=Counter)
    copied: Counter[int] = field(default_factory=Counter)
    rebuilt: Counter[Members] = field(default_factory=Counter)
    reasons: Counter[Reason] = field(default_factory=Counter)
    holders: Counter[Holders] = field(default_factory=Counter)
    shared: tuple[Counter[frozenset[int]], Counter[frozenset[int]]] = field(
        default_factory=lambda: (Counter(), Counter())
    )

    @property
    def crossed(self) -> int:
        """The bytes that go from one rank to another before the fan-outs."""
        return sum(self.sent.values())

    def add(self, move: Move, found: Traffic) -> None:
        """Count one more tensor."""
        width = move.dtype.itemsize
        self.tensors += 1
        self.size += width * move.numel
        self.needed += width * found.needed
        self.reasons[found.reason] += 1
        if found.sent:
            self.holders[holders(move.src, move.dst)] += 1
        self._count(width, found)
        crossed = width * sum(found.sent.values())
        for shared, layout in zip(self.shared, (move.src, move.dst), strict=True):
            shared[frozenset(layout.mesh.ranks)] += crossed

    def _count(self, width: int, found: Traffic) -> None:
        for pair, elements in found.sent.items():
            self.sent[pair] += width * elements
            self.messages[pair] += 1
        for rank, elements in found.copied.items():
            self.copied[rank] += width * elements
        for members, lacking in found.rebuilt.items():
            self.rebuilt[members] += width * max(lacking.values())
            self.spread += width * sum(lacking.values())

    def balance(self) -> Balance:
        """The busiest sender and receiver beside the lower bounds."""
        out, into = (max(each.values(), default=0) for each in loads(self.sent))
        return Balance(out, bound(self.shared[0]), into, bound(self.shared[1]))

    def near(self, rates: Rates) -> int:
        """How many messages stay within a host."""
        return sum(times for pair, times in self.messages.items() if rates.near(*pair))

    def predicted(self, rates: Rates) -> Prediction:
        """The time of this submission."""
        copied = max(self.copied.values(), default=0)
        return predict(rates, self.sent, self.messages, copied, self.rebuilt)


@dataclass(frozen=True)
class Balance:
    """Bytes: of the busiest sender and the busiest receiver, each with a lower bound that no plan could fall below."""

    sender: int
    sender_bound: float
    receiver: int
    receiver_bound: float

    @property
    def sending(self) -> float:
        """The busiest sender over the bound; 1 where nothing is sent."""
        return self.sender / self.sender_bound if self.sender else 1.0

    @property
    def receiving(self) -> float:
        """The busiest receiver over the bound; 1 where nothing is received."""
        return self.receiver / self.receiver_bound if self.receiver else 1.0


def bound(shared: Mapping[frozenset[int], int]) -> float:
    """The least that the busiest rank carries: total bytes over the ranks that can share them.

    What the ranks of a mesh send, no others can; so for each mesh, and for all meshes together, the bytes of the meshes
    inside it are spread over its ranks at best. The largest of these averages is the bound.
    """
    everyone = frozenset().union(*shared)
    inside = ((ranks, sum(size for mesh, size in shared.items() if mesh <= ranks)) for ranks in {*shared, everyone})
    return max((size / len(ranks) for ranks, size in inside if ranks), default=0.0)
