"""Plans: values that know neither tensors nor communicators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from restripe.layout.chunked import Region


class Reason(StrEnum):
    """The strategy of a plan, and why; the same on every rank."""

    EMPTY = "nothing to move: the tensor has no elements"
    LOCAL = "local copies: every destination rank already holds its part"
    POINT = "point to point: every destination region has one owner"
    STRIPED = "striped: each replica receives its stripe, then one all-gather"
    RAGGED = "striped: each replica receives its stripe, as many as there are and of uneven lengths, then broadcasts it"
    SCALAR = "representative, then broadcast: destination shards of one element have no stripes"
    STAGING = "representative, then broadcast: some stripe would be staged on both sides"


class Holders(StrEnum):
    """The rule for which of the holders of a part send it; the same on every rank."""

    ONE = "one has each part"
    NEAR = "those on the receiver's host first"
    TURNS = "all take turns"


class FanOutKind(StrEnum):
    """The collective that rebuilds the rest of a destination shard."""

    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"


class Message(NamedTuple):
    """One region of the tensor that crosses from one rank to another; `peer` is the other end.

    `pair_indices` number the pair in each tensor dim, alike on both ends, so that a rank's messages spread over subrounds.
    """

    peer: int
    region: Region
    pair_indices: tuple[int, ...] = ()


class OverlapBound(NamedTuple):
    """The most chunks of the other side of a tensor dim that one chunk meets, and how many there are to meet."""

    most: int
    others: int

    def in_subrounds(self, subrounds: int) -> int:
        """Return the most that one chunk meets in one of so many subrounds."""
        return min(self.most, -(-self.others // subrounds))


@dataclass(frozen=True, slots=True)
class FanOut:
    """The collective calls among the members of a replica group that complete this rank's destination shard.

    Member number i holds stripe i of the row-major shard; `stripes` has their lengths in elements, and they lie one after
    another. all_gather: every member contributes its own, all of one length. broadcast: every member whose stripe is not
    empty broadcasts it to all.
    """

    kind: FanOutKind
    members: tuple[int, ...]
    index: int
    stripes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The part of one rank in the move of one tensor.

    `source` and `destination` are the regions that the rank owns (None outside the mesh). First `copies` go from one to the
    other, and `sends` and `receives` cross, each ordered by peer, at most one message a pair of ranks; then the fan-out.
    `overlap_bounds` (for each tensor dim, on the targets that one source meets, and the reverse) and `staging` (elements packed
    and unpacked) bound what any rank of the world needs, so every rank finds the same.
    """

    source: Region | None
    destination: Region | None
    copies: tuple[Region, ...]
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    fan_out: FanOut | None
    reason: Reason
    overlap_bounds: tuple[tuple[OverlapBound, OverlapBound], ...]
    staging: int

    @property
    def idle(self) -> bool:
        """True where this rank reads and writes no element of its tensors."""
        return not (self.copies or self.sends or self.receives or self.fan_out)

    def max_operations(self, subrounds: Sequence[int]) -> int:
        """Return a bound on any rank's sends and receives in one subround, of so many for each tensor dim."""
        if self.reason in (Reason.EMPTY, Reason.LOCAL):
            return 0
        bounds = list(zip(self.overlap_bounds, subrounds, strict=True))
        sent = math.prod(targets.in_subrounds(count) for (targets, _), count in bounds)
        return sent + math.prod(sources.in_subrounds(count) for (_, sources), count in bounds)
