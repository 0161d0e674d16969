"""Rounds: a long submission in parts, so that neither the operations of one group nor the staging at one time grow unbounded.

A short first round gives the device work before the host has enqueued all. The parts follow from bounds that hold for every
rank, so each rank finds them by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from restripe.layout.chunked import Region, lengths, nth_chunk
from restripe.planning.plan import Message, RankPlan

#: Sends and receives of one rank in one NCCL group. Public reports name jobs that hang from some 10,000 (8,000 passed).
MAX_OPERATIONS = 2048
#: Tensors of a submission from which on its first round is a short one. Measured on two H200: it is on its way while the
#: rest is enqueued (docs/performance.md, the model of 396 tensors).
LONG_SUBMISSION = 128
FIRST_ROUND = 32  # tensors of that round


@dataclass(frozen=True, slots=True)
class RoundPart:
    """The share of a tensor's messages that goes in one round.

    Every message is cut into `slices` by rows; and in each tensor dim the pairs whose index, modulo `subrounds`, is `subround`
    take part. `first` and `last` tell whether it is the tensor's first or last part.
    """

    tensor: int
    slice: int
    slices: int
    subround: tuple[int, ...]
    subrounds: tuple[int, ...]
    first: bool
    last: bool

    def select(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield this part of the messages that a plan sends or receives."""
        for message in messages:
            if all(
                pair_index % subrounds == subround
                for pair_index, subrounds, subround in zip(
                    message.pair_indices, self.subrounds, self.subround, strict=True
                )
            ):
                region = _slice_rows(message.region, self.slices, self.slice)
                if all(region):
                    yield message._replace(region=region)


def _slice_rows(region: Region, slices: int, index: int) -> Region:
    """Return slice `index` of the region along its first dim longer than 1, so that contiguous regions stay contiguous."""
    if slices == 1:
        return region
    rows = next((dim for dim, size in enumerate(lengths(region)) if size > 1), 0)
    return tuple(
        nth_chunk(intervals, slices, index) if dim == rows else intervals for dim, intervals in enumerate(region)
    )


def rounds(plans: Sequence[RankPlan], itemsizes: Sequence[int], staging_bytes: int) -> list[list[RoundPart]]:
    """Return the parts of each round, for tensors in the order of a submission.

    Args:
        plans: one a tensor.
        itemsizes: bytes of an element, one a tensor.
        staging_bytes: what one rank may stage in one round; single rows may exceed it.
    """
    schedule: list[list[RoundPart]] = []
    operations = staging = 0
    for tensor, (plan, itemsize) in enumerate(zip(plans, itemsizes, strict=True)):
        subrounds = _subrounds(plan)
        slices = _slices(plan.staging * itemsize, staging_bytes)
        more, more_bytes = plan.max_operations(subrounds), min(plan.staging * itemsize, staging_bytes)
        for part in _tensor_parts(tensor, slices, subrounds):
            ends_first = part.first and tensor == FIRST_ROUND and len(plans) >= LONG_SUBMISSION
            full = operations + more > MAX_OPERATIONS or staging + more_bytes > staging_bytes
            if not schedule or ends_first or full:
                schedule.append([])
                operations = staging = 0
            schedule[-1].append(part)
            operations, staging = operations + more, staging + more_bytes
    return schedule


def _tensor_parts(tensor: int, slices: int, subrounds: tuple[int, ...]) -> list[RoundPart]:
    keys = list(product(range(slices), *(range(count) for count in subrounds)))
    last = len(keys) - 1
    return [RoundPart(tensor, key[0], slices, key[1:], subrounds, n == 0, n == last) for n, key in enumerate(keys)]


def _subrounds(plan: RankPlan) -> tuple[int, ...]:
    """Return into how many subrounds the pairs of each tensor dim go, so that no rank has too many operations in one."""
    subrounds = [1] * len(plan.overlap_bounds)
    while plan.max_operations(subrounds) > MAX_OPERATIONS:
        most = [
            max(bound.in_subrounds(count) for bound in pair)
            for pair, count in zip(plan.overlap_bounds, subrounds, strict=True)
        ]
        subrounds[most.index(max(most))] *= 2
    return tuple(subrounds)


def _slices(staging: int, budget: int) -> int:
    """Return into how many slices messages are cut: twice as many as bytes ask for, since rows do not divide evenly."""
    return 1 if staging <= budget else 2 * -(-staging // budget)
