"""What crosses, read off the plans of all ranks; plans that do not fit together are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard

from restripe.analysis.coverage import merged
from restripe.analysis.traffic import (
    PlanFaultError,
    busiest_peers,
    contiguous,
    loads,
    numel,
    plans,
    rebuilding,
    relabelled,
    traffic,
)
from restripe.layout.chunked import Intervals, Region
from restripe.layout.mesh import Layout, Mesh
from restripe.planning.plan import RankPlan

from ..helpers.drawings import Drawn, drawings

World = dict[int, RankPlan]


def rows(first: int, *sizes: int) -> Mesh:
    count = int(torch.Size(sizes).numel())
    return Mesh(sizes, tuple(range(first, first + count)))


def striped() -> World:
    """Four rows of two columns, in halves on ranks 0 and 1, to two replicas on ranks 2 and 3."""
    return plans(Layout(rows(0, 2), (Shard(0),)), Layout(rows(2, 2), (Replicate(),)), (4, 2))


@settings(max_examples=500, deadline=None, derandomize=True)
@given(drawings())
def test_plans_fit_together_and_every_destination_element_comes_once(drawn: Drawn) -> None:
    src, dst = drawn.layouts()
    world = plans(src, dst, drawn.shape, drawn.turn)
    found = traffic(world)
    brought = sum(numel(one.region) for each in world.values() for one in each.receives)
    copied = sum(numel(region) for each in world.values() for region in each.copies)
    lacked = sum(size for lacking in found.rebuilt.values() for size in lacking.values())
    assert sum(found.sent.values()) == brought
    assert found.needed == brought + copied + lacked


def test_a_stripe_for_each_replica() -> None:
    found = traffic(striped())
    assert found.sent == {(0, 2): 4, (1, 3): 4}
    assert found.copied == {}
    assert found.rebuilt == {(2, 3): {2: 4, 3: 4}}
    assert found.needed == 16


def test_columns_are_packed_and_what_stays_is_copied() -> None:
    found = traffic(plans(Layout(rows(0, 2), (Shard(0),)), Layout(rows(0, 2), (Shard(1),)), (4, 2)))
    assert found.sent == {(0, 1): 2, (1, 0): 2}
    assert found.copied == {0: 4, 1: 4}


def lost(world: World) -> None:
    world[2] = replace(world[2], receives=())


def doubled(world: World) -> None:
    world[0] = replace(world[0], sends=world[0].sends * 2)


def strange(world: World) -> None:
    foreign = (((2, 4), (4, 6)), ((0, 2),))
    world[0] = replace(world[0], sends=(world[0].sends[0]._replace(region=foreign),))
    world[2] = replace(world[2], receives=(world[2].receives[0]._replace(region=foreign),))


def short(world: World) -> None:
    half = (((0, 1),), ((0, 2),))
    world[0] = replace(world[0], sends=(world[0].sends[0]._replace(region=half),))
    world[2] = replace(world[2], receives=(world[2].receives[0]._replace(region=half),))


def alone(world: World) -> None:
    world[3] = replace(world[3], fan_out=None)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lost, "rank 0 sends .* to rank 2, which expects None from it"),
        (doubled, "rank 0 has two messages for rank 2: expected one"),
        (strange, "rank 0 gives .* but owns"),
        (short, r"ranks \(2, 3\) write \(\(1, 2\), \(0, 2\)\) of their shard .* 0 times: expected once"),
        (alone, r"ranks \(2, 3\) complete one shard together, but some of them know of another one"),
    ],
)
def test_plans_that_do_not_fit_are_refused(harm: Callable[[World], None], message: str) -> None:
    world = striped()
    harm(world)
    with pytest.raises(PlanFaultError, match=message):
        traffic(world)


def intervals(places: set[int]) -> Intervals:
    return merged(tuple((place, place + 1) for place in places))


@st.composite
def pieces(draw: st.DrawFn) -> tuple[Region, Region]:
    """Some places of a shard that has some intervals a dim."""
    shard, piece = [], []
    for _ in range(draw(st.integers(1, 3))):
        places = draw(st.sets(st.integers(0, 5), min_size=1))
        kept = draw(st.sampled_from([places, {place for place in places if draw(st.booleans())}]))
        shard.append(intervals(places))
        piece.append(intervals(kept or places))
    return tuple(piece), tuple(shard)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(pieces())
def test_contiguous_is_what_a_row_major_shard_says(drawn: tuple[Region, Region]) -> None:
    piece, shard = drawn
    at = [torch.tensor([place for lo, hi in spans for place in range(lo, hi)]) for spans in shard]
    whole = torch.arange(numel(shard)).reshape([len(each) for each in at])
    for dim, spans in enumerate(piece):
        inside = torch.tensor([any(lo <= place < hi for lo, hi in spans) for place in at[dim].tolist()])
        whole = whole.index_select(dim, inside.nonzero().flatten())
    flat = whole.flatten()
    assert contiguous(piece, shard) == (int(flat[-1] - flat[0]) == len(flat) - 1)


def test_peers_loads_and_names() -> None:
    world = striped()
    assert busiest_peers(world) == 1
    assert rebuilding(world) == [(2, 3)]
    out, into = loads({(0, 2): 4, (0, 3): 1, (1, 3): 4})
    assert (out, into) == ({0: 5, 1: 4}, {2: 4, 3: 5})
    named = relabelled(traffic(world), {0: 10, 1: 11, 2: 20, 3: 30})
    assert named.sent == {(10, 20): 4, (11, 30): 4}
    assert named.rebuilt == {(20, 30): {20: 4, 30: 4}}
