"""What planning one rank costs in large worlds: bytecodes run, counted, never timed."""

import sys
from collections.abc import Callable
from math import prod
from types import FrameType
from typing import Any

import pytest
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from restripe.layout.mesh import Layout, Mesh
from restripe.planning.plan import RankPlan, Reason
from restripe.planning.planner import plan

WORLDS = [64, 1024, 4096, 16384]
Layouts = tuple[Layout, Layout]


def counted(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> tuple[int, RankPlan]:
    """Plan one rank and count every bytecode on the way."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        planned = plan(src, dst, shape, rank)
    finally:
        sys.settrace(outer)
    return count, planned


def layout(first: int, mesh: tuple[int, ...], *placements: Placement) -> Layout:
    """A layout on the ranks from `first` on. Its mesh has been asked for a rank: that it then indexes all is its making."""
    made = Mesh(mesh, tuple(range(first, first + prod(mesh))))
    assert first in made
    return Layout(made, placements)


def rows_to_rows(half: int) -> Layouts:
    return layout(0, (half,), Shard(0)), layout(half, (half,), Shard(0))


def rows_to_nested_rows(half: int) -> Layouts:
    return layout(0, (half,), Shard(0)), layout(half, (half // 4, 3), Shard(0), Shard(0))


def replicas_to_rows(half: int) -> Layouts:
    return layout(0, (half // 2, 2), Shard(0), Replicate()), layout(half, (half,), Shard(0))


def rows_to_replicas(half: int) -> Layouts:
    return layout(0, (half,), Shard(0)), layout(half, (2, half // 2), Replicate(), Shard(0))


@pytest.mark.parametrize("layouts", [rows_to_rows, rows_to_nested_rows, replicas_to_rows, rows_to_replicas])
@pytest.mark.parametrize("left_out", [0, 7])
def test_a_rank_with_few_overlaps_costs_the_same_in_every_world(
    layouts: Callable[[int], Layouts], left_out: int
) -> None:
    costs = []
    for half in (world // 2 for world in WORLDS):
        shape = (12 * half - left_out, 5)
        for rank in (3, half + 3):
            bytecodes, planned = counted(*layouts(half), shape, rank)
            assert planned.sends or planned.receives
            costs.append(bytecodes)
    assert max(costs[2:]) <= 1.1 * max(costs[:2])


def test_a_receiver_looks_at_the_holder_that_serves_it_only() -> None:
    costs = []
    for half in (world // 2 for world in WORLDS):
        src, dst = layout(0, (half,), Replicate()), layout(half, (half,), Shard(0))
        bytecodes, planned = counted(src, dst, (12 * half, 5), half + 3)
        assert len(planned.receives) == 1
        costs.append(bytecodes)
    assert max(costs[2:]) <= 1.1 * max(costs[:2])


@pytest.mark.parametrize("receives", [False, True])
def test_a_rank_that_exchanges_with_all_pays_for_its_own_messages_only(receives: bool) -> None:
    """Rows to columns: every source meets every destination, once."""
    costs = []
    for half in (world // 2 for world in WORLDS):
        src, dst = layout(0, (half,), Shard(0)), layout(half, (half,), Shard(1))
        bytecodes, planned = counted(src, dst, (2 * half, 3 * half), half + 3 if receives else 3)
        assert len(planned.sends) + len(planned.receives) == half
        costs.append(bytecodes / half)
    assert max(costs[1:]) <= costs[0]


def test_a_striped_rank_of_a_large_world_receives_its_stripe_only() -> None:
    _, planned = counted(*rows_to_replicas(8192), (12 * 8192, 5), 8192 + 3)
    assert planned.reason is Reason.STRIPED
    assert [message.peer for message in planned.receives] == [6]
    assert planned.fan_out is not None
    assert planned.fan_out.members == (8192 + 3, 8192 + 4096 + 3)
