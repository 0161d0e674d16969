"""What a plan says: values that know neither tensors nor communicators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from restripe.layout.chunked import Region


class Reason(StrEnum):
    """The shape that a plan took, and why; the same on every rank."""

    EMPTY = "nothing to move: the tensor has no elements"
    LOCAL = "local copies: every destination rank already holds its part"
    POINT = "point to point: every destination region has one owner"
    STRIPED = "striped: each replica receives its stripe, then one all-gather"
    RAGGED = "striped: each replica receives its stripe, as many as there are and of uneven lengths, then broadcasts it"
    SCALAR = "representative, then broadcast: destination shards of one element have no stripes"
    STAGING = "representative, then broadcast: some stripe would be staged on both sides"


class Holders(StrEnum):
    """Which of the ranks that hold a part send it, and why; the same on every rank."""

    ONE = "one has each part"
    NEAR = "those on the receiver's host first"
    TURNS = "all take turns"


class FanOutKind(StrEnum):
    """How the rest of a destination shard is rebuilt."""

    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"


class Message(NamedTuple):
    """One region of the tensor that crosses from one rank to another; `peer` is the other end.

    `band` numbers the pair in each tensor dim, alike on both ends, so that a rank's messages spread over the turns of a round.
    """

    peer: int
    region: Region
    band: tuple[int, ...] = ()


class Width(NamedTuple):
    """How many of the other side's chunks of a tensor dim one chunk meets at most, and how many there are to meet."""

    most: int
    others: int

    def in_turns(self, turns: int) -> int:
        """The same for those of one band in so many turns."""
        return min(self.most, -(-self.others // turns))


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
    """What one rank does for one tensor.

    `source` and `destination` are the regions that the rank owns (None outside the mesh). First `copies` go from one to the
    other, and `sends` and `receives` cross, each ordered by peer, at most one message a pair of ranks; then the fan-out.
    `widths` (for each tensor dim, the most targets that one source meets, and the reverse) and `staging` (elements packed
    and unpacked) bound what any rank of the world needs, so every rank finds the same.
    """

    source: Region | None
    destination: Region | None
    copies: tuple[Region, ...]
    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    fan_out: FanOut | None
    reason: Reason
    widths: tuple[tuple[Width, Width], ...]
    staging: int

    @property
    def idle(self) -> bool:
        """Whether this rank reads and writes no element of its tensors."""
        return not (self.copies or self.sends or self.receives or self.fan_out)

    def operations(self, turns: Sequence[int]) -> int:
        """A bound on any rank's sends and receives in one turn, where each tensor dim's bands go round in so many turns."""
        if self.reason in (Reason.EMPTY, Reason.LOCAL):
            return 0
        widths = list(zip(self.widths, turns, strict=True))
        sent = math.prod(out.in_turns(count) for (out, _), count in widths)
        return sent + math.prod(into.in_turns(count) for (_, into), count in widths)
