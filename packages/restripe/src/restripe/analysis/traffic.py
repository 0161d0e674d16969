"""Traffic of one tensor: the plans of all ranks, checked against each other, and the elements that cross."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from restripe.analysis.coverage import find_flaw, is_within, join_touching
from restripe.layout.chunked import Intervals, Region, lengths
from restripe.layout.mesh import Layout
from restripe.planning.plan import RankPlan, Reason
from restripe.planning.planner import make_planner

Members = tuple[int, ...]
Plans = Mapping[int, RankPlan]


class PlanFaultError(Exception):
    """Plans of several ranks that do not fit together: a fault of the planner, not of its user."""


@dataclass(frozen=True)
class Traffic:
    """Traffic of one tensor, in elements.

    reason: the reason of the plans.
    sent: by (sender, receiver).
    copied: by rank, what it copies in its own memory: from source to destination, and to pack and unpack pieces that are not
        contiguous in row-major shards.
    lacking: for each replica group with a fan-out, the elements that each member lacks before it.
    needed: the size of all destination shards, replicas included.
    """

    reason: Reason
    sent: dict[tuple[int, int], int]
    copied: dict[int, int]
    lacking: dict[Members, dict[int, int]]
    needed: int


def plan_all_ranks(src: Layout, dst: Layout, shape: tuple[int, ...], rotation: int = 0) -> dict[int, RankPlan]:
    """Return the plans of all ranks of both meshes; every other rank is idle."""
    planner = make_planner(src, dst, shape)
    return {rank: planner.plan(rank, rotation) for rank in sorted({*src.mesh.ranks, *dst.mesh.ranks})}


def checked_traffic(world: Plans) -> Traffic:
    """Check the plans of all ranks for one tensor, and return their traffic.

    Raises:
        PlanFaultError: a send and its receive differ, a rank sends what it does not own, or a destination element is not
            written exactly once.
    """
    check_pairs(world)
    check_sources(world)
    groups = fan_out_groups(world)
    check_destinations(world, groups)
    any_plan = next(iter(world.values()))
    return Traffic(
        any_plan.reason,
        {(rank, message.peer): numel(message.region) for rank, plan in world.items() for message in plan.sends},
        {rank: copied for rank, plan in world.items() if (copied := copied_elements(plan))},
        {members: {rank: _lacking_elements(world[rank]) for rank in members} for members in groups if len(members) > 1},
        sum(numel(plan.destination) for plan in world.values() if plan.destination is not None),
    )


def check_pairs(world: Plans) -> None:
    """Raise PlanFaultError unless sends and receives pair up by region, at most one for a pair of ranks."""
    sends = _by_pair((rank, message.peer, message.region) for rank, plan in world.items() for message in plan.sends)
    receives = _by_pair(
        (message.peer, rank, message.region) for rank, plan in world.items() for message in plan.receives
    )
    if sends != receives:
        sender, receiver = next(pair for pair in sorted({*sends, *receives}) if sends.get(pair) != receives.get(pair))
        raise PlanFaultError(
            f"rank {sender} sends {sends.get((sender, receiver))} to rank {receiver}, "
            f"which expects {receives.get((sender, receiver))} from it"
        )


def _by_pair(messages: Iterable[tuple[int, int, Region]]) -> dict[tuple[int, int], Region]:
    """Return the regions of messages (sender, receiver, region) by pair; raise PlanFaultError where a pair has two."""
    regions: dict[tuple[int, int], Region] = {}
    for sender, receiver, region in messages:
        if (sender, receiver) in regions:
            raise PlanFaultError(f"rank {sender} has two messages for rank {receiver}: expected one")
        regions[sender, receiver] = region
    return regions


def check_sources(world: Plans) -> None:
    """Raise PlanFaultError unless every rank owns the regions that it sends and copies."""
    for rank, plan in world.items():
        for region in (*plan.copies, *(message.region for message in plan.sends)):
            if plan.source is None or not is_within(region, plan.source):
                raise PlanFaultError(f"rank {rank} gives {region} but owns {plan.source}")


def fan_out_groups(world: Plans) -> list[Members]:
    """Return the groups of ranks that complete a destination shard: members of a fan-out, or one rank alone."""
    groups: dict[Members, None] = {}
    for rank, plan in world.items():
        if plan.destination is not None:
            groups[(rank,) if plan.fan_out is None else plan.fan_out.members] = None
    return list(groups)


def check_destinations(world: Plans, groups: Iterable[Members]) -> None:
    """Raise PlanFaultError unless the regions that a group's members write before their fan-out tile their shard."""
    for members in groups:
        plan = world[members[0]]
        if plan.destination is None or any(_differ(plan, world[rank]) for rank in members):
            raise PlanFaultError(f"ranks {members} complete one shard together, but some of them know of another one")
        flaw = find_flaw([region for rank in members for region in written_regions(world[rank])], plan.destination)
        if flaw is not None:
            raise PlanFaultError(
                f"ranks {members} write {flaw.box} of their shard {plan.destination} {flaw.times} times: expected once"
            )


