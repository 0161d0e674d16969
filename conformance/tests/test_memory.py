"""The meter of allocations."""

from __future__ import annotations

import torch

from reshard_conformance.memory import Meter


def test_the_peak_is_what_lives_at_once() -> None:
    source = torch.zeros(100, dtype=torch.uint8)
    with Meter() as meter:
        one = torch.empty(10, dtype=torch.uint8)
        two = source.clone()
        del one, two
        three = torch.empty(30, dtype=torch.int32)
        del three
    assert meter.peak == 120


def test_what_lives_on_adds_up() -> None:
    with Meter() as meter:
        kept = [torch.empty(10, dtype=torch.uint8) for _ in range(5)]
    assert (meter.peak, len(kept)) == (50, 5)


def test_views_and_writes_take_no_memory() -> None:
    source = torch.zeros(4, 6)
    with Meter() as meter:
        source[2:].copy_(source[:2])
        source.view(torch.uint8).zero_()
        source.t().detach().narrow(0, 1, 2).expand(2, 4)
    assert meter.peak == 0


def test_nothing_outside_is_counted() -> None:
    with Meter() as meter:
        pass
    torch.empty(10)
    assert meter.peak == 0
