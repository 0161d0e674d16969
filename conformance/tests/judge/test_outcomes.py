"""Verdicts on hand-made reports."""

from __future__ import annotations

import pytest

from reshard_conformance.case.files import Clear, Destroy
from reshard_conformance.judge.outcomes import Outcome, RankReport, judge_step
from reshard_conformance.judge.trace import Event


def test_a_call_while_a_group_is_collected_is_found() -> None:
    reports = [RankReport(rank, events=(Event("finalize", "0/0.0", 2, rank, 0),)) for rank in range(2)]
    assert judge_step(Destroy(0), reports).verdict == "pass"
    faults = judge_step(Destroy(0, clear=False), reports).faults
    assert faults == tuple(f"rank {rank}: finalize while a group was collected" for rank in range(2))


def test_the_first_error_is_the_first_fault() -> None:
    reports = [RankReport(0, error="Late: b", failed_at=2.0), RankReport(1, error="Early: a", failed_at=1.0)]
    assert judge_step(Clear(), reports).faults == ("rank 1: raised Early: a", "rank 0: raised Late: b")


def test_an_outcome_has_one_of_four_verdicts() -> None:
    with pytest.raises(ValueError, match="not 'maybe'"):
        Outcome("maybe")
