"""How a long submission is cut: nothing is lost, both ends cut alike, and no round exceeds its bounds."""

from collections import defaultdict
from importlib import import_module

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from restripe.planning.plan import Message, RankPlan
from restripe.planning.planner import plan
from restripe.planning.rounds import RoundPart, rounds

from ..helpers.drawings import Drawn, box, drawings, larger
from ..helpers.judge import Box, Side, contiguous, meet, volume

OPERATIONS = 8
SPLIT_COLUMNS = Drawn(4, (4, 64), Side((2,), (0, 1), (1,)), Side((2,), (2, 3), (0,)))


@st.composite
def submissions(draw: st.DrawFn) -> list[Drawn]:
    return draw(st.lists(drawings() | larger(), min_size=1, max_size=2))


def world_of(submission: list[Drawn]) -> int:
    return max(drawn.world for drawn in submission)


def planned(submission: list[Drawn]) -> list[list[RankPlan]]:
    """The plans of every rank, one a tensor."""
    world = world_of(submission)
    tensors = [drawn._replace(world=world).plans() for drawn in submission]
    return [[plans[rank] for plans in tensors] for rank in range(world)]


def scheduled(ranks: list[list[RankPlan]], itemsize: int, budget: int) -> list[list[RoundPart]]:
    """The rounds, which every rank must find alike."""
    schedule, *others = [rounds(plans, [itemsize] * len(plans), budget) for plans in ranks]
    assert all(other == schedule for other in others)
    return schedule


def sends(plans: list[RankPlan], rank: int, parts: list[RoundPart]) -> list[tuple[RoundPart, Message]]:
    return [(part, message) for part in parts for message in part.select(plans[part.tensor].sends)]


def receives(plans: list[RankPlan], rank: int, parts: list[RoundPart]) -> list[tuple[RoundPart, Message]]:
    return [(part, message) for part in parts for message in part.select(plans[part.tensor].receives)]


@pytest.mark.requirement("RS-BATCH-4")
@settings(max_examples=50, deadline=None, derandomize=True)
@given(submissions(), st.sampled_from([1, 7, 24, 10**9]), st.sampled_from([2, 128]))
def test_both_ends_cut_every_message_alike_and_lose_nothing(submission: list[Drawn], budget: int, long: int) -> None:
    ranks = planned(submission)
    with pytest.MonkeyPatch.context() as patch:
        module = import_module("restripe.planning.rounds")
        for name, value in (("MAX_OPERATIONS", OPERATIONS), ("LONG_SUBMISSION", long), ("FIRST_ROUND", 1)):
            patch.setattr(module, name, value)
        schedule = scheduled(ranks, 1, budget)
    crossed: dict[tuple[int, int, int], list[Box]] = defaultdict(list)
    for parts in schedule:
        sent, received = defaultdict(list), defaultdict(list)
        for rank, plans in enumerate(ranks):
            for part, message in sends(plans, rank, parts):
                sent[rank, message.peer].append((part.tensor, message.region))
                crossed[part.tensor, rank, message.peer].append(box(message.region))
            for part, message in receives(plans, rank, parts):
                received[message.peer, rank].append((part.tensor, message.region))
        assert sent == received
    for rank, plans in enumerate(ranks):
        for tensor, each in enumerate(plans):
            for message in each.sends:
                pieces = crossed.pop((tensor, rank, message.peer))
                assert all(meet(piece, box(message.region)) == piece for piece in pieces)
                assert sum(map(volume, pieces)) == volume(box(message.region))
                assert not any(meet(a, b) for index, a in enumerate(pieces) for b in pieces[:index])
    assert not crossed


@pytest.mark.requirement("RS-BATCH-4")
@settings(max_examples=100, deadline=None, derandomize=True)
@given(submissions())
def test_no_round_has_more_operations_than_its_bound(submission: list[Drawn]) -> None:
    ranks = planned(submission)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("restripe.planning.rounds"), "MAX_OPERATIONS", OPERATIONS)
        schedule = scheduled(ranks, 1, 10**9)
    for rank, plans in enumerate(ranks):
        for each in plans:
            assert len(each.sends) + len(each.receives) <= each.max_operations([1] * len(each.overlap_bounds))
        for parts in schedule:
            assert len(sends(plans, rank, parts)) + len(receives(plans, rank, parts)) <= OPERATIONS


