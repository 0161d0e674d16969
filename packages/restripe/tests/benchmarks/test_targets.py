"""Each target of the design is held against the times that it speaks of, and says so when it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpu_bench.results import Result, Timing
from gpu_bench.rows import between_meshes, consumer_rows, rows
from gpu_bench.targets import (
    AHEAD,
    ALLOCATOR_BYTES,
    BOUNDS,
    MANY_VERDICTS,
    Bound,
    Verdict,
    all_verdicts,
    check_bound,
    check_memory,
    tally,
    terminal_verdicts,
)

from ..helpers.samples import result, timing

BOUND = Bound(1, "row", "reshard", "raw", "host_us", 1.3)


def test_a_verdict_reads_as_one_line() -> None:
    verdict = check_bound(BOUND, result("row", raw=100, reshard=121))
    assert verdict.text == "target 1 host 1.3x raw, row, reshard: 1.21 (1.21-1.21) holds"
    assert verdict.holds is True


@pytest.mark.parametrize(("times", "holds"), [(130, True), (131, False)])
def test_a_bound_holds_up_to_its_ratio(times: float, *, holds: bool) -> None:
    verdict = check_bound(BOUND, result("row", raw=100, reshard=times))
    assert verdict.holds is holds
    assert verdict.text.endswith("holds" if holds else "FAILS")


def test_it_is_the_named_time_that_counts() -> None:
    slow = replace(timing(100), host_us=(200.0,) * 3)
    row_result = result("row", raw=100)
    row_result.timings["reshard"] = slow
    assert check_bound(BOUND, row_result).holds is False
    assert check_bound(replace(BOUND, time="gpu_us"), row_result).holds is True


@pytest.mark.parametrize("missing", ["raw", "reshard"])
def test_what_was_not_timed_is_neither_held_nor_failed(missing: str) -> None:
    row_result = result("row", raw=100, reshard=100)
    del row_result.timings[missing]
    row_result.not_run[missing] = "not here"
    verdict = check_bound(BOUND, row_result)
    assert verdict.holds is None
    assert verdict.text.endswith(f"not measured ({missing}: not here)")


def test_memory_may_reach_the_bound_and_the_allocator_s_rounding() -> None:
    for extra, holds in ((1000 + ALLOCATOR_BYTES, True), (1001 + ALLOCATOR_BYTES, False)):
        row_result = result("row", staging=1000)
        row_result.timings["refit"] = timing(1, extra=extra)
        assert check_memory("refit", row_result).holds is holds


def test_where_nothing_may_be_staged_not_a_byte_is_allowed() -> None:
    row_result = result("row")
    row_result.timings["refit"] = timing(1, extra=1)
    verdict = check_memory("refit", row_result)
    assert verdict.holds is False
    assert verdict.text == "target 5 memory 0 bytes, row, refit: 1 bytes FAILS"


def test_only_rows_that_were_played_are_judged() -> None:
    texts = [verdict.text for verdict in all_verdicts([result("point 34 MB", raw=1, reshard=1, refit=1)])]
    assert len(texts) == 11  # three times of three calls, of which one did not run, and the memory of two
    assert all("point 34 MB" in text for text in texts)


def test_targets_have_bounds_on_rows_that_there_are() -> None:
    assert {bound.target for bound in BOUNDS} == {1, 2, 3, 7, 8}
    assert {bound.target for bound in BOUNDS if bound.row in {row.name for row in rows(2)}} == {1, 2, 3}
    names = {row.name for ranks in (4, 8) for row in (*rows(ranks), *consumer_rows(ranks))}
    assert {bound.row for bound in BOUNDS} <= names


def test_every_row_between_meshes_has_bounds_to_raw_and_to_the_libraries() -> None:
    for row in (*between_meshes(4), *between_meshes(8)):
        bounds = [bound for bound in BOUNDS if bound.row == row.name]
        turned = "S(1)" in row.name
        most = {bound.base: bound.most for bound in bounds}
        assert {bound.time for bound in bounds} == {"gpu_us"}
        assert most["raw"] == most["raw graph"] == (1.1 if turned else 1.05)
        assert most["nccl.m2n"] == most["upstream"] == AHEAD < 1
        assert {bound.contender for bound in bounds} >= {"refit", "refit graph"}


def test_a_library_that_took_no_part_sets_no_bound() -> None:
    row_result = result("2 to 2, S(0) to R, 34 MB", raw=100, reshard=100, upstream=100)
    judged = [verdict for verdict in all_verdicts([row_result]) if "reshard" in verdict.text]
    assert [verdict.holds for verdict in judged] == [True, False, True]  # raw, upstream (not ahead), memory
    assert "target 7 GPU 1x upstream" in judged[1].text


FOREIGN, OWN = "drop-in, foreign mesh", "drop-in, restripe.Mesh"


def consumer_result(row: str = "consumer 396", tensors: int = 396, *, shared: bool = False, **times: float) -> Result:
    """Return times of single refits, the host's as long as the whole refit."""
    names = {"foreign": FOREIGN, "own": OWN, "raw": "raw each", "upstream": "upstream"}
    timings = {names[name]: Timing((us,) * 5, (), (us,) * 5, (), 0, 0) for name, us in times.items()}
    return Result(row, 1000, 0, timings, tensors=tensors, shared_gpu=shared)


