"""Targets 4 and 6 hold up to their bounds, and no further."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from plan_bench.targets import balance_verdicts, planning_verdicts
from restripe.analysis.mapping import Move
from restripe.analysis.simulation import simulate
from restripe.analysis.spelling import layout
from restripe.bench.planning import PlanningTimes


def measured(ranks: int, plan_ms: float = 1.0, lookup_us: float = 10.0, messages: int = 1) -> PlanningTimes:
    return PlanningTimes(ranks, {"move": plan_ms}, {"move": messages}, {"refit": lookup_us})


def texts(worlds: Sequence[PlanningTimes], quadratic_ms: float) -> list[str]:
    return [verdict.text for verdict in planning_verdicts(worlds, {2048: {"move": quadratic_ms}})]


@pytest.mark.parametrize(("quadratic_ms", "word"), [(200, "holds"), (199, "FAILS")])
def test_times_faster(quadratic_ms: float, word: str) -> None:
    (text, *_) = texts([measured(8), measured(2048)], quadratic_ms)
    assert text == (
        f"target 4 at least 200: move, 2,048 ranks: {quadratic_ms} times faster than the quadratic planner {word}"
    )


@pytest.mark.parametrize(("large", "word"), [(1.5, "holds"), (1.6, "FAILS")])
def test_no_dearer_in_a_larger_world(large: float, word: str) -> None:
    lines = texts([measured(2048), measured(16384, plan_ms=large)], 1000)
    assert f"target 4 no dearer: move, a plan at 16,384 ranks takes {large:.2f} times that at 2,048 {word}" in lines


def test_a_rank_with_more_messages_may_take_longer() -> None:
    lines = texts([measured(2048), measured(16384, plan_ms=8, messages=8)], 1000)
    assert not any("no dearer" in line for line in lines)


@pytest.mark.parametrize(("large", "word"), [(15, "holds"), (16, "FAILS")])
def test_look_ups_cost_the_same(large: float, word: str) -> None:
    (line,) = texts([measured(8), measured(16384, lookup_us=large)], 1000)
    assert line == f"target 4 the same: a look-up by refit takes 10 us at 8 ranks, {large} us at 16,384 {word}"


@pytest.mark.parametrize(("size", "holds"), [(8, True), (9, False)])
def test_balance(size: int, holds: bool) -> None:
    move = Move("tensor", "", (size,), torch.int8, layout("1:R"), layout("8:S(0)", first=1))
    sender, receiver = balance_verdicts("mapping", simulate([move])["all"])
    assert sender.holds
    assert receiver.holds is holds
    assert receiver.text.startswith("target 6 at most 1.1: mapping, busiest receiver 1.")
