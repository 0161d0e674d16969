"""What a reader of the table sees."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from restripe.bench.crossing import Crossing
from restripe.bench.results import Result, Spread, Timing
from restripe.bench.table import brief, table


def shown(result: Result) -> str:
    console = Console(width=200, file=(written := StringIO()))
    console.print(table(result))
    return written.getvalue()


def lines(result: Result) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown(result).splitlines() if "│" in line]
    return {row[0]: row[1:] for row in cells}


RAW = Timing((100.0, 100.0), (50.0, 50.0), (2000.0, 2000.0), (1000.0, 1000.0), 0, 0)
ONE = "1.00 (1.00-1.00)"
OURS = Timing((120.0, 130.0), (60.0, 60.0), (2000.0, 2000.0), (1010.0, 1030.0), 7, 65_500_000)


def test_medians_ratios_rate_wrong_bytes_and_memory() -> None:
    found = lines(Result("row", 10**9, 0, {"raw": RAW, "reshard": OURS}))
    assert found["raw"] == ["100", ONE, "50", ONE, "2", ONE, "1", ONE, "1000", "0", "0.0"]
    assert found["reshard"][:4] == ["125", "1.25 (1.20-1.30)", "60", "1.20 (1.20-1.20)"]
    assert found["reshard"][6:] == ["1.02", "1.02 (1.01-1.03)", "980.4", "7", "65.5"]


def test_without_raw_there_are_no_ratios() -> None:
    assert lines(Result("row", 10**9, 0, {"reshard": OURS}))["reshard"][1:8:2] == [""] * 4


def test_who_did_not_run_is_told_with_the_reason() -> None:
    assert "nccl.m2n: refuses" in shown(Result("row", 1, 0, {"raw": RAW}, {"nccl.m2n": "refuses"}))


def test_what_crosses_is_told_a_line_a_path() -> None:
    written = shown(Result("row", 1, 0, {"raw": RAW}, crossing={"restripe": Crossing(4000, 1000)}))
    assert "crosses before replicas share, restripe: 4,000 bytes, 1,000 at most into one rank" in written
    assert "crosses" not in shown(Result("row", 1, 0, {"raw": RAW}))


def test_brief() -> None:
    assert brief(Spread(1.214, 1.15, 1.268)) == "1.21 (1.15-1.27)"