def _differ(plan: RankPlan, other_plan: RankPlan) -> bool:
    """Return whether two members of a replica group have different shards or fan-outs."""
    return plan.destination != other_plan.destination or _fan_out_key(plan) != _fan_out_key(other_plan)


def _fan_out_key(plan: RankPlan) -> tuple[object, Members] | None:
    """Return kind and members of a plan's fan-out, which are the same for all of its members."""
    return None if plan.fan_out is None else (plan.fan_out.kind, plan.fan_out.members)


def written_regions(plan: RankPlan) -> list[Region]:
    """Return the regions that a rank writes before the fan-out."""
    return [*plan.copies, *(message.region for message in plan.receives)]


def copied_elements(plan: RankPlan) -> int:
    """Return the number of elements that a rank copies in its own memory."""
    packed = [message.region for message in plan.sends if not is_contiguous(message.region, plan.source or ())]
    unpacked = [
        message.region for message in plan.receives if not is_contiguous(message.region, plan.destination or ())
    ]
    return sum(map(numel, (*plan.copies, *packed, *unpacked)))


def is_contiguous(piece: Region, shard: Region) -> bool:
    """Return whether a piece is one run of a row-major shard: it spans all dims after its first one longer than 1."""
    sizes = lengths(piece)
    outer = next((dim for dim, size in enumerate(sizes) if size > 1), len(sizes))
    rest = zip(sizes[outer + 1 :], lengths(shard)[outer + 1 :], strict=True)
    return outer == len(sizes) or (
        _count_runs(piece[outer], shard[outer]) == 1 and all(size == shard_size for size, shard_size in rest)
    )


def _count_runs(mine: Intervals, shard: Intervals) -> int:
    """Return the number of runs of intervals of a shard dim, once the shard's own intervals are put side by side."""
    local, before = [], 0
    for low, high in shard:
        shift = before - low
        local += [(max(lo, low) + shift, min(hi, high) + shift) for lo, hi in mine if max(lo, low) < min(hi, high)]
        before += high - low
    return len(join_touching(tuple(local)))


def _lacking_elements(plan: RankPlan) -> int:
    """Return the number of elements that the fan-out brings to a rank."""
    return numel(plan.destination or ()) - sum(map(numel, written_regions(plan)))


def numel(region: Region) -> int:
    """Return the number of elements of a region."""
    return math.prod(lengths(region))


def rename_ranks(traffic: Traffic, names: Mapping[int, int]) -> Traffic:
    """Return traffic with every rank replaced by its new number in `names`."""
    return Traffic(
        traffic.reason,
        {(names[sender], names[receiver]): size for (sender, receiver), size in traffic.sent.items()},
        {names[rank]: size for rank, size in traffic.copied.items()},
        {
            tuple(names[rank] for rank in members): {names[rank]: size for rank, size in lacking.items()}
            for members, lacking in traffic.lacking.items()
        },
        traffic.needed,
    )


def busiest_peers(world: Plans) -> int:
    """Return the number of peers of the rank with the most: ranks that it sends to or receives from."""
    peers: defaultdict[int, set[int]] = defaultdict(set)
    for rank, plan in world.items():
        peers[rank].update(message.peer for message in (*plan.sends, *plan.receives))
    return max(map(len, peers.values()), default=0)


def loads(sent: Mapping[tuple[int, int], int]) -> tuple[Counter[int], Counter[int]]:
    """Return the sums by sender and by receiver of sizes by (sender, receiver)."""
    sent_by, received_by = Counter[int](), Counter[int]()
    for (sender, receiver), size in sent.items():
        sent_by[sender] += size
        received_by[receiver] += size
    return sent_by, received_by
