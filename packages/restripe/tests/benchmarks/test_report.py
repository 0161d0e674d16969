"""The JSON twin of the tables: units in every key, and nothing lost."""

from __future__ import annotations

import json

import pytest

from gpu_bench.report import report
from gpu_bench.targets import Verdict
from restripe.bench.crossing import Crossing
from restripe.bench.results import Spread

from ..helpers.samples import result, timing

ORIGIN = {"nccl": "2.30.7"}


def test_a_run_survives_json() -> None:
    found = result("row", 10**9, raw=1000, reshard=2000)
    found.timings["wrong"] = timing(1, wrong=3, extra=5)
    found.unfit["nccl.m2n"] = "refuses"
    found.crossing["restripe"] = Crossing(8, 4)
    told = json.loads(json.dumps(report(ORIGIN, [found], {"row": Spread(9, 8, 10)}, [Verdict("target", True)])))
    assert told["provenance"] == ORIGIN
    assert told["targets"] == [{"text": "target", "holds": True, "spread": None}]
    (row,) = told["rows"]
    assert (row["row"], row["size_bytes"], row["not_run"]) == ("row", 10**9, {"nccl.m2n": "refuses"})
    assert row["peer_copy_gpu_us"] == {"median": 9, "p10": 8, "p90": 10}
    assert row["crossing_bytes"] == {"restripe": {"total": 8, "busiest": 4}}
    ours = row["contenders"]["reshard"]
    assert ours["gpu_us"]["median"] == 2000
    assert ours["gpu_times_raw"]["median"] == ours["host_times_raw"]["median"] == 2
    assert ours["rate_gb_per_s"] == pytest.approx(500)
    assert ours["repeats"]["wall_us"] == [2000] * 3
    assert (row["contenders"]["wrong"]["wrong_bytes"], row["contenders"]["wrong"]["extra_bytes"]) == (3, 5)


def test_without_raw_or_a_peer_copy_the_keys_stay() -> None:
    (row,) = report(ORIGIN, [result("row", reshard=1)], {}, [])["rows"]
    assert row["peer_copy_gpu_us"] is None
    assert row["contenders"]["reshard"]["gpu_times_raw"] is None


def test_every_number_has_a_unit() -> None:
    (row,) = report(ORIGIN, [result("row", raw=1)], {}, [])["rows"]
    endings = ("_us", "_bytes", "_times_raw", "_gb_per_s", "repeats")
    assert all(key.endswith(endings) for key in row["contenders"]["raw"])
