"""The loop over gloo: two processes play a row, and what is judged and written follows from it."""

from __future__ import annotations

from dataclasses import replace

from gpu_bench.consumer import FOREIGN_MESH, OWN_MESH
from gpu_bench.processes import play_rows
from loop_bench.__main__ import loop_json
from loop_bench.contenders import cpu_rows, make_contenders


def test_the_rows_between_two_ranks_are_small() -> None:
    rows = cpu_rows()
    names = ["consumer 396", "consumer 9000", "consumer 18867", "consumer 396 fresh"]
    assert [row.name for row in rows] == names
    assert all(row.size_bytes < 50e6 for row in rows)


def test_two_processes_play_a_row_over_gloo() -> None:
    (row,) = (row for row in cpu_rows() if row.fresh)
    short = replace(row, name="consumer 396", tensors=row.tensors[:20], repeats=2)
    (result,) = play_rows([short], make_contenders, 2, 120, on_cpu=True)
    assert list(result.timings) == [FOREIGN_MESH, OWN_MESH]
    assert (result.tensors, result.shared_gpu, result.base, result.not_run) == (20, False, OWN_MESH, {})
    for timing in result.timings.values():
        assert timing.wrong_bytes == 0
        assert len(timing.host_us) == len(timing.wall_us) == 2
    report = loop_json([result])
    assert [row["row"] for row in report["rows"]] == ["consumer 396"]
    bounds = [target["text"].split(":")[0] for target in report["targets"]]
    assert bounds == [f"target 8 host 1.3x {OWN_MESH}, consumer 396, {FOREIGN_MESH}"]
