"""The limit is known for rows where every GPU sends all that it has to one other."""

from __future__ import annotations

from gpu_bench.peer_copy import paired_senders
from gpu_bench.rows import rows


def test_rows_from_each_gpu_to_one_other() -> None:
    points = ["point 16 KiB", "point 34 MB", "point 262 MB", "point 1 GiB", "model 4B"]
    assert {row.name: paired_senders(row) for row in rows(2) if paired_senders(row)} == dict.fromkeys(points, 1)
    more = [f"4 to 4, S(0) to S(0), {size}" for size in ("34 MB", "262 MB", "1 GiB")]
    assert {row.name: paired_senders(row) for row in rows(8) if paired_senders(row)} == dict.fromkeys(
        [*points, *more], 4
    )
