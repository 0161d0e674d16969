"""Allocations of a call: never a tensor of the global size, and of staging no more than its budget at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import pytest
import torch

from reshard_conformance.judge.memory import AllocationMeter
from restripe import Item, Resharder
from restripe.execution.lowering import RegionMemory
from restripe.execution.memory import geometry_of
from restripe.execution.program import Geometry, row_major
from restripe.layout.chunked import lengths
from restripe.planning.plan import Message
from restripe.planning.planner import plan

from ..conftest import Worlds
from ..helpers.moves import Maker, Move, Side, contiguous
from ..helpers.views import permuted
from ..helpers.world import Group

SMALL = 2048  # bytes of tensors that are no data: the ranks of meshes
SHAPE = (96, 64)
MOVES = [
    Move(SHAPE, Side([0, 1], (0,)), Side([2, 3], (1,))),
    Move(SHAPE, Side([0, 1], (1,)), Side([2, 3], (0,))),
    Move(SHAPE, Side([0, 1, 2, 3], (0,)), Side([[3, 2], [1, 0]], (1, 0))),
    Move(SHAPE, Side([0, 1], (0,)), Side([2, 3], (None,))),
    Move(SHAPE, Side([0, 1, 2], (1,)), Side([[0, 1], [2, 3]], (None, 1))),
    Move((97, 64), Side([0, 1, 2, 3], (1,)), Side([3, 0], (None,))),
    Move(SHAPE, Side([0, 1, 2, 3], (None,)), Side([[3, 0]], (0, 1))),
    Move((512, 12), Side([0], (None,)), Side([1, 2, 3], (1,))),
]


def staged(move: Move, group: Group, src: torch.Tensor | None, dst: torch.Tensor | None) -> int:
    """Return the bytes that a rank may stage: of its messages that are not adjacent in memory, and a shard to replicate."""
    rank_plan = plan(move.src.layout, move.dst.layout, move.shape, group.rank)
    length = 0
    if src is not None and rank_plan.source is not None:
        length += not_adjacent(RegionMemory(0, geometry_of(src), rank_plan.source), rank_plan.sends)
    if dst is not None and rank_plan.destination is not None:
        replicated = rank_plan.fan_out is not None and not dst.is_contiguous()
        geometry = geometry_of(dst)
        if replicated:
            geometry = Geometry(geometry.sizes, row_major(geometry.sizes), geometry.itemsize)
            length += dst.nbytes
        length += not_adjacent(RegionMemory(1, geometry, rank_plan.destination), rank_plan.receives)
    return length


def not_adjacent(memory: RegionMemory, messages: Sequence[Message]) -> int:
    """Return the bytes of the messages that are not adjacent in the memory."""
    regions = [message.region for message in messages if memory.span(message.region) is None]
    return sum(prod(lengths(region)) * memory.geometry.itemsize for region in regions)


@pytest.mark.requirement("RS-TRAFFIC-3")
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("source", [contiguous, permuted])
@pytest.mark.parametrize("destination", [contiguous, permuted])
def test_no_more_is_staged_than_is_not_adjacent_in_memory(
    worlds: Worlds, move: Move, source: Maker, destination: Maker
) -> None:
    move = replace(move, source=source, destination=destination)

    def body(group: Group) -> tuple[int, int]:
        src, dst = move.local_tensors(group.rank)
        with AllocationMeter() as meter:
            move.call_drop_in(group, src, dst)
        move.assert_moved(group.rank, src, dst)
        return meter.peak, staged(move, group, src, dst)

    for peak, bound in worlds(4).run(body):
        assert peak <= bound + SMALL


def peak(move: Move, group: Group, tensors: int, budget: int) -> int:
    """Return the peak of a refit of so many tensors that are all moved alike."""
    names = [f"w{number}" for number in range(tensors)]
    items = [Item(name, move.shape, move.dtype, move.src.layout, move.dst.layout) for name in names]
    refit = Resharder(group, staging_bytes=budget).prepare(items)
    tensors_of = {name: move.local_tensors(group.rank) for name in names}
    with AllocationMeter() as meter:
        refit.run(
            {name: pair[0] for name, pair in tensors_of.items()}, {name: pair[1] for name, pair in tensors_of.items()}
        )
    for pair in tensors_of.values():
        move.assert_moved(group.rank, *pair)
    return int(meter.peak)


@pytest.mark.requirement("RS-TRAFFIC-4", "RS-BATCH-4")
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("budget", [1024, 4096])
@pytest.mark.parametrize("tensors", [1, 3])
def test_messages_of_strided_shards_are_staged_within_the_budget(
    worlds: Worlds, move: Move, budget: int, tensors: int
) -> None:
    assert max(worlds(4).run(lambda group: peak(move, group, tensors, budget))) <= budget + SMALL


@pytest.mark.requirement("RS-TRAFFIC-3", "RS-TRAFFIC-4")
def test_the_buffer_of_a_replicated_shard_is_freed_after_its_last_round(worlds: Worlds) -> None:
    # Each tensor takes several rounds, and one round may end a tensor and begin the next: two shards at most.
    move = Move((97, 64), Side([0, 1, 2, 3], (1,)), Side([3, 0], (None,)), destination=permuted)
    shard = 97 * 64 * 4
    assert max(worlds(4).run(lambda group: peak(move, group, 5, 1024))) <= 2 * shard + 1024 + SMALL


@pytest.mark.requirement("RS-TRAFFIC-3", "RS-EXACT-11")
def test_looking_for_shared_elements_takes_no_table_of_elements(worlds: Worlds) -> None:
    move = Move((64, 128), Side([0, 1], (0,)), Side([1, 0], (0,)))

    def body(group: Group) -> int:
        memory = torch.zeros(32, 256, dtype=torch.int32)
        src, dst = memory[:, :128], memory[:, 128:]
        wanted = move.src.shard(move.global_tensor, group.rank)
        assert wanted is not None
        src.copy_(wanted)
        with AllocationMeter() as meter:
            move.call_drop_in(group, src, dst)
        move.assert_moved(group.rank, src, dst)
        return int(meter.peak)

    shard = 32 * 128 * 4
    assert max(worlds(2).run(body)) <= 2 * shard + 2 * SMALL
