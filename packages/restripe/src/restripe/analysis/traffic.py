"""What all ranks do for one tensor, read off their plans and held against each other."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from restripe.analysis.coverage import flaw, merged, within
from restripe.layout.chunked import Intervals, Region, lengths
from restripe.layout.mesh import Layout
from restripe.planning.plan import RankPlan, Reason
from restripe.planning.planner import planner

Members = tuple[int, ...]
Plans = Mapping[int, RankPlan]


class PlanFaultError(Exception):
    """Plans of several ranks that do not fit together: a fault of the planner, which no user can cause."""


@dataclass(frozen=True)
class Traffic:
    """What crosses for one tensor, in elements.

    `sent` is by (sender, receiver). `copied` is by rank: what it copies in its own memory, be it from source to destination
    or to pack and unpack pieces that are not contiguous in row-major shards. `rebuilt` has, for each replica group that
    ends with a fan-out, the elements that each member lacks before it. `needed` is the size of all destination shards,
    replicas included.
    """

    reason: Reason
    sent: dict[tuple[int, int], int]
    copied: dict[int, int]
    rebuilt: dict[Members, dict[int, int]]
    needed: int


def plans(src: Layout, dst: Layout, shape: tuple[int, ...], turn: int = 0) -> dict[int, RankPlan]:
    """The plans of all ranks of both meshes; every other rank is idle."""
    shared = planner(src, dst, shape)
    return {rank: shared.plan(rank, turn) for rank in sorted({*src.mesh.ranks, *dst.mesh.ranks})}


def traffic(world: Plans) -> Traffic:
    """The traffic of all ranks' plans of one tensor.

    Raises:
        PlanFaultError: a send and its receive differ, a rank sends what it does not own, or a destination element is not
            written exactly once.
    """
    check_pairs(world)
    check_sources(world)
    groups = rebuilding(world)
    check_destinations(world, groups)
    any_plan = next(iter(world.values()))
    return Traffic(
        any_plan.reason,
        {(rank, one.peer): numel(one.region) for rank, each in world.items() for one in each.sends},
        {rank: copied for rank, each in world.items() if (copied := copies(each))},
        {members: {rank: _lacks(world[rank]) for rank in members} for members in groups if len(members) > 1},
        sum(numel(each.destination) for each in world.values() if each.destination is not None),
    )


def check_pairs(world: Plans) -> None:
    """Every send has its receive of the same region, and one ordered pair of ranks has one message."""
    sends = _by_pair((rank, one.peer, one.region) for rank, each in world.items() for one in each.sends)
    receives = _by_pair((one.peer, rank, one.region) for rank, each in world.items() for one in each.receives)
    if sends != receives:
        sender, receiver = next(pair for pair in sorted({*sends, *receives}) if sends.get(pair) != receives.get(pair))
        raise PlanFaultError(
            f"rank {sender} sends {sends.get((sender, receiver))} to rank {receiver}, "
            f"which expects {receives.get((sender, receiver))} from it"
        )


def _by_pair(messages: Iterable[tuple[int, int, Region]]) -> dict[tuple[int, int], Region]:
    found: dict[tuple[int, int], Region] = {}
    for sender, receiver, region in messages:
        if (sender, receiver) in found:
            raise PlanFaultError(f"rank {sender} has two messages for rank {receiver}: expected one")
        found[sender, receiver] = region
    return found


def check_sources(world: Plans) -> None:
    """Every rank owns what it sends and copies."""
    for rank, each in world.items():
        for region in (*each.copies, *(one.region for one in each.sends)):
            if each.source is None or not within(region, each.source):
                raise PlanFaultError(f"rank {rank} gives {region} but owns {each.source}")


def rebuilding(world: Plans) -> list[Members]:
    """The ranks that bring a destination shard together: the members of a fan-out, or one rank alone."""
    found: dict[Members, None] = {}
    for rank, each in world.items():
        if each.destination is not None:
            found[(rank,) if each.fan_out is None else each.fan_out.members] = None
    return list(found)


def check_destinations(world: Plans, groups: Iterable[Members]) -> None:
    """What a group's members write before their fan-out tiles their shard: each element is there once, then on every member."""
    for members in groups:
        first = world[members[0]]
        if first.destination is None or any(_differ(first, world[rank]) for rank in members):
            raise PlanFaultError(f"ranks {members} complete one shard together, but some of them know of another one")
        found = flaw([region for rank in members for region in writes(world[rank])], first.destination)
        if found is not None:
            raise PlanFaultError(
                f"ranks {members} write {found.box} of their shard {first.destination} {found.times} times: expected once"
            )


