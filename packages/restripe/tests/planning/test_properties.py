"""Laws that hold for every pair of layouts, and the quadratic planner as the judge. No process is needed for any of them."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import example, given, settings

from restripe.layout.chunked import Region
from restripe.planning.plan import Message, RankPlan, Reason
from restripe.planning.planner import make_planner, plan

from ..helpers.drawings import Drawn, box, drawings, larger
from ..helpers.judge import Box, Shape, Side, Transfer, WorldPlan, groups, judge, meet, owned, volume

LAYOUTS = 20_000

TWO_ROWS = Drawn(6, (2, 5), Side((1,), (0,), (None,)), Side((5,), (1, 2, 3, 4, 5), (None,)))  # each in halves
# 16 columns are chunks of 3, and chunks of 6 cut in halves: only the shorter chunk at the end, of 4, is cut across theirs.
ODD_END = Drawn(18, (4, 16), Side((6,), tuple(range(6)), (1,)), Side((2, 3, 2), tuple(range(6, 18)), (None, 1, 1)))


def owned_region(side: Side, rank: int, shape: Shape) -> Region | None:
    coordinate = side.coordinates().get(rank)
    if coordinate is None:
        return None
    return tuple(((low, high),) if low < high else () for low, high in owned(side, coordinate, shape))


def is_within(inner: Box, outer: Box) -> bool:
    return meet(inner, outer) == inner


def written(planned: RankPlan) -> list[Box]:
    """The boxes that are written on a rank before the fan-out."""
    return [box(region) for region in (*planned.copies, *(message.region for message in planned.receives))]


def check_ownership(drawn: Drawn, world: list[RankPlan]) -> None:
    for rank, planned in enumerate(world):
        assert planned.source == owned_region(drawn.src, rank, drawn.shape)
        assert planned.destination == owned_region(drawn.dst, rank, drawn.shape)


def check_bounds(drawn: Drawn, world: list[RankPlan]) -> None:
    """No rank sends or copies what it does not own, nor writes outside its destination."""
    for planned in world:
        read = [box(region) for region in (*planned.copies, *(message.region for message in planned.sends))]
        if read:
            assert planned.source is not None
            assert all(is_within(each, box(planned.source)) for each in read)
        if written(planned):
            assert planned.destination is not None
            assert all(is_within(each, box(planned.destination)) for each in written(planned))


def check_messages(drawn: Drawn, world: list[RankPlan]) -> None:
    """Ordered by peer, at most one an ordered pair, and every send has its receive of the same region."""
    sent = {(rank, peer): region for rank, planned in enumerate(world) for peer, region in parts(planned.sends)}
    received = {(peer, rank): region for rank, planned in enumerate(world) for peer, region in parts(planned.receives)}
    assert sent == received
    assert all(sender != receiver for sender, receiver in sent)
    for planned in world:
        for messages in (planned.sends, planned.receives):
            peers = [message.peer for message in messages]
            assert peers == sorted(set(peers))


def parts(messages: tuple[Message, ...]) -> list[tuple[int, Region]]:
    return [(message.peer, message.region) for message in messages]


def place(corner: Shape, shard: Box) -> int:
    """Where an element lies in a row-major shard."""
    found = 0
    for position, (low, high) in zip(corner, shard, strict=True):
        found = found * (high - low) + position - low
    return found


def stripe(planned: RankPlan, shard: Box) -> tuple[int, int]:
    """Where the elements that a rank must hold before the fan-out lie in its row-major shard."""
    if planned.fan_out is None:
        return 0, volume(shard)
    lengths, index = planned.fan_out.stripes, planned.fan_out.index
    assert sum(lengths) == volume(shard)
    assert len(lengths) == len(planned.fan_out.members)
    assert planned.fan_out.kind == "broadcast" or len(set(lengths)) == 1
    return sum(lengths[:index]), sum(lengths[: index + 1])


def check_exactly_once(drawn: Drawn, world: list[RankPlan]) -> None:
    """The boxes written before the fan-out tile what this rank must bring to it, and the fan-out adds the rest."""
    for planned in world:
        before = written(planned)
        if planned.destination is None or () in planned.destination:
            assert not before
            assert planned.fan_out is None
            continue
        shard = box(planned.destination)
        start, stop = stripe(planned, shard)
        for each in before:
            assert is_within(each, shard)
            assert start <= place(tuple(low for low, _ in each), shard)
            assert place(tuple(high - 1 for _, high in each), shard) < stop
        assert not any(meet(one, other) for one, other in combinations(before, 2))
        assert sum(map(volume, before)) == stop - start


def check_fan_outs(drawn: Drawn, world: list[RankPlan]) -> None:
    """All members of a fan-out know it alike, stand at their place, and own the same region."""
    for rank, planned in enumerate(world):
        if planned.fan_out is None:
            continue
        assert planned.fan_out.members[planned.fan_out.index] == rank
        for index, member in enumerate(planned.fan_out.members):
            assert world[member].fan_out == replace(planned.fan_out, index=index)
            assert world[member].destination == planned.destination


def check_traffic(drawn: Drawn, world: list[RankPlan]) -> None:
    """Each unique element crosses at most once a replica group, and a holder serves itself."""
    for group in groups(drawn.dst, drawn.shape):
        crossed = [box(message.region) for rank in group.members for message in world[rank].receives]
        assert sum(map(volume, crossed)) <= volume(group.box)
    for planned in world:
        if planned.source is not None and () not in planned.source:
            assert not any(meet(box(message.region), box(planned.source)) for message in planned.receives)


def union(world: list[RankPlan]) -> WorldPlan:
    """All ranks' plans as one, told by the sends."""
    (reason,) = {planned.reason for planned in world}
    found = WorldPlan(reason.name.lower())
    for rank, planned in enumerate(world):
        found.transfers |= {Transfer(rank, rank, box(region)) for region in planned.copies}
        found.transfers |= {Transfer(rank, message.peer, box(message.region)) for message in planned.sends}
        if planned.fan_out is not None:
            found.fan_outs[rank] = (planned.fan_out.kind, planned.fan_out.members)
    return found


