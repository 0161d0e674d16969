"""Records of calls: errors of records that differ, and items of all ranks merged into one list."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from restripe.group.agreement import (
    CallSignature,
    compare_records,
    first_ranks,
    list_items,
    make_record,
    merge_listings,
    prepare_fields,
)
from restripe.group.inputs import ResolvedItem

ROWS, COLUMNS = Layout(Mesh((2,), (0, 1)), (Shard(0),)), Layout(Mesh((2,), (1, 0)), (Shard(1),))
ITEM = ResolvedItem("tensor", (4, 6), torch.float32, ROWS, COLUMNS)


def call_record(*items: ResolvedItem, number: int = 1, budget: int = 100) -> bytes:
    """Return the record of a call that moves these items; ITEM where none are given."""
    return make_record(None, CallSignature.of(items or (ITEM,)).fields(), number, budget)


def fault_record(fault: ReshardError) -> bytes:
    return make_record(fault, CallSignature.of([ITEM]).fields(), 1, 100)


def prepare_record(*items: Item, number: int = 1, budget: int = 100, graph: bool = False) -> bytes:
    return make_record(None, prepare_fields(list_items(items), graph=graph), number, budget)


@pytest.mark.requirement("RS-AGREE-1", "RS-AGREE-2")
def test_equal_calls_agree() -> None:
    compare_records([call_record(), call_record(), call_record()])


AS_CALLED = (
    "expected layouts Mesh(shape=(2,), ranks=(0, 1)) (S(0)) to Mesh(shape=(2,), ranks=(1, 0)) (S(1)) as on rank 0, got "
)
TO_COLUMNS = " to Mesh(shape=(2,), ranks=(1, 0)) (S(1));"
DIFFERENCES = [
    (replace(ITEM, dtype=torch.half), DtypeError, "expected dtype torch.float32 as on rank 0, got torch.float16"),
    (replace(ITEM, shape=(4, 7)), ShapeError, r"expected shape (4, 6) as on rank 0, got (4, 7)"),
    (replace(ITEM, shape=(4, 7), dtype=torch.half), DtypeError, "dtype and shape"),
    (replace(ITEM, src=COLUMNS), AgreementError, f"{AS_CALLED}Mesh(shape=(2,), ranks=(1, 0)) (S(1)){TO_COLUMNS}"),
    (
        replace(ITEM, dst=Layout(Mesh((2, 1), (1, 0)), (Shard(1), Replicate()))),
        AgreementError,
        f"{AS_CALLED}Mesh(shape=(2,), ranks=(0, 1)) (S(0)) to Mesh(shape=(2, 1), ranks=(1, 0)) (S(1), R);",
    ),
    (
        replace(ITEM, src=Layout(Mesh((2,), (0, 1), ("a", "b")), (Shard(0),))),
        AgreementError,
        f"{AS_CALLED}Mesh(shape=(2,), ranks=(0, 1), hosts=(a, b)) (S(0)){TO_COLUMNS}",
    ),
    (
        replace(ITEM, src=Layout(ROWS.mesh, (_StridedShard(0, split_factor=2),))),
        AgreementError,
        f"{AS_CALLED}Mesh(shape=(2,), ranks=(0, 1)) (_S(0, 2)){TO_COLUMNS}",
    ),
    (
        replace(ITEM, src=Layout(ROWS.mesh, (Segmented(0, (3, 1)),))),
        AgreementError,
        f"{AS_CALLED}Mesh(shape=(2,), ranks=(0, 1)) (Segmented(dim=0, sizes=(3, 1))){TO_COLUMNS}",
    ),
    (replace(ITEM, name="other"), AgreementError, "another layouts"),
]


@pytest.mark.requirement("RS-AGREE-2", "RS-ERROR-6", "RS-ERROR-7", "RS-ERROR-12")
@pytest.mark.parametrize(("other", "kind", "text"), DIFFERENCES)
def test_an_error_of_differing_calls_names_the_rank_and_both_values(
    other: ResolvedItem, kind: type[ReshardError], text: str
) -> None:
    with pytest.raises(kind) as caught:
        compare_records([call_record(), call_record(), call_record(other)])
    assert str(caught.value).startswith("rank 2 calls with another")
    assert text in str(caught.value)


@pytest.mark.requirement("RS-AGREE-2", "RS-ERROR-12")
@pytest.mark.parametrize(
    ("other", "text"),
    [
        (call_record(number=2), "another call number: expected call number 1 as on rank 0, got 2"),
        (call_record(replace(ITEM, dtype=torch.half), number=2), "another dtype and call number"),
        (call_record(budget=99), "another staging budget: expected staging budget 100 as on rank 0, got 99"),
    ],
)
def test_calls_may_differ_in_their_number_or_staging_budget(other: bytes, text: str) -> None:
    with pytest.raises(AgreementError, match=f"^rank 1 calls with {text}"):
        compare_records([call_record(), other])


@pytest.mark.requirement("RS-ERROR-12")
def test_layouts_are_shown_without_digests_where_they_differ_in_what_is_shown() -> None:
    for differing in (replace(ITEM, src=COLUMNS), replace(ITEM, dst=ROWS)):
        with pytest.raises(AgreementError) as caught:
            compare_records([call_record(), call_record(differing)])
        assert "digest" not in str(caught.value)
    long = [replace(ITEM, src=Layout(Mesh((9,), (*range(7), *last)), (Shard(0),))) for last in ((7, 8), (8, 7))]
    cut = [replace(ITEM, src=Layout(Mesh((10,), (*range(8), *last)), (Shard(0),))) for last in ((8, 9), (9, 8))]
    for pair, digests in ((long, 0), (cut, 2)):
        with pytest.raises(AgreementError) as caught:
            compare_records([call_record(item) for item in pair])
        assert str(caught.value).count(", digest ") == digests
        assert "ranks=(0, 1, 2, 3, 4, 5, 6, " in str(caught.value)


@pytest.mark.requirement("RS-AGREE-2", "RS-ERROR-12")
@pytest.mark.parametrize("changed", [0, 2, 3])
def test_of_several_tensors_the_first_layouts_are_shown(changed: int) -> None:
    items = [replace(ITEM, name=str(number)) for number in range(4)]
    others = [replace(item, src=COLUMNS) if number == changed else item for number, item in enumerate(items)]
    with pytest.raises(AgreementError) as caught:
        compare_records([call_record(*items), call_record(*others)])
    rows, columns = (f"{start}{TO_COLUMNS[:-1]}" for start in (f"{ROWS.mesh} (S(0))", f"{COLUMNS.mesh} (S(1))"))
    shown = [columns if number == changed else rows for number in range(3)]
    digests = ", digest" if changed == 3 else ""
    expected, actual = str(caught.value).split(" as on rank 0, got ")
    assert f"expected layouts 4 tensors, the first: {', '.join([rows] * 3)}{digests}" in expected
    assert actual.startswith(f"4 tensors, the first: {', '.join(shown)}{digests}")
    assert ("digest" in str(caught.value)) == (changed == 3)


@pytest.mark.requirement("RS-AGREE-2", "RS-ERROR-6", "RS-ERROR-7")
def test_of_several_tensors_the_first_dtypes_and_shapes_are_shown() -> None:
    pair, three = [[replace(ITEM, name=str(number)) for number in range(count)] for count in (2, 3)]
    half, flat = replace(pair[1], dtype=torch.half), replace(pair[1], shape=(24, 1))
    for others, kind, text in (
        (
            [pair[0], half],
            DtypeError,
            "as on rank 0, got 2 tensors: torch.float32, torch.float16;",
        ),
        ([pair[0], flat], ShapeError, "shape 2 tensors: (4, 6), (4, 6) as on rank 0, got 2 tensors: (4, 6), (24, 1);"),
        (three, AgreementError, "2 tensors: torch.float32, torch.float32 as on rank 0, got 3 tensors: torch.float32,"),
    ):
        with pytest.raises(kind) as caught:
            compare_records([call_record(*pair), call_record(*others)])
        assert text in str(caught.value)
        assert "digest" not in str(caught.value)


@pytest.mark.requirement("RS-AGREE-1", "RS-ERROR-11")
@given(st.permutations(PRECEDENCE), st.integers(1, len(PRECEDENCE)))
def test_of_several_faults_the_first_of_the_table_is_raised(kinds: list[type[ReshardError]], count: int) -> None:
    records = [fault_record(kind(f"rank {rank}: bad")) for rank, kind in enumerate(kinds[:count])]
    expected = min(kinds[:count], key=PRECEDENCE.index)
    with pytest.raises(ReshardError) as caught:
        compare_records([*records, call_record()])
    assert type(caught.value) is expected
    assert str(caught.value) == f"rank {kinds.index(expected)}: bad"


@pytest.mark.requirement("RS-AGREE-1")
def test_a_fault_wins_over_a_difference() -> None:
    with pytest.raises(AliasingError, match="rank 1: shared"):
        compare_records([call_record(), fault_record(AliasingError("rank 1: shared")), call_record(number=7)])


@pytest.mark.requirement("RS-AGREE-2")
def test_the_signature_of_several_tensors_differs_where_any_of_them_does() -> None:
    items = [replace(ITEM, name=str(number)) for number in range(5)]
    signature = CallSignature.of(items)
    assert CallSignature.of(list(items)) == signature
    swapped = Layout(Mesh((16,), (*range(14), 15, 14)), (Shard(0),))
    in_order = Layout(Mesh((16,), tuple(range(16))), (Shard(0),))
    changes: list[dict[str, Any]] = [
        {"dtype": torch.half},
        {"shape": (4, 9)},
        {"src": COLUMNS},
        {"dst": ROWS},
        {"name": "x"},
    ]
    for position in range(5):
        for change in changes:
            others = [*items[:position], replace(items[position], **change), *items[position + 1 :]]
            assert CallSignature.of(others) != signature
        pair = [[*items[:position], replace(ITEM, src=src), *items[position + 1 :]] for src in (in_order, swapped)]
        assert CallSignature.of(pair[0]) != CallSignature.of(pair[1])
    assert CallSignature.of(items[::-1]) != signature
    assert CallSignature.of(items[:-1]) != signature
    assert CallSignature.of([]) != CallSignature.of(items[:1])


@pytest.mark.parametrize("tensors", [1, 1000])
def test_records_are_small_whatever_the_mesh_and_the_number_of_tensors(tensors: int) -> None:
    ranks = tuple(range(4096))
    large = replace(ITEM, src=Layout(Mesh((4096,), ranks), (Shard(0),)))
    assert len(call_record(*[large] * tensors)) < (400 if tensors == 1 else 900)


def merge_lists(*items_by_rank: list[Item]) -> list[ResolvedItem]:
    """Return the list that prepare makes of the items that each rank names."""
    ranks = first_ranks(compare_records([prepare_record(*items) for items in items_by_rank])).values()
    return merge_listings({rank: list_items(items_by_rank[rank]) for rank in ranks})


def test_of_ranks_with_equal_lists_the_first_sends_its_list() -> None:
    trainer, generator = [Item("a", (8,), torch.int8, src=ROWS)], [Item("a", (8,), torch.int8, dst=ROWS)]
    lists = [generator, trainer, [], trainer, generator, []]
    assert sorted(first_ranks(compare_records([prepare_record(*items) for items in lists])).values()) == [0, 1, 2]


def test_a_listing_has_each_layout_once() -> None:
    ranks = tuple(range(4096))
    one, other = (Layout(Mesh((4096,), ranks), (Shard(dim),)) for dim in (0, 1))
    items = [Item(f"layer {n}", (4096, 4096), torch.bfloat16, one, other) for n in range(1000)]
    single = len(list_items(items[:1]))
    assert len(list_items(items)) < single + 1000 * 60
    assert len(prepare_record(*items)) < 400


@pytest.mark.requirement("RS-LAYOUT-10", "RS-LAYOUT-11")
def test_every_kind_of_placement_and_the_hosts_are_listed_for_the_others() -> None:
    mesh = Mesh((2, 1, 1, 1), (1, 0), ("a", 7))
    src = Layout(mesh, (_StridedShard(1, split_factor=3), Shard(1), Replicate(), Segmented(0, (4, 0, 2))))
    sent = Item("weight", (6, 6), torch.float32, src=src)
    assert merge_lists([sent], [replace(sent, src=None, dst=ROWS)]) == [
        ResolvedItem("weight", (6, 6), torch.float32, src, ROWS)
    ]


@pytest.mark.requirement("RS-BATCH-2")
def test_each_rank_names_its_own_side_and_an_idle_rank_names_nothing() -> None:
    trainer = [Item("b", (4, 6), torch.float32, src=ROWS), Item("a", (8,), torch.int8, src=ROWS)]
    generator = [Item("a", (8,), torch.int8, dst=ROWS), Item("b", (4, 6), torch.float32, dst=COLUMNS)]
    expected = [
        ResolvedItem("a", (8,), torch.int8, ROWS, ROWS),
        ResolvedItem("b", (4, 6), torch.float32, ROWS, COLUMNS),
    ]
    assert merge_lists(trainer, [], generator) == merge_lists(generator, trainer, []) == expected


WEIGHT = Item("w", (4, 6), torch.float32, src=ROWS, dst=COLUMNS)
CONFLICTS = [
    (Item("w", (4, 6), torch.half, dst=COLUMNS), DtypeError, "torch.float16"),
    (Item("w", (4, 7), torch.float32, dst=COLUMNS), ShapeError, "(4, 7)"),
    (Item("w", (4, 6), torch.float32, src=COLUMNS), AgreementError, "src"),
    (Item("w", (4, 6), torch.float32, dst=ROWS), AgreementError, "dst"),
]


@pytest.mark.requirement("RS-AGREE-2", "RS-ERROR-12")
@pytest.mark.parametrize(("other", "kind", "text"), CONFLICTS)
def test_ranks_that_give_an_item_differently_are_an_error_with_both_ranks(
    other: Item, kind: type[ReshardError], text: str
) -> None:
    with pytest.raises(kind) as caught:
        merge_lists([], [WEIGHT], [], [other])
    assert str(caught.value).startswith("rank 3: item 'w'")
    assert "rank 1" in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.requirement("RS-ERROR-4", "RS-ERROR-12")
@pytest.mark.parametrize(("side", "layout"), [("source", "dst"), ("destination", "src")])
def test_an_item_with_a_side_that_no_rank_names_is_an_error(side: str, layout: str) -> None:
    half = Item("w", (4,), torch.int8, **{layout: ROWS})
    with pytest.raises(MissingTensorError, match=rf"item 'w'.*{side} layout"):
        merge_lists([], [half])


@pytest.mark.requirement("RS-AGREE-2")
@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (call_record(), prepare_record(WEIGHT), "another call: expected call reshard as on rank 0, got prepare"),
        (prepare_record(WEIGHT), call_record(), "another call: expected call prepare as on rank 0, got reshard"),
        (
            prepare_record(WEIGHT),
            prepare_record(WEIGHT, number=2),
            "another call number: expected call number 1 as on rank 0, got 2",
        ),
        (
            prepare_record(WEIGHT),
            prepare_record(WEIGHT, graph=True),
            "another graph: expected graph False as on rank 0, got True",
        ),
        (
            prepare_record(),
            prepare_record(budget=7),
            "another staging budget: expected staging budget 100 as on rank 0, got 7",
        ),
    ],
)
def test_a_prepare_and_another_call_disagree(one: bytes, other: bytes, text: str) -> None:
    with pytest.raises(AgreementError) as caught:
        compare_records([one, other])
    assert str(caught.value).startswith(f"rank 1 calls with {text}")


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.uint64, torch.complex32])
def test_items_pass_through_an_exchange_unchanged(dtype: torch.dtype) -> None:
    src = Layout(Mesh((2, 2), (3, 1, 0, 2)), (Replicate(), Shard(2)))
    sent = Item("w", (0, 1, 6), dtype, src, ROWS)
    assert merge_lists([sent], []) == [ResolvedItem(sent.name, sent.shape, dtype, src, ROWS)]
