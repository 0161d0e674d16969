"""The meter of allocated bytes."""

from __future__ import annotations

import torch

from reshard_conformance.judge.memory import AllocationMeter


def test_the_peak_counts_tensors_that_live_at_once() -> None:
    source = torch.zeros(100, dtype=torch.uint8)
    with AllocationMeter() as meter:
        small = torch.empty(10, dtype=torch.uint8)
        copied = source.clone()
        del small, copied
        large = torch.empty(30, dtype=torch.int32)
        del large
    assert meter.peak == 120


def test_tensors_that_are_kept_add_up() -> None:
    with AllocationMeter() as meter:
        kept = [torch.empty(10, dtype=torch.uint8) for _ in range(5)]
    assert (meter.peak, len(kept)) == (50, 5)


def test_views_and_writes_take_no_memory() -> None:
    source = torch.zeros(4, 6)
    with AllocationMeter() as meter:
        source[2:].copy_(source[:2])
        source.view(torch.uint8).zero_()
        source.t().detach().narrow(0, 1, 2).expand(2, 4)
    assert meter.peak == 0


def test_nothing_is_counted_outside_the_meter() -> None:
    with AllocationMeter() as meter:
        pass
    torch.empty(10)
    assert meter.peak == 0
