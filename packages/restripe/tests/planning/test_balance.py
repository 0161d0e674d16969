"""Which holder begins for each tensor: the load that a whole submission leaves on each."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard

from restripe.layout.mesh import Layout, Mesh
from restripe.planning.balance import rotations
from restripe.planning.planner import plan

DTYPES = st.sampled_from([torch.int8, torch.bfloat16, torch.float64])
SIZES = st.sampled_from([0, 1, 12, 24, 120, 960])


class Tensor(NamedTuple):
    src: Layout
    dst: Layout
    shape: tuple[int, ...]
    dtype: torch.dtype


def tensor(holders: int, receivers: int, shape: tuple[int, ...], dtype: torch.dtype = torch.int8) -> Tensor:
    """From so many holders of all to so many receivers of a part each."""
    src = Layout(Mesh((holders,), tuple(range(holders))), (Replicate(),))
    dst = Layout(Mesh((receivers,), tuple(range(holders, holders + receivers))), (Shard(0),))
    return Tensor(src, dst, shape, dtype)


def sent(tensors: list[Tensor]) -> Counter[int]:
    """The bytes that each holder sends."""
    found: Counter[int] = Counter()
    for (src, dst, shape, dtype), rotation in zip(tensors, rotations(tensors), strict=True):
        for rank in src.mesh.ranks:
            messages = plan(src, dst, shape, rank, rotation).sends
            found[rank] += dtype.itemsize * sum(prod(hi - lo for ((lo, hi),) in region) for _, region, _ in messages)
    return found


@pytest.mark.requirement("RS-BATCH-6")
@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(2, 12), st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), SIZES, DTYPES), max_size=30))
def test_no_holder_sends_more_than_the_others_by_more_than_one_message(
    holders: int, kinds: list[tuple[int, int, torch.dtype]]
) -> None:
    tensors = [tensor(holders, receivers, (12 * rows,), dtype) for receivers, rows, dtype in kinds]
    loads = sent(tensors)
    messages = [12 * rows * dtype.itemsize // receivers for receivers, rows, dtype in kinds]
    assert max(loads.values(), default=0) - min(loads[rank] for rank in range(holders)) <= max(messages, default=0)


@pytest.mark.requirement("RS-BATCH-6")
def test_large_tensors_that_recur_as_often_as_there_are_holders_find_different_ones() -> None:
    """Turns by place alone would leave all the large ones to one holder."""
    tensors = [tensor(4, 1, (1000 if place % 4 == 0 else 1,)) for place in range(32)]
    assert set(sent(tensors).values()) == {2006}


def test_tensors_alike_take_turns_in_their_order() -> None:
    assert rotations([tensor(3, 1, (8,))] * 7) == [0, 1, 2, 0, 1, 2, 0]
    assert rotations([tensor(3, 2, (8,))] * 3) == [0, 1, 2]
    assert rotations([tensor(1, 2, (8,)), tensor(3, 2, (0,)), tensor(3, 3, (9,))]) == [0, 0, 0]
    assert rotations([]) == []
