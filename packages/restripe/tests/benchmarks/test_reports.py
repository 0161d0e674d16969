"""The page of a run has its provenance, and tables in the form of docs/performance.md; JSON has a unit in every key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import gpu_bench
from gpu_bench.reports import page, row_json, run_json, table
from gpu_bench.results import Result, Spread, Timing
from gpu_bench.routes import RankTraffic
from gpu_bench.targets import Verdict

from ..helpers.samples import result, timing

DOCS = Path(gpu_bench.__file__).parents[4] / "docs" / "performance.md"
ORIGIN: dict[str, Any] = {
    "gpus": ["H200"] * 8,
    "nccl": "2.30.7",
    "cuda": "13.0",
    "driver": ["580"],
    "python": "3.12.1",
    "packages": {"torch": "2.11.0", "nccl4py": "0.6.0", "nccl-extensions": None},
    "restripe": "0.1",
    "commit": "abc",
    "date_utc": "2026-01-01",
    "environment": {"NCCL_NVLS_ENABLE": "0"},
    "topology": ["GPU0 GPU1", "NV18"],
}
RAW = Timing((9.26, 9.26), (840.4, 840.4), (21_333.0, 21_333.0), (7.76, 7.76), 0, 0)
OURS = Timing((10.6, 13.0), (1680.8, 1680.8), (21_333.0, 21_333.0), (7.76, 7.76), 0, 0)


def test_a_table_reads_as_those_of_the_docs() -> None:
    row = result("row")
    row.timings.update({"raw": RAW, "refit": OURS})
    same, twice = "1.00 (1.00 to 1.00)", "2.00 (2.00 to 2.00)"
    heads = next(line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| contender"))
    assert list(table(row)) == [
        heads,
        "| " + " | ".join(["---"] * 9) + " |",
        f"| raw | 9.3 | {same} | 840 | {same} | 21.33 | {same} | 0.00776 | {same} |",
        f"| refit | 12 | 1.27 (1.14 to 1.40) | 1681 | {twice} | 21.33 | {same} | 0.00776 | {same} |",
    ]


def test_without_raw_there_are_no_ratios() -> None:
    assert list(table(result("row", refit=1000)))[2] == "| refit | 1000 |  | 1000 |  | 1 |  | 1 |  |"


def test_a_page_has_all_that_is_known_of_a_run() -> None:
    row = result("row", 1000, raw=1)
    row.not_run["nccl.m2n"] = "refuses"
    row.traffic["restripe"] = RankTraffic(500, 250)
    verdicts = [Verdict("first holds", True), Verdict("second FAILS", False)]
    lines = page(ORIGIN, [row], {"row": Spread(2000, 1, 2)}, verdicts, "").splitlines()
    for line in (
        "8 x H200, NCCL 2.30.7, nccl4py 0.6.0, torch 2.11.0, restripe 0.1 (abc), 2026-01-01.",
        "Versions: NCCL 2.30.7, CUDA 13.0, driver 580, Python 3.12.1, torch 2.11.0, nccl4py 0.6.0.",
        "Environment: NCCL_NVLS_ENABLE=0.",
        "NV18",
        "0 wrong bytes in all destinations of all contenders.",
        "## row",
        "1,000 bytes.",
        "A copy of what one GPU sends, without NCCL: 2 ms.",
        "- crosses before replicas share, restripe: 500 bytes, 250 at most into one rank",
        "- nccl.m2n did not run: refuses",
        "targets: 1 hold, 1 fail, 0 not measured.",
        "- second FAILS",
    ):
        assert line in lines
    assert "- first holds" not in lines


def test_wrong_bytes_and_a_note_stand_before_the_tables() -> None:
    row = result("row", raw=1)
    row.timings["wrong"] = timing(1, wrong=1234)
    lines = page(ORIGIN, [row], {}, [], "times say nothing").splitlines()
    assert lines[0] == "times say nothing."
    assert "1,234 wrong bytes in all destinations of all contenders." in lines[: lines.index("## row")]
    assert "## Targets" not in lines


def test_a_run_survives_json() -> None:
    row_result = result("row", 10**9, raw=1000, reshard=2000)
    row_result.timings["wrong"] = timing(1, wrong=3, extra=5)
    row_result.not_run["nccl.m2n"] = "refuses"
    row_result.traffic["restripe"] = RankTraffic(8, 4)
    report = run_json(ORIGIN, [row_result], {"row": Spread(9, 8, 10)}, [Verdict("target", True)])
    report = json.loads(json.dumps(report))
    assert (report["format"], report["provenance"]) == (1, ORIGIN)
    assert report["targets"] == [{"text": "target", "holds": True, "spread": None}]
    (row,) = report["rows"]
    assert (row["row"], row["size_bytes"], row["not_run"]) == ("row", 10**9, {"nccl.m2n": "refuses"})
    assert row["peer_copy_gpu_us"] == {"median": 9, "p10": 8, "p90": 10}
    assert row["crossing_bytes"] == {"restripe": {"total": 8, "busiest": 4}}
    reshard = row["contenders"]["reshard"]
    assert reshard["gpu_us"]["median"] == 2000
    assert reshard["gpu_times_raw"]["median"] == reshard["host_times_raw"]["median"] == 2
    assert reshard["rate_gb_per_s"] == pytest.approx(500)
    assert reshard["repeats"]["wall_us"] == [2000] * 3
    assert (row["contenders"]["wrong"]["wrong_bytes"], row["contenders"]["wrong"]["extra_bytes"]) == (3, 5)


def test_without_raw_or_a_peer_copy_the_keys_stay() -> None:
    row = row_json(result("row", reshard=1), None)
    assert row["peer_copy_gpu_us"] is None
    assert row["contenders"]["reshard"]["gpu_times_raw"] is None


def test_of_consumer_rows_times_that_were_not_taken_are_none() -> None:
    row_result = Result("row", 10**9, 0, {"raw each": Timing((4000.0,), (), (8000.0,), (), 0, 0)}, tensors=400)
    row = json.loads(json.dumps(row_json(row_result, None)))
    assert (row["tensors"], row["shared_gpu"]) == (400, False)
    raw = row["contenders"]["raw each"]
    assert (raw["gpu_us"], raw["loop_us"], raw["gpu_times_raw"]) == (None, None, None)
    assert (raw["host_us"]["median"], raw["wall_times_raw"]["median"], raw["host_per_tensor_us"]) == (4000, 1, 10)
    heads, _, cells = table(row_result)
    assert heads.startswith("| contender | host, us a tensor | host, one call, us | times raw each |")
    assert cells.startswith("| raw each | 10 | 4000 | 1.00 (1.00 to 1.00) | 8 |")


def test_every_number_has_a_unit() -> None:
    endings = ("_us", "_bytes", "_times_raw", "_gb_per_s", "repeats")
    assert all(key.endswith(endings) for key in row_json(result("row", raw=1), None)["contenders"]["raw"])
