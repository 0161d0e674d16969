"""Traffic from the plans of all ranks; plans that do not fit together are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard

from restripe.analysis.coverage import join_touching
from restripe.analysis.traffic import (
    PlanFaultError,
    busiest_peers,
    checked_traffic,
    fan_out_groups,
    is_contiguous,
    loads,
    numel,
    plan_all_ranks,
    rename_ranks,
)
from restripe.layout.chunked import Intervals, Region
from restripe.layout.mesh import Layout, Mesh
from restripe.planning.plan import RankPlan

from ..helpers.drawings import Drawn, drawings

World = dict[int, RankPlan]


def mesh_from(first_rank: int, *sizes: int) -> Mesh:
    count = int(torch.Size(sizes).numel())
    return Mesh(sizes, tuple(range(first_rank, first_rank + count)))


def striped() -> World:
    """Four rows of two columns, in halves on ranks 0 and 1, to two replicas on ranks 2 and 3."""
    return plan_all_ranks(Layout(mesh_from(0, 2), (Shard(0),)), Layout(mesh_from(2, 2), (Replicate(),)), (4, 2))


@settings(max_examples=500, deadline=None, derandomize=True)
@given(drawings())
def test_plans_fit_together_and_every_destination_element_comes_once(drawn: Drawn) -> None:
    src, dst = drawn.layouts()
    world = plan_all_ranks(src, dst, drawn.shape, drawn.rotation)
    measured = checked_traffic(world)
    brought = sum(numel(message.region) for plan in world.values() for message in plan.receives)
    copied = sum(numel(region) for plan in world.values() for region in plan.copies)
    lacked = sum(size for lacking in measured.lacking.values() for size in lacking.values())
    assert sum(measured.sent.values()) == brought
    assert measured.needed == brought + copied + lacked


def test_a_stripe_for_each_replica() -> None:
    measured = checked_traffic(striped())
    assert measured.sent == {(0, 2): 4, (1, 3): 4}
    assert measured.copied == {}
    assert measured.lacking == {(2, 3): {2: 4, 3: 4}}
    assert measured.needed == 16


def test_columns_are_packed_and_what_stays_is_copied() -> None:
    measured = checked_traffic(
        plan_all_ranks(Layout(mesh_from(0, 2), (Shard(0),)), Layout(mesh_from(0, 2), (Shard(1),)), (4, 2))
    )
    assert measured.sent == {(0, 1): 2, (1, 0): 2}
    assert measured.copied == {0: 4, 1: 4}


def lose_receive(world: World) -> None:
    world[2] = replace(world[2], receives=())


def double_send(world: World) -> None:
    world[0] = replace(world[0], sends=world[0].sends * 2)


def send_foreign_region(world: World) -> None:
    foreign = (((2, 4), (4, 6)), ((0, 2),))
    world[0] = replace(world[0], sends=(world[0].sends[0]._replace(region=foreign),))
    world[2] = replace(world[2], receives=(world[2].receives[0]._replace(region=foreign),))


def send_half(world: World) -> None:
    half = (((0, 1),), ((0, 2),))
    world[0] = replace(world[0], sends=(world[0].sends[0]._replace(region=half),))
    world[2] = replace(world[2], receives=(world[2].receives[0]._replace(region=half),))


def drop_fan_out(world: World) -> None:
    world[3] = replace(world[3], fan_out=None)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lose_receive, "rank 0 sends .* to rank 2, which expects None from it"),
        (double_send, "rank 0 has two messages for rank 2: expected one"),
        (send_foreign_region, "rank 0 gives .* but owns"),
        (send_half, r"ranks \(2, 3\) write \(\(1, 2\), \(0, 2\)\) of their shard .* 0 times: expected once"),
        (drop_fan_out, r"ranks \(2, 3\) complete one shard together, but some of them know of another one"),
    ],
)
def test_plans_that_do_not_fit_are_refused(harm: Callable[[World], None], message: str) -> None:
    world = striped()
    harm(world)
    with pytest.raises(PlanFaultError, match=message):
        checked_traffic(world)


def intervals(positions: set[int]) -> Intervals:
    return join_touching(tuple((position, position + 1) for position in positions))


@st.composite
def pieces(draw: st.DrawFn) -> tuple[Region, Region]:
    """Draw a piece of a shard, and the shard, of some intervals in each dim."""
    shard, piece = [], []
    for _ in range(draw(st.integers(1, 3))):
        positions = draw(st.sets(st.integers(0, 5), min_size=1))
        kept = draw(st.sampled_from([positions, {position for position in positions if draw(st.booleans())}]))
        shard.append(intervals(positions))
        piece.append(intervals(kept or positions))
    return tuple(piece), tuple(shard)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(pieces())
def test_contiguous_is_what_a_row_major_shard_says(drawn: tuple[Region, Region]) -> None:
    piece, shard = drawn
    held = [torch.tensor([position for lo, hi in spans for position in range(lo, hi)]) for spans in shard]
    whole = torch.arange(numel(shard)).reshape([len(positions) for positions in held])
    for dim, intervals in enumerate(piece):
        inside = torch.tensor([any(lo <= position < hi for lo, hi in intervals) for position in held[dim].tolist()])
        whole = whole.index_select(dim, inside.nonzero().flatten())
    flat = whole.flatten()
    assert is_contiguous(piece, shard) == (int(flat[-1] - flat[0]) == len(flat) - 1)


def test_peers_loads_and_names() -> None:
    world = striped()
    assert busiest_peers(world) == 1
    assert fan_out_groups(world) == [(2, 3)]
    out, into = loads({(0, 2): 4, (0, 3): 1, (1, 3): 4})
    assert (out, into) == ({0: 5, 1: 4}, {2: 4, 3: 5})
    named = rename_ranks(checked_traffic(world), {0: 10, 1: 11, 2: 20, 3: 30})
    assert named.sent == {(10, 20): 4, (11, 30): 4}
    assert named.lacking == {(20, 30): {20: 4, 30: 4}}
