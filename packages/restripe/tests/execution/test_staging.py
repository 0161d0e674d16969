"""What a call allocates: never a tensor of the global size, and of staging no more than its budget at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import pytest
import torch

from reshard_conformance.memory import Meter
from restripe import Item, Resharder
from restripe.execution.lowering import Shard
from restripe.execution.memory import geometry
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
    """Bytes of the messages of this rank that lie broken in its own tensors, and its shard where that is rebuilt."""
    mine = plan(move.src.layout, move.dst.layout, move.shape, group.rank)
    found = 0
    if src is not None and mine.source is not None:
        found += broken(Shard(0, geometry(src), mine.source), mine.sends)
    if dst is not None and mine.destination is not None:
        rebuilt = mine.fan_out is not None and not dst.is_contiguous()
        memory = geometry(torch.empty(dst.shape, dtype=dst.dtype)) if rebuilt else geometry(dst)
        found += broken(Shard(1, memory, mine.destination), mine.receives) + rebuilt * dst.nbytes
    return found


def broken(shard: Shard, messages: Sequence[Message]) -> int:
    """Bytes of the messages that are not contiguous in the shard."""
    regions = [message.region for message in messages]
    return sum(prod(lengths(region)) * shard.geometry.itemsize for region in regions if shard.span(region) is None)


@pytest.mark.requirement("RS-TRAFFIC-3")
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("source", [contiguous, permuted])
@pytest.mark.parametrize("destination", [contiguous, permuted])
def test_no_more_than_what_is_broken_is_staged(worlds: Worlds, move: Move, source: Maker, destination: Maker) -> None:
    move = replace(move, source=source, destination=destination)

    def body(group: Group) -> tuple[int, int]:
        src, dst = move.hand(group.rank)
        with Meter() as meter:
            move.call(group, src, dst)
        move.judge(group.rank, src, dst)
        return meter.peak, staged(move, group, src, dst)

    for peak, bound in worlds(4).run(body):
        assert peak <= bound + SMALL


def peak(move: Move, group: Group, tensors: int, budget: int) -> int:
    """The peak of a refit of so many tensors that are all moved alike."""
    names = [f"w{number}" for number in range(tensors)]
    items = [Item(name, move.shape, move.dtype, move.src.layout, move.dst.layout) for name in names]
    refit = Resharder(group, staging_bytes=budget).prepare(items)
    held = {name: move.hand(group.rank) for name in names}
    with Meter() as meter:
        refit.run({name: pair[0] for name, pair in held.items()}, {name: pair[1] for name, pair in held.items()})
    for pair in held.values():
        move.judge(group.rank, *pair)
    return int(meter.peak)


@pytest.mark.requirement("RS-TRAFFIC-4", "RS-BATCH-4")
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("budget", [1024, 4096])
@pytest.mark.parametrize("tensors", [1, 3])
def test_what_layouts_make_broken_is_staged_within_the_budget(
    worlds: Worlds, move: Move, budget: int, tensors: int
) -> None:
    assert max(worlds(4).run(lambda group: peak(move, group, tensors, budget))) <= budget + SMALL


@pytest.mark.requirement("RS-TRAFFIC-3", "RS-TRAFFIC-4")
def test_a_shard_that_is_rebuilt_is_given_back_after_its_last_round(worlds: Worlds) -> None:
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
        wanted = move.src.shard(move.whole, group.rank)
        assert wanted is not None
        src.copy_(wanted)
        with Meter() as meter:
            move.call(group, src, dst)
        move.judge(group.rank, src, dst)
        return int(meter.peak)

    shard = 32 * 128 * 4
    assert max(worlds(2).run(body)) <= 2 * shard + 2 * SMALL
