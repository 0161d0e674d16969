"""The laws of planning for strided and segmented shards, by the elements that each rank holds, in lists cut by torch.chunk."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from itertools import accumulate, pairwise, product
from math import prod
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from restripe.layout.chunked import Region, lengths
from restripe.layout.mesh import Layout, Mesh
from restripe.layout.segmented import Segmented
from restripe.planning.plan import Message, RankPlan, Reason
from restripe.planning.planner import plan
from restripe.planning.rounds import RoundPart, rounds

MESHES = [(2,), (3,), (4,), (8,), (2, 2), (4, 2), (2, 3), (2, 2, 2)]
FLAGS = st.booleans()
LENGTHS = [8, 12, 9, 17, 16, 3, 1, 0]
Elements = tuple[int, ...]


class Woven(NamedTuple):
    """One reshard in a world of 12 ranks."""

    shape: tuple[int, ...]
    src: Layout
    dst: Layout
    rotation: int = 0

    def plans(self) -> list[RankPlan]:
        return [plan(self.src, self.dst, self.shape, rank, self.rotation) for rank in range(12)]


@st.composite
def placements(draw: st.DrawFn, mesh: tuple[int, ...], shape: tuple[int, ...], segments: Elements) -> list[Placement]:
    """One a mesh dim; tensor dim 0 may begin with the segments."""
    dims = st.integers(0, len(shape) - 1)
    strided = st.builds(_StridedShard, dims, split_factor=st.sampled_from([2, 3, 4, 20]))
    kinds: st.SearchStrategy[Placement] = st.one_of(st.builds(Replicate), st.builds(Shard, dims), strided)
    found = [draw(kinds) for _ in mesh]
    if draw(FLAGS) and segments:
        found[0] = Segmented(0, segments)
    return found


@st.composite
def wovens(draw: st.DrawFn) -> Woven:
    segments = tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=4)))
    shape = [draw(st.sampled_from(LENGTHS)) for _ in range(draw(st.integers(1, 2)))]
    if draw(FLAGS):
        shape[0] = sum(segments)
    fitting = segments if sum(segments) == shape[0] else ()
    sides = []
    for _ in range(2):
        mesh = draw(st.sampled_from(MESHES))
        ranks = draw(st.permutations(range(12)))[: prod(mesh)]
        sides.append(Layout(Mesh(mesh, tuple(ranks)), tuple(draw(placements(mesh, tuple(shape), fitting)))))
    return Woven(tuple(shape), sides[0], sides[1], draw(st.integers(0, 3)))


def parts(line: list[int], placement: Placement) -> list[list[int]]:
    """A list as a placement divides it before its mesh dim cuts."""
    if isinstance(placement, Segmented):
        return [line[lo:hi] for lo, hi in pairwise(accumulate(placement.sizes, initial=0))]
    count = int(placement.split_factor) if isinstance(placement, _StridedShard) else 1
    return [piece.tolist() for piece in torch.tensor(line, dtype=torch.int64).chunk(count)]


def owned(layout: Layout, shape: tuple[int, ...], at: tuple[int, ...]) -> tuple[Elements, ...]:
    """The positions of each tensor dim that coordinates hold, in order."""
    found = [list(range(length)) for length in shape]
    for size, index, placement in zip(layout.mesh.shape, at, layout.placements, strict=True):
        if not isinstance(placement, Replicate):
            dim = placement.dim  # type: ignore[attr-defined]
            chunks = [torch.tensor(part, dtype=torch.int64).chunk(size) for part in parts(found[dim], placement)]
            found[dim] = [element for each in chunks if index < len(each) for element in each[index].tolist()]
    return tuple(map(tuple, found))


def sides(layout: Layout, shape: tuple[int, ...]) -> dict[int, tuple[Elements, ...]]:
    """What every rank of a layout holds."""
    places = product(*map(range, layout.mesh.shape))
    return {rank: owned(layout, shape, at) for rank, at in zip(layout.mesh.ranks, places, strict=True)}


def positions(region: Region) -> tuple[Elements, ...]:
    return tuple(tuple(n for lo, hi in intervals for n in range(lo, hi)) for intervals in region)


def elements(region: Region) -> set[Elements]:
    return set(product(*positions(region)))


def check_ownership(woven: Woven, world: list[RankPlan]) -> None:
    sources, destinations = sides(woven.src, woven.shape), sides(woven.dst, woven.shape)
    for rank, planned in enumerate(world):
        assert (None if planned.source is None else positions(planned.source)) == sources.get(rank)
        assert (None if planned.destination is None else positions(planned.destination)) == destinations.get(rank)


def check_messages(woven: Woven, world: list[RankPlan]) -> None:
    """Every send has its receive, and no rank sends what it does not hold, nor twice to a peer, nor to a holder."""
    sources = sides(woven.src, woven.shape)
    sent = [(rank, peer, region) for rank, planned in enumerate(world) for peer, region, _ in planned.sends]
    received = [(peer, rank, region) for rank, planned in enumerate(world) for peer, region, _ in planned.receives]
    assert sorted(sent) == sorted(received)
    assert all(count == 1 for count in Counter((rank, peer) for rank, peer, _ in sent).values())
    for rank, peer, region in sent:
        held = set(product(*sources[rank]))
        assert elements(region) <= held
        assert elements(region)
        assert peer not in sources or not elements(region) & set(product(*sources[peer]))
    for rank, planned in enumerate(world):
        for each in (planned.sends, planned.receives):
            assert [message.peer for message in each] == sorted(message.peer for message in each)
        assert all(elements(region) <= set(product(*sources[rank])) for region in planned.copies)


def check_exactly_once(woven: Woven, world: list[RankPlan]) -> None:
    """What a replica group writes before its fan-out is its shard, once; every member its own stripe."""
    groups: dict[tuple[int, ...], Counter[Elements]] = {}
    for rank, planned in enumerate(world):
        counts = groups.setdefault(planned.fan_out.members if planned.fan_out else (rank,), Counter())
        for region in (*planned.copies, *(message.region for message in planned.receives)):
            counts.update(elements(region))
    destinations = sides(woven.dst, woven.shape)
    for members, counts in groups.items():
        wanted = set(product(*destinations[members[0]])) if members[0] in destinations else set()
        assert counts == Counter(wanted)


def check_fan_outs(woven: Woven, world: list[RankPlan]) -> None:
    destinations = sides(woven.dst, woven.shape)
    for rank, planned in enumerate(world):
        if planned.fan_out is None:
            continue
        members = planned.fan_out.members
        assert members[planned.fan_out.index] == rank
        assert all(destinations[member] == destinations[rank] for member in members)
        assert all(world[member].fan_out is not None for member in members)


CHECKS = [check_ownership, check_messages, check_exactly_once, check_fan_outs]
FSDP = (_StridedShard(0, split_factor=2), Shard(0))
UNEVEN = Woven((9, 2), Layout(Mesh((4, 2), tuple(range(8))), FSDP), Layout(Mesh((2, 2), (8, 3, 9, 1)), FSDP[::-1]))


@pytest.mark.law
@pytest.mark.requirement("RS-LAYOUT-10", "RS-LAYOUT-11", "RS-UPSTREAM-4")
@settings(max_examples=1_500, deadline=None, derandomize=True)
@given(wovens())
@example(UNEVEN)
def test_every_pair_of_layouts_obeys_the_laws(woven: Woven) -> None:
    world = woven.plans()
    assert len({planned.reason for planned in world}) == 1
    for check in CHECKS:
        check(woven, world)


@pytest.mark.requirement("RS-BATCH-4")
@settings(max_examples=200, deadline=None, derandomize=True)
@given(wovens(), st.sampled_from([1, 24, 10**9]))
def test_both_ends_cut_every_message_alike_and_no_round_has_too_many(woven: Woven, budget: int) -> None:
    world = woven.plans()
    bound = 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("restripe.planning.rounds"), "MAX_OPERATIONS", bound)
        schedule, *others = [rounds([planned], [1], budget) for planned in world]
    assert all(other == schedule for other in others)
    crossed: Counter[tuple[int, int, Elements]] = Counter()
    for step in schedule:
        sent = [(rank, *message[:2]) for rank, each in enumerate(world) for message in _of(step, each.sends)]
        received = [
            (peer, rank, region) for rank, each in enumerate(world) for peer, region, _ in _of(step, each.receives)
        ]
        assert sorted(sent) == sorted(received)
        operations = Counter(rank for rank, _, _ in sent) + Counter(peer for _, peer, _ in sent)
        assert max(operations.values(), default=0) <= bound
        crossed.update((rank, peer, element) for rank, peer, region in sent for element in elements(region))
    whole = [(rank, *message[:2]) for rank, each in enumerate(world) for message in each.sends]
    assert crossed == Counter((rank, peer, element) for rank, peer, region in whole for element in elements(region))


def _of(step: list[RoundPart], messages: tuple[Message, ...]) -> list[Message]:
    return [message for part in step for message in part.select(messages)]


@pytest.mark.requirement("RS-TRAFFIC-4")
@settings(max_examples=400, deadline=None, derandomize=True)
@given(wovens())
def test_what_geometry_stages_stays_within_the_bound(woven: Woven) -> None:
    for planned in woven.plans():
        for side, messages in ((planned.source, planned.sends), (planned.destination, planned.receives)):
            if side is not None:
                broken = [region for _, region, _ in messages if not contiguous(region, side)]
                assert sum(prod(lengths(region)) for region in broken) <= planned.staging


def contiguous(region: Region, shard: Region) -> bool:
    """Whether the region is adjacent in the row-major local tensor of the shard."""
    local = {at: n for n, at in enumerate(product(*positions(shard)))}
    places = sorted(local[at] for at in elements(region))
    return places[-1] - places[0] == len(places) - 1


def test_8192_runs_a_rank_are_one_message_a_pair() -> None:
    src = Layout(Mesh((4,), (0, 1, 2, 3)), (_StridedShard(0, split_factor=8192),))
    dst = Layout(Mesh((4,), (0, 1, 2, 3)), (Shard(0),))
    for rank in range(4):
        planned = plan(src, dst, (65536,), rank)
        assert planned.source is not None
        assert len(planned.source[0]) == 8192
        assert [message.peer for message in planned.sends] == [peer for peer in range(4) if peer != rank]
        assert all(lengths(message.region) == (4096,) for message in (*planned.sends, *planned.receives))


def test_fsdp_over_tensor_parallelism_is_striped_like_any_plain_layout() -> None:
    src = Layout(Mesh((2, 2), (0, 1, 2, 3)), FSDP)
    dst = Layout(Mesh((2, 2), (4, 5, 6, 7)), (Replicate(), Shard(0)))
    planned = plan(src, dst, (16, 6), 4)
    assert planned.reason is Reason.STRIPED
    assert [message[:2] for message in planned.receives] == [(0, (((0, 4),), ((0, 6),)))]
