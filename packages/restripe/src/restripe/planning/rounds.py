"""How a long submission is cut, so that neither the operations of one group nor the staging at one time grow without bound.

And so that the device has something to do before the host has posted all. Jobs are publicly known to hang from about 10,000
sends and receives in one group. The cuts follow from bounds that hold for every rank, so each rank finds them by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from restripe.layout.chunked import Region, cut, lengths
from restripe.planning.plan import Message, RankPlan

OPERATIONS = 2048  # sends and receives of one rank in one group
LONG = 128  # tensors of a submission from which on its first round is a short one, on its way while the rest is posted
LEAD = 32  # tensors of that round


@dataclass(frozen=True, slots=True)
class Part:
    """The share of a tensor's messages that goes in one round.

    Every message is cut into `slices` by rows; and in each tensor dim a message's band, modulo `turns`, is its `turn`.
    """

    tensor: int
    slice: int
    slices: int
    turn: tuple[int, ...]
    turns: tuple[int, ...]
    first: bool
    last: bool

    def of(self, messages: Iterable[Message]) -> Iterator[Message]:
        """This part of the messages that a plan sends or receives."""
        for message in messages:
            if all(band % turns == turn for band, turns, turn in zip(message.band, self.turns, self.turn, strict=True)):
                region = _rows(message.region, self.slices, self.slice)
                if all(region):
                    yield message._replace(region=region)


def _rows(region: Region, slices: int, index: int) -> Region:
    """Slice `index` of the region along its first dim longer than 1, so that what was contiguous stays so."""
    if slices == 1:
        return region
    rows = next((dim for dim, size in enumerate(lengths(region)) if size > 1), 0)
    return tuple(cut(intervals, slices, index) if dim == rows else intervals for dim, intervals in enumerate(region))


def rounds(plans: Sequence[RankPlan], itemsizes: Sequence[int], staging_bytes: int) -> list[list[Part]]:
    """The parts of each round, for tensors in the order of a submission.

    Args:
        plans: one a tensor.
        itemsizes: bytes of an element, one a tensor.
        staging_bytes: what one rank may stage in one round; single rows may exceed it.
    """
    found: list[list[Part]] = []
    operations = staging = 0
    for tensor, (plan, itemsize) in enumerate(zip(plans, itemsizes, strict=True)):
        turns = _turns(plan)
        slices = _slices(plan.staging * itemsize, staging_bytes)
        more, bytes_more = plan.operations(turns), min(plan.staging * itemsize, staging_bytes)
        for part in _parts(tensor, slices, turns):
            led = part.first and tensor == LEAD and len(plans) >= LONG
            if not found or led or operations + more > OPERATIONS or staging + bytes_more > staging_bytes:
                found.append([])
                operations = staging = 0
            found[-1].append(part)
            operations, staging = operations + more, staging + bytes_more
    return found


def _parts(tensor: int, slices: int, turns: tuple[int, ...]) -> list[Part]:
    keys = list(product(range(slices), *(range(count) for count in turns)))
    last = len(keys) - 1
    return [Part(tensor, key[0], slices, key[1:], turns, n == 0, n == last) for n, key in enumerate(keys)]


def _turns(plan: RankPlan) -> tuple[int, ...]:
    """In how many turns each tensor dim's bands go round, so that no rank has too many operations in one."""
    turns = [1] * len(plan.widths)
    while plan.operations(turns) > OPERATIONS:
        widths = [max(width.in_turns(t) for width in pair) for pair, t in zip(plan.widths, turns, strict=True)]
        turns[widths.index(max(widths))] *= 2
    return tuple(turns)


def _slices(staging: int, budget: int) -> int:
    """Into how many slices messages are cut; twice as many as bytes ask for, since a message's rows do not divide evenly."""
    return 1 if staging <= budget else 2 * -(-staging // budget)
