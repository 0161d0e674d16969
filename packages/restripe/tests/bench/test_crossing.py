"""Both paths bring every byte over once; the representatives receive what stripes spread."""

from __future__ import annotations

import pytest

from restripe.bench.crossing import Crossing, crossing
from restripe.bench.rows import Row, between

from .conftest import gather

ROWS = [(ranks, one) for ranks in (4, 8) for one in between(ranks) if " to R" in one.name]


@pytest.mark.parametrize(("ranks", "one"), ROWS, ids=[one.name for _, one in ROWS])
def test_every_byte_crosses_once_and_stripes_spread_it_over_the_replicas(ranks: int, one: Row) -> None:
    found = crossing(one)
    dst = one.tensors[0].dst
    groups = len(dst.mesh.ranks) // dst.replicas
    assert found["restripe"].total == found["representative"].total == one.size
    chunk = -(-one.tensors[0].shape[0] // groups)
    assert found["representative"].busiest == one.size // one.tensors[0].shape[0] * chunk
    assert found["restripe"].busiest == one.size // one.tensors[0].shape[0] * -(-chunk // dst.replicas)


def test_what_stays_on_a_rank_does_not_cross() -> None:
    one = gather(4, (("a", (64, 96)),))
    assert crossing(one) == {
        "restripe": Crossing(0, 0),
        "representative": Crossing(one.size * 3 // 4, one.size * 3 // 4),
    }
