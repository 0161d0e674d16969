"""Records of calls: what equal calls look like, what differing ones raise, and how items from all ranks are merged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from restripe import Item, Layout, Mesh, Segmented
from restripe.errors import (
    PRECEDENCE,
    AgreementError,
    AliasingError,
    DtypeError,
    MissingTensorError,
    ReshardError,
    ShapeError,
)
from restripe.group.agreement import Terms, compare, describe, first_of, listing, merge, record
from restripe.group.inputs import Whole

ROWS, COLUMNS = Layout(Mesh((2,), (0, 1)), (Shard(0),)), Layout(Mesh((2,), (1, 0)), (Shard(1),))
ONE = Whole("tensor", (4, 6), torch.float32, ROWS, COLUMNS)


def told(item: Whole = ONE, call: int = 1, budget: int = 100) -> bytes:
    return record(None, Terms.of([item]).told(), call, budget)


def faulty(fault: ReshardError) -> bytes:
    return record(fault, Terms.of([ONE]).told(), 1, 100)


def prepares(*items: Item, call: int = 1, budget: int = 100, graph: bool = False) -> bytes:
    return record(None, describe(listing(items), graph=graph), call, budget)


@pytest.mark.requirement("RS-AGREE-1", "RS-AGREE-2")
def test_equal_calls_agree() -> None:
    compare([told(), told(), told()])


DIFFERENCES = [
    (told(replace(ONE, dtype=torch.half)), DtypeError, "expected dtype torch.float32 as on rank 0, got torch.float16"),
    (told(replace(ONE, shape=(4, 7))), ShapeError, r"expected shape (4, 6) as on rank 0, got (4, 7)"),
    (told(replace(ONE, shape=(4, 7), dtype=torch.half)), DtypeError, "dtype and shape"),
    (told(replace(ONE, src=COLUMNS)), AgreementError, "layouts"),
    (told(replace(ONE, dst=Layout(Mesh((2, 1), (1, 0)), (Shard(1), Replicate())))), AgreementError, "layouts"),
    (told(replace(ONE, src=Layout(Mesh((2,), (0, 1), ("a", "b")), (Shard(0),)))), AgreementError, "layouts"),
    (told(replace(ONE, src=Layout(ROWS.mesh, (_StridedShard(0, split_factor=2),)))), AgreementError, "layouts"),
    (told(replace(ONE, src=Layout(ROWS.mesh, (Segmented(0, (3, 1)),)))), AgreementError, "layouts"),
    (told(replace(ONE, name="other")), AgreementError, "layouts"),
    (told(call=2), AgreementError, "expected call number 1 as on rank 0, got 2"),
    (told(replace(ONE, dtype=torch.half), call=2), AgreementError, "dtype and call number"),
    (told(budget=99), AgreementError, "expected staging budget 100 as on rank 0, got 99"),
]


@pytest.mark.requirement("RS-AGREE-2", "RS-ERROR-6", "RS-ERROR-7", "RS-ERROR-12")
@pytest.mark.parametrize(("other", "kind", "text"), DIFFERENCES)
def test_differing_calls_name_the_rank_and_both_values(other: bytes, kind: type[ReshardError], text: str) -> None:
    with pytest.raises(kind) as caught:
        compare([told(), told(), other])
    assert str(caught.value).startswith("rank 2 calls with another")
    assert text in str(caught.value)


@pytest.mark.requirement("RS-AGREE-1", "RS-ERROR-11")
@given(st.permutations(PRECEDENCE), st.integers(1, len(PRECEDENCE)))
def test_of_several_faults_the_first_of_the_table_is_raised(kinds: list[type[ReshardError]], count: int) -> None:
    lines = [faulty(kind(f"rank {rank}: bad")) for rank, kind in enumerate(kinds[:count])]
    first = min(kinds[:count], key=PRECEDENCE.index)
    with pytest.raises(ReshardError) as caught:
        compare([*lines, told()])
    assert type(caught.value) is first
    assert str(caught.value) == f"rank {kinds.index(first)}: bad"


@pytest.mark.requirement("RS-AGREE-1")
def test_a_fault_wins_over_a_difference() -> None:
    with pytest.raises(AliasingError, match="rank 1: shared"):
        compare([told(), faulty(AliasingError("rank 1: shared")), told(call=7)])


@pytest.mark.requirement("RS-AGREE-2")
def test_a_batch_differs_where_any_of_its_tensors_does() -> None:
    both = [replace(ONE, name="a"), replace(ONE, name="b")]
    assert Terms.of(both) == Terms.of(list(both))
    for other in (
        [both[1], both[0]],
        [both[0], replace(both[1], dtype=torch.half)],
        [both[0], replace(both[1], shape=(4, 9))],
        [both[0], replace(both[1], src=COLUMNS)],
        both[:1],
    ):
        assert Terms.of(other) != Terms.of(both)


def test_records_are_small_whatever_the_mesh() -> None:
    ranks = tuple(range(4096))
    large = replace(ONE, src=Layout(Mesh((4096,), ranks), (Shard(0),)))
    assert len(told(large)) < 400


def merged(*said: list[Item]) -> list[Whole]:
    """What prepare makes of the items that each rank names."""
    firsts = first_of(compare([prepares(*items) for items in said])).values()
    return merge({rank: listing(said[rank]) for rank in firsts})


def test_of_ranks_that_list_the_same_the_first_tells_it() -> None:
    trainer, generator = [Item("a", (8,), torch.int8, src=ROWS)], [Item("a", (8,), torch.int8, dst=ROWS)]
    said = [generator, trainer, [], trainer, generator, []]
    assert sorted(first_of(compare([prepares(*items) for items in said])).values()) == [0, 1, 2]


def test_a_listing_has_each_layout_once() -> None:
    ranks = tuple(range(4096))
    one, other = (Layout(Mesh((4096,), ranks), (Shard(dim),)) for dim in (0, 1))
    items = [Item(f"layer {n}", (4096, 4096), torch.bfloat16, one, other) for n in range(1000)]
    single = len(listing(items[:1]))
    assert len(listing(items)) < single + 1000 * 60
    assert len(prepares(*items)) < 400


@pytest.mark.requirement("RS-LAYOUT-10", "RS-LAYOUT-11")
def test_every_kind_of_placement_and_the_hosts_are_told_to_the_others() -> None:
    mesh = Mesh((2, 1, 1, 1), (1, 0), ("a", 7))
    src = Layout(mesh, (_StridedShard(1, split_factor=3), Shard(1), Replicate(), Segmented(0, (4, 0, 2))))
    sent = Item("weight", (6, 6), torch.float32, src=src)
    assert merged([sent], [replace(sent, src=None, dst=ROWS)]) == [Whole("weight", (6, 6), torch.float32, src, ROWS)]


@pytest.mark.requirement("RS-BATCH-2")
def test_each_rank_names_its_own_side_and_an_idle_rank_names_nothing() -> None:
    trainer = [Item("b", (4, 6), torch.float32, src=ROWS), Item("a", (8,), torch.int8, src=ROWS)]
    generator = [Item("a", (8,), torch.int8, dst=ROWS), Item("b", (4, 6), torch.float32, dst=COLUMNS)]
    wanted = [Whole("a", (8,), torch.int8, ROWS, ROWS), Whole("b", (4, 6), torch.float32, ROWS, COLUMNS)]
    assert merged(trainer, [], generator) == merged(generator, trainer, []) == wanted


WEIGHT = Item("w", (4, 6), torch.float32, src=ROWS, dst=COLUMNS)
CONFLICTS = [
    (Item("w", (4, 6), torch.half, dst=COLUMNS), DtypeError, "torch.float16"),
    (Item("w", (4, 7), torch.float32, dst=COLUMNS), ShapeError, "(4, 7)"),
    (Item("w", (4, 6), torch.float32, src=COLUMNS), AgreementError, "src"),
    (Item("w", (4, 6), torch.float32, dst=ROWS), AgreementError, "dst"),
]


@pytest.mark.requirement("RS-AGREE-2", "RS-ERROR-12")
@pytest.mark.parametrize(("other", "kind", "text"), CONFLICTS)
def test_ranks_that_say_different_things_of_one_item(other: Item, kind: type[ReshardError], text: str) -> None:
    with pytest.raises(kind) as caught:
        merged([], [WEIGHT], [], [other])
    assert str(caught.value).startswith("rank 3: item 'w'")
    assert "rank 1" in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.requirement("RS-ERROR-4", "RS-ERROR-12")
@pytest.mark.parametrize(("side", "layout"), [("source", "dst"), ("destination", "src")])
def test_an_item_with_a_side_that_no_rank_names(side: str, layout: str) -> None:
    half = Item("w", (4,), torch.int8, **{layout: ROWS})
    with pytest.raises(MissingTensorError, match=rf"item 'w'.*{side} layout"):
        merged([], [half])


@pytest.mark.requirement("RS-AGREE-2")
@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (told(), prepares(WEIGHT), "another call: expected call reshard as on rank 0, got prepare"),
        (prepares(WEIGHT), told(), "another call: expected call prepare as on rank 0, got reshard"),
        (prepares(WEIGHT), prepares(WEIGHT, call=2), "another call number: expected call number 1 as on rank 0, got 2"),
        (prepares(WEIGHT), prepares(WEIGHT, graph=True), "another graph: expected graph False as on rank 0, got True"),
        (prepares(), prepares(budget=7), "another staging budget: expected staging budget 100 as on rank 0, got 7"),
    ],
)
def test_a_prepare_meets_no_other_call(one: bytes, other: bytes, text: str) -> None:
    with pytest.raises(AgreementError) as caught:
        compare([one, other])
    assert str(caught.value).startswith(f"rank 1 calls with {text}")


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.uint64, torch.complex32])
def test_items_pass_through_an_exchange_unchanged(dtype: torch.dtype) -> None:
    src = Layout(Mesh((2, 2), (3, 1, 0, 2)), (Replicate(), Shard(2)))
    sent = Item("w", (0, 1, 6), dtype, src, ROWS)
    assert merged([sent], []) == [Whole(sent.name, sent.shape, dtype, src, ROWS)]
