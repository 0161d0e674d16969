"""The page of a run has its provenance, and tables in the form of docs/performance.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_bench
from gpu_bench.pages import page, table
from gpu_bench.targets import Verdict
from restripe.bench.crossing import Crossing
from restripe.bench.results import Spread, Timing

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
    found = result("row")
    found.timings.update({"raw": RAW, "refit": OURS})
    one, two = "1.00 (1.00 to 1.00)", "2.00 (2.00 to 2.00)"
    heads = next(line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| contender"))
    assert list(table(found)) == [
        heads,
        "| " + " | ".join(["---"] * 9) + " |",
        f"| raw | 9.3 | {one} | 840 | {one} | 21.33 | {one} | 0.00776 | {one} |",
        f"| refit | 12 | 1.27 (1.14 to 1.40) | 1681 | {two} | 21.33 | {one} | 0.00776 | {one} |",
    ]


def test_without_raw_there_are_no_ratios() -> None:
    assert list(table(result("row", refit=1000)))[2] == "| refit | 1000 |  | 1000 |  | 1 |  | 1 |  |"


def test_a_page_has_all_that_is_known_of_a_run() -> None:
    found = result("row", 1000, raw=1)
    found.unfit["nccl.m2n"] = "refuses"
    found.crossing["restripe"] = Crossing(500, 250)
    verdicts = [Verdict("first holds", True), Verdict("second FAILS", False)]
    lines = page(ORIGIN, [found], {"row": Spread(2000, 1, 2)}, verdicts, "").splitlines()
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
    found = result("row", raw=1)
    found.timings["wrong"] = timing(1, wrong=1234)
    lines = page(ORIGIN, [found], {}, [], "times say nothing").splitlines()
    assert lines[0] == "times say nothing."
    assert "1,234 wrong bytes in all destinations of all contenders." in lines[: lines.index("## row")]
    assert "## Targets" not in lines