def check_judge(drawn: Drawn, world: list[RankPlan]) -> None:
    assert union(world) == judge(drawn.src, drawn.dst, drawn.shape, drawn.rotation)


CHECKS: list[Callable[[Drawn, list[RankPlan]], None]] = [
    check_ownership,
    check_bounds,
    check_messages,
    check_exactly_once,
    check_fan_outs,
    check_traffic,
    check_judge,
]


@pytest.mark.law
@pytest.mark.requirement("RS-UPSTREAM-4", "RS-UPSTREAM-5", "RS-UPSTREAM-6", "RS-UPSTREAM-7", "RS-UPSTREAM-9")
def test_every_pair_of_layouts_obeys_the_laws() -> None:
    """One pass for all laws, since drawing costs the most; that enough was drawn of every kind is a law too."""
    seen: set[Drawn] = set()
    kinds: Counter[Reason] = Counter()

    @settings(max_examples=LAYOUTS + 2_000, deadline=None, derandomize=True)
    @given(drawings())
    def obey(drawn: Drawn) -> None:
        world = drawn.plans()
        for check in CHECKS:
            check(drawn, world)
        if drawn not in seen:
            kinds[world[0].reason] += 1
        seen.add(drawn)

    obey()
    assert len(seen) >= LAYOUTS
    assert all(kinds[reason] >= LAYOUTS // 200 for reason in Reason), kinds


@pytest.mark.requirement("RS-UPSTREAM-7")
@settings(max_examples=500, deadline=None, derandomize=True)
@given(larger())
@example(ODD_END)
@example(TWO_ROWS)
def test_the_judge_agrees_about_larger_worlds(drawn: Drawn) -> None:
    """Many chunks a tensor dim, of sizes that share few divisors: striping is decided without walking over them."""
    check_judge(drawn, drawn.plans())


@pytest.mark.law
@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(drawings())
def test_a_rank_plans_alone_as_it_does_among_all(drawn: Drawn) -> None:
    alone = [plan(*drawn.layouts(), drawn.shape, rank, drawn.rotation) for rank in reversed(range(drawn.world))]
    assert alone[::-1] == drawn.plans()


@pytest.mark.law
@settings(max_examples=1_000, deadline=None, derandomize=True)
@given(drawings())
def test_a_planner_that_ranks_and_turns_share_plans_as_one_of_each_rank_s_own(drawn: Drawn) -> None:
    shared = make_planner(*drawn.layouts(), drawn.shape)
    for rotation in (drawn.rotation, drawn.rotation + 1):
        plans = [shared.plan(rank, rotation) for rank in range(drawn.world)]
        assert plans == drawn._replace(rotation=rotation).plans()
