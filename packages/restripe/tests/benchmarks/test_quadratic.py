"""The quadratic planner that planning is timed against is the tests' own, and plans the same moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from plan_bench.quadratic import load, world_plan
from restripe.bench.planning import moves
from restripe.planning.planner import plan

SHAPE = (64, 32)


@pytest.mark.parametrize("move", moves(8))
def test_it_plans_what_restripe_plans(move: str) -> None:
    src, dst = moves(8)[move]
    world = world_plan(load(), src, dst, SHAPE)
    plans = [plan(src, dst, SHAPE, rank) for rank in range(8)]
    assert {(transfer.sender, transfer.receiver) for transfer in world.transfers} == {
        (rank, message.peer) for rank, own in enumerate(plans) for message in own.sends
    }


def test_without_a_checkout_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "judge.py")
