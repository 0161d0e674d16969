"""How a long submission is cut, so that neither the operations of one group nor the staging at one time grow without bound.

Jobs are publicly known to hang from about 10,000 sends and receives in one group. The cuts follow from bounds that hold for
every rank, so each rank finds them by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from restripe.cuts import Region, cut, lengths
from restripe.planning.plan import Message, RankPlan

OPERATIONS = 2048  # sends and receives of one rank in one group


@dataclass(frozen=True, slots=True)
class Part:
    """The share of a tensor's messages that goes in one round.

    Every message is cut into `slices` along its longest dim, and the pairs of ranks into `turns` by their distance.
    """

    tensor: int
    slice: int = 0
    slices: int = 1
    turn: int = 0
    turns: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the tensor's first part."""
        return not self.slice and not self.turn

    @property
    def last(self) -> bool:
        """Whether this is the tensor's last part."""
        return self.slice + 1 == self.slices and self.turn + 1 == self.turns

    def sends(self, plan: RankPlan, rank: int) -> Iterator[Message]:
        """This part of the rank's sends."""
        return self._of((message.peer - rank, message) for message in plan.sends)

    def receives(self, plan: RankPlan, rank: int) -> Iterator[Message]:
        """This part of the rank's receives."""
        return self._of((rank - message.peer, message) for message in plan.receives)

    def _of(self, messages: Iterator[tuple[int, Message]]) -> Iterator[Message]:
        for distance, message in messages:
            if distance % self.turns == self.turn:
                region = _slice(message.region, self.slices, self.slice)
                if all(region):
                    yield Message(message.peer, region)


def _slice(region: Region, slices: int, index: int) -> Region:
    """Slice `index` of the region along its longest dim."""
    if slices == 1 or not region:
        return region
    sizes = lengths(region)
    longest = sizes.index(max(sizes))
    return tuple(cut(intervals, slices, index) if dim == longest else intervals for dim, intervals in enumerate(region))


def rounds(plans: Sequence[RankPlan], itemsizes: Sequence[int], staging_bytes: int) -> list[list[Part]]:
    """The parts of each round, for tensors in the order of a submission.

    Args:
        plans: one a tensor.
        itemsizes: bytes of an element, one a tensor.
        staging_bytes: what one rank may stage in one round; a single row may exceed it.
    """
    found: list[list[Part]] = []
    operations = staging = 0
    for tensor, (plan, itemsize) in enumerate(zip(plans, itemsizes, strict=True)):
        slices = max(1, -(-plan.staging * itemsize // staging_bytes))
        turns = max(1, -(-plan.operations // OPERATIONS))
        need = -(-plan.operations // turns), -(-plan.staging * itemsize // slices)
        for part in (Part(tensor, s, slices, t, turns) for s in range(slices) for t in range(turns)):
            if not found or operations + need[0] > OPERATIONS or staging + need[1] > staging_bytes:
                found.append([])
                operations = staging = 0
            found[-1].append(part)
            operations, staging = operations + need[0], staging + need[1]
    return found