@pytest.mark.parametrize(("tensors", "rounds_of"), [(127, [127]), (128, [32, 96]), (400, [32, 368])])
def test_a_long_submission_begins_with_a_short_round(tensors: int, rounds_of: list[int]) -> None:
    """It is on its way while the rest is posted; ranks with no part in its tensors find the same rounds."""
    for rank in range(4):
        one = plan(*SPLIT_COLUMNS.layouts(), SPLIT_COLUMNS.shape, rank)
        schedule = rounds([one] * tensors, [1] * tensors, 10**9)
        assert [len(parts) for parts in schedule] == rounds_of
        assert [part.tensor for parts in schedule for part in parts] == list(range(tensors))


@pytest.mark.requirement("RS-BATCH-4")
def test_ranks_that_lie_at_equal_distances_spread_over_the_rounds() -> None:
    """Every fourth rank only, rows to columns: a rank has 8190 messages, and its peers' distances are multiples of 4."""
    ranks = tuple(range(0, 4 * 4096, 4))
    drawn = Drawn(4 * 4096, (4096, 4096), Side((4096,), ranks, (0,)), Side((4096,), ranks, (1,)))
    plans = [plan(*drawn.layouts(), drawn.shape, 0)]
    schedule = rounds(plans, [1], 10**12)
    counts = [len(sends(plans, 0, parts)) + len(receives(plans, 0, parts)) for parts in schedule]
    assert sum(counts) == 8190
    assert max(counts) <= import_module("restripe.planning.rounds").MAX_OPERATIONS


def uncut(tensor: int, each: RankPlan) -> RoundPart:
    """The part that takes all of a tensor's messages whole."""
    dims = len(each.overlap_bounds)
    return RoundPart(tensor, slice=0, slices=1, subround=(0,) * dims, subrounds=(1,) * dims, first=True, last=True)


def staged(plans: list[RankPlan], rank: int, parts: list[RoundPart]) -> list[Box]:
    """What row-major geometry makes this rank pack or unpack."""
    found = []
    for part, message in sends(plans, rank, parts):
        source = plans[part.tensor].source
        assert source is not None
        if not contiguous(box(message.region), box(source)):
            found.append(box(message.region))
    for part, message in receives(plans, rank, parts):
        destination = plans[part.tensor].destination
        assert destination is not None
        if not contiguous(box(message.region), box(destination)):
            found.append(box(message.region))
    return found


@pytest.mark.requirement("RS-TRAFFIC-4")
@settings(max_examples=100, deadline=None, derandomize=True)
@given(submissions(), st.sampled_from([24, 60, 200, 10**9]))
def test_what_geometry_stages_stays_within_the_bound(submission: list[Drawn], budget: int) -> None:
    """Or is already cut down to single rows."""
    ranks = planned(submission)
    schedule = scheduled(ranks, 1, budget)
    for rank, plans in enumerate(ranks):
        for tensor, each in enumerate(plans):
            assert sum(map(volume, staged(plans, rank, [uncut(tensor, each)]))) <= each.staging
        for parts in schedule:
            boxes = staged(plans, rank, parts)
            assert sum(map(volume, boxes)) <= budget or all(high - low == 1 for (low, high), *_ in boxes)


@pytest.mark.requirement("RS-TRAFFIC-4")
@settings(max_examples=60, deadline=None, derandomize=True)
@given(submissions(), st.sampled_from([24, 60, 200]))
@example([SPLIT_COLUMNS], 64)
def test_cutting_a_message_adds_no_staging(submission: list[Drawn], budget: int) -> None:
    """What is contiguous stays so in its pieces."""
    ranks = planned(submission)
    schedule = scheduled(ranks, 1, budget)
    for rank, plans in enumerate(ranks):
        whole = staged(plans, rank, [uncut(tensor, each) for tensor, each in enumerate(plans)])
        pieces = [each for parts in schedule for each in staged(plans, rank, parts)]
        assert sum(map(volume, pieces)) <= sum(map(volume, whole))
