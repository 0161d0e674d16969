"""Each target of the design is held against the times that it speaks of, and says so when it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_bench.targets import (
    AHEAD,
    ALLOCATOR_BYTES,
    BOUNDS,
    MANY,
    Bound,
    Verdict,
    judge,
    memory,
    shown,
    tally,
    verdicts,
)
from restripe.bench.rows import between, rows

from ..helpers.samples import result, timing

BOUND = Bound(1, "row", "reshard", "raw", "host_us", 1.3)


def test_a_verdict_reads_as_one_line() -> None:
    verdict = judge(BOUND, result("row", raw=100, reshard=121))
    assert verdict.text == "target 1 host 1.3x raw, row, reshard: 1.21 (1.21-1.21) holds"
    assert verdict.holds is True


@pytest.mark.parametrize(("times", "holds"), [(130, True), (131, False)])
def test_a_bound_holds_up_to_its_ratio(times: float, *, holds: bool) -> None:
    verdict = judge(BOUND, result("row", raw=100, reshard=times))
    assert verdict.holds is holds
    assert verdict.text.endswith("holds" if holds else "FAILS")


def test_it_is_the_named_time_that_counts() -> None:
    slow = replace(timing(100), host_us=(200.0,) * 3)
    found = result("row", raw=100)
    found.timings["reshard"] = slow
    assert judge(BOUND, found).holds is False
    assert judge(replace(BOUND, time="gpu_us"), found).holds is True


@pytest.mark.parametrize("missing", ["raw", "reshard"])
def test_what_was_not_timed_is_neither_held_nor_failed(missing: str) -> None:
    found = result("row", raw=100, reshard=100)
    del found.timings[missing]
    found.unfit[missing] = "not here"
    verdict = judge(BOUND, found)
    assert verdict.holds is None
    assert verdict.text.endswith(f"not measured ({missing}: not here)")


def test_memory_may_reach_the_bound_and_the_allocator_s_rounding() -> None:
    for extra, holds in ((1000 + ALLOCATOR_BYTES, True), (1001 + ALLOCATOR_BYTES, False)):
        found = result("row", staging=1000)
        found.timings["refit"] = timing(1, extra=extra)
        assert memory("refit", found).holds is holds


def test_where_nothing_may_be_staged_not_a_byte_is_allowed() -> None:
    found = result("row")
    found.timings["refit"] = timing(1, extra=1)
    verdict = memory("refit", found)
    assert verdict.holds is False
    assert verdict.text == "target 5 memory 0 bytes, row, refit: 1 bytes FAILS"


def test_only_rows_that_were_played_are_judged() -> None:
    texts = [verdict.text for verdict in verdicts([result("point 34 MB", raw=1, reshard=1, refit=1)])]
    assert len(texts) == 11  # three times of three calls, of which one did not run, and the memory of two
    assert all("point 34 MB" in text for text in texts)


def test_targets_have_bounds_on_rows_that_there_are() -> None:
    assert {bound.target for bound in BOUNDS} == {1, 2, 3, 7}
    assert {bound.target for bound in BOUNDS if bound.row in {row.name for row in rows(2)}} == {1, 2, 3}
    assert {bound.row for bound in BOUNDS} <= {row.name for ranks in (4, 8) for row in rows(ranks)}


def test_every_row_between_meshes_has_bounds_to_raw_and_to_the_libraries() -> None:
    for row in (*between(4), *between(8)):
        bounds = [bound for bound in BOUNDS if bound.row == row.name]
        turned = "S(1)" in row.name
        most = {bound.base: bound.most for bound in bounds}
        assert {bound.time for bound in bounds} == {"gpu_us"}
        assert most["raw"] == most["raw graph"] == (1.1 if turned else 1.05)
        assert most["nccl.m2n"] == most["upstream"] == AHEAD < 1
        assert {bound.contender for bound in bounds} >= {"refit", "refit graph"}


def test_a_library_that_took_no_part_sets_no_bound() -> None:
    found = result("2 to 2, S(0) to R, 34 MB", raw=100, reshard=100, upstream=100)
    judged = [verdict for verdict in verdicts([found]) if "reshard" in verdict.text]
    assert [verdict.holds for verdict in judged] == [True, False, True]  # raw, upstream (not ahead), memory
    assert "target 7 GPU 1x upstream" in judged[1].text


def test_of_many_verdicts_those_that_hold_are_not_shown() -> None:
    held, failed, open_ = Verdict("a", True), Verdict("b", False), Verdict("c", None)
    assert shown([held, failed, open_]) == [held, failed, open_]
    assert shown([held, failed, open_] * MANY) == [failed, open_] * MANY


def test_the_tally_counts_each_kind() -> None:
    judged = [judge(BOUND, result("row", raw=100, reshard=times)) for times in (100, 100, 200)]
    assert tally([*judged, judge(BOUND, result("row"))]) == "targets: 2 hold, 1 fail, 1 not measured"


def test_json_has_the_spread_by_name() -> None:
    told = judge(BOUND, result("row", raw=100, reshard=121)).told()
    assert told["spread"] == pytest.approx({"median": 1.21, "p10": 1.21, "p90": 1.21})
    assert (told["holds"], told["text"][:8]) == (True, "target 1")
