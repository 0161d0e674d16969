"""The cost model: sums and maxima done by hand, and the measured rows that its rates were fitted to."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from restripe.analysis.cost import Rates, predict_time
from restripe.analysis.mapping import Move
from restripe.analysis.spelling import SpellingError, layout
from restripe.analysis.totals import Totals
from restripe.analysis.traffic import checked_traffic, plan_all_ranks

EASY = Rates(latency=1, message=1, link=1, network=0.5, memory=1, host=2)  # 1 GB/s is 1000 bytes a microsecond


def test_the_slowest_direction_of_the_slowest_rank_counts() -> None:
    sent = {(0, 1): 5_000, (1, 0): 7_000}  # both directions at once
    assert predict_time(EASY, sent, dict.fromkeys(sent, 1), 0, {}).messages == pytest.approx(0.008)
    sent = {(0, 1): 5_000, (0, 2): 3_000}  # links of a host beside the network, at half the rate
    assert predict_time(EASY, sent, dict.fromkeys(sent, 1), 0, {}).messages == pytest.approx(0.007)
    sent = {(0, 2): 5_000, (1, 2): 3_000}  # one receiver
    assert predict_time(EASY, sent, dict.fromkeys(sent, 1), 0, {}).messages == pytest.approx(0.017)


def test_many_small_messages_cost_their_number() -> None:
    assert predict_time(EASY, {(0, 1): 1_000}, {(0, 1): 40}, 0, {}).messages == pytest.approx(0.041)


def test_copies_and_fan_outs() -> None:
    prediction = predict_time(EASY, {}, {}, 3_000, {(0, 1): 2_000, (1, 2): 4_000})
    assert (prediction.messages, prediction.copies, prediction.fan_outs) == pytest.approx(
        (0.0, 0.003, 0.001 + 0.002 + 0.008)
    )
    assert prediction.total == pytest.approx(0.014)


@pytest.mark.parametrize("name", [rate.name for rate in fields(Rates)])
def test_rates_are_above_0(name: str) -> None:
    with pytest.raises(SpellingError, match=f"expected a {name} above 0, got -1"):
        replace(Rates(), **{name: -1})


@pytest.mark.parametrize(
    ("shape", "src", "dst", "ranks", "measured"),
    [
        ((4096, 4096), "1:R", "1:R", "1", 0.1029),
        ((25600, 5120), "1:R", "1:R", "1", 0.7308),
        ((32768, 16384), "1:R", "1:R", "1", 2.912),
        ((25600, 5120), "2:S(0)", "2:S(1)", "0-1", 0.3943),
        ((25600, 5120), "2:S(0)", "2:R", "0-1", 0.5766),
    ],
)
def test_the_defaults_predict_what_was_measured(
    shape: tuple[int, ...], src: str, dst: str, ranks: str, measured: float
) -> None:
    """GPU milliseconds of docs/performance.md: restripe's on two GPUs of one host."""
    move = Move("tensor", "", shape, torch.bfloat16, layout(src), layout(dst, None, ranks))
    totals = Totals()
    totals.add(move, checked_traffic(plan_all_ranks(move.src, move.dst, shape)))
    assert totals.predicted_time(Rates()).total == pytest.approx(measured, rel=0.05)