def verdicts_of(*results: Result) -> dict[str, bool | None]:
    """Return the verdicts on times by their bound."""
    return {
        verdict.text.split(":")[0]: verdict.holds for verdict in all_verdicts(results) if "memory" not in verdict.text
    }


@pytest.mark.parametrize(
    ("foreign", "holds"),
    [
        (500, (True, True, True, True, True)),
        (600, (False, True, True, True, True)),
        (701, (False, False, False, False, False)),
    ],
)
def test_a_consumer_s_refit_is_held_against_upstream_raw_and_our_own_mesh(
    foreign: float, holds: Sequence[bool]
) -> None:
    judged = verdicts_of(consumer_result(foreign=foreign, own=500, raw=500, upstream=1000))
    assert judged == dict(
        zip(
            [
                f"target 8 host 0.5x upstream, consumer 396, {FOREIGN}",
                f"target 8 wall 0.7x upstream, consumer 396, {FOREIGN}",
                f"target 8 host 1.3x raw each, consumer 396, {FOREIGN}",
                f"target 8 wall 1.3x raw each, consumer 396, {FOREIGN}",
                f"target 8 host 1.3x {OWN}, consumer 396, {FOREIGN}",
            ],
            holds,
            strict=True,
        )
    )


def test_upstream_sets_bounds_where_it_is_given_alone() -> None:
    absent = consumer_result(foreign=1, own=1, raw=1)
    assert not any("upstream" in text for text in verdicts_of(absent))
    absent.not_run["upstream"] = "raises"
    assert [holds for text, holds in verdicts_of(absent).items() if "upstream" in text] == [None, None]
    assert not any("upstream" in verdict.text for verdict in all_verdicts([result("model 4B", raw=1, refit=1)]))


@pytest.mark.parametrize(("many", "holds"), [(18867 * 1.2, True), (18867 * 1.21, False)])
def test_a_tensor_costs_in_a_long_refit_what_it_costs_in_a_short_one(many: float, *, holds: bool) -> None:
    few = consumer_result(foreign=396, own=396, raw=1000)
    judged = verdicts_of(few, consumer_result("consumer 18867", 18867, foreign=many, own=18867, raw=50000))
    assert judged[f"target 8 host a tensor 1.2x consumer 396, consumer 18867, {FOREIGN}"] is holds
    assert judged[f"target 8 host a tensor 1.2x consumer 396, consumer 18867, {OWN}"] is True


def test_of_a_shared_gpu_the_host_s_times_of_consumer_rows_are_judged_alone() -> None:
    shared = consumer_result(foreign=1, own=1, raw=1, shared=True)
    point = result("point 34 MB", raw=1, reshard=9)
    judged = verdicts_of(shared, replace(point, shared_gpu=True))
    assert set(judged) == {
        f"target 8 host 1.3x {base}, consumer 396, {FOREIGN} (shared GPU)" for base in ("raw each", OWN)
    }


def test_of_many_verdicts_those_that_hold_are_not_shown() -> None:
    held, failed, open_ = Verdict("a", True), Verdict("b", False), Verdict("c", None)
    assert terminal_verdicts([held, failed, open_]) == [held, failed, open_]
    assert terminal_verdicts([held, failed, open_] * MANY_VERDICTS) == [failed, open_] * MANY_VERDICTS


def test_the_tally_counts_each_kind() -> None:
    judged = [check_bound(BOUND, result("row", raw=100, reshard=times)) for times in (100, 100, 200)]
    assert tally([*judged, check_bound(BOUND, result("row"))]) == "targets: 2 hold, 1 fail, 1 not measured"


def test_json_has_the_spread_by_name() -> None:
    verdict = check_bound(BOUND, result("row", raw=100, reshard=121)).to_json()
    assert verdict["spread"] == pytest.approx({"median": 1.21, "p10": 1.21, "p90": 1.21})
    assert (verdict["holds"], verdict["text"][:8]) == (True, "target 1")