def _differ(one: RankPlan, other: RankPlan) -> bool:
    """Whether two ranks of one replica group disagree about their shard or about who completes it."""
    groups = [None if each.fan_out is None else (each.fan_out.kind, each.fan_out.members) for each in (one, other)]
    return one.destination != other.destination or groups[0] != groups[1]


def writes(planned: RankPlan) -> list[Region]:
    """The regions that a rank writes before the fan-out."""
    return [*planned.copies, *(one.region for one in planned.receives)]


def copies(planned: RankPlan) -> int:
    """The elements that a rank copies in its own memory."""
    packed = [one.region for one in planned.sends if not contiguous(one.region, planned.source or ())]
    unpacked = [one.region for one in planned.receives if not contiguous(one.region, planned.destination or ())]
    return sum(map(numel, (*planned.copies, *packed, *unpacked)))


def contiguous(piece: Region, shard: Region) -> bool:
    """Whether a piece is one run of a row-major shard: past its first dim longer than 1, it has all that the shard has."""
    sizes = lengths(piece)
    first = next((dim for dim, size in enumerate(sizes) if size > 1), len(sizes))
    rest = zip(sizes[first + 1 :], lengths(shard)[first + 1 :], strict=True)
    return first == len(sizes) or (
        _runs(piece[first], shard[first]) == 1 and all(size == whole for size, whole in rest)
    )


def _runs(mine: Intervals, shard: Intervals) -> int:
    """Into how many runs intervals of a shard fall where the shard's own lie one after another."""
    found, before = [], 0
    for low, high in shard:
        shift = before - low
        found += [(max(lo, low) + shift, min(hi, high) + shift) for lo, hi in mine if max(lo, low) < min(hi, high)]
        before += high - low
    return len(merged(tuple(found)))


def _lacks(planned: RankPlan) -> int:
    """The elements that the fan-out brings to a rank."""
    return numel(planned.destination or ()) - sum(map(numel, writes(planned)))


def numel(region: Region) -> int:
    """The elements of a region."""
    return math.prod(lengths(region))


def relabelled(found: Traffic, names: Mapping[int, int]) -> Traffic:
    """The same traffic between ranks of other numbers."""
    return Traffic(
        found.reason,
        {(names[sender], names[receiver]): size for (sender, receiver), size in found.sent.items()},
        {names[rank]: size for rank, size in found.copied.items()},
        {
            tuple(names[rank] for rank in members): {names[rank]: size for rank, size in lacking.items()}
            for members, lacking in found.rebuilt.items()
        },
        found.needed,
    )


def busiest_peers(world: Plans) -> int:
    """The most ranks that any one rank sends to or receives from."""
    peers: defaultdict[int, set[int]] = defaultdict(set)
    for rank, each in world.items():
        peers[rank].update(one.peer for one in (*each.sends, *each.receives))
    return max(map(len, peers.values()), default=0)


def loads(sent: Mapping[tuple[int, int], int]) -> tuple[Counter[int], Counter[int]]:
    """What each rank sends, and what each receives."""
    out, into = Counter[int](), Counter[int]()
    for (sender, receiver), size in sent.items():
        out[sender] += size
        into[receiver] += size
    return out, into
