"""Checks that one rank makes alone: its tensors against its plan, in the order of the table of errors, and each other."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Shard

from restripe import Layout, Mesh
from restripe.errors import AliasingError, DeviceError, DtypeError, MissingTensorError, ReshardError, ShapeError
from restripe.execution.memory import geometry_of
from restripe.group.checks import TensorCheck, check_item, find_memory_fault, first_fault, with_rank
from restripe.group.inputs import SIDES, ResolvedItem
from restripe.planning.planner import plan

CPU = torch.device("cpu")
ROWS, COLUMNS = Layout(Mesh((2,), (0, 1)), (Shard(0),)), Layout(Mesh((2,), (0, 2)), (Shard(1),))
ITEM = ResolvedItem("layer.weight", (4, 6), torch.float32, ROWS, COLUMNS)
NO_TENSOR = TensorCheck(None, None, None)


def tensor_check(
    local: torch.Tensor | None, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None
) -> TensorCheck:
    return TensorCheck(shape, dtype, local)


def check_rank(rank: int, src: TensorCheck, dst: TensorCheck, device: torch.device = CPU) -> None:
    """Check the item on one rank."""
    check_item(ITEM, plan(ITEM.src, ITEM.dst, ITEM.shape, rank), rank, device, src, dst)


@pytest.mark.requirement("RS-ERROR-12")
def test_a_good_call_is_accepted() -> None:
    check_rank(0, tensor_check(torch.zeros(2, 6)), tensor_check(torch.zeros(4, 3)))
    check_rank(1, tensor_check(torch.zeros(2, 6), (4, 6), torch.float32), NO_TENSOR)
    check_rank(2, NO_TENSOR, tensor_check(torch.zeros(4, 3)))
    check_rank(3, tensor_check(None, (4, 6), torch.float32), tensor_check(None, (4, 6), torch.float32))


FAULTS = [
    (1, NO_TENSOR, NO_TENSOR, MissingTensorError, r"source 'layer.weight'.*rank 1.*\(2, 6\), got none"),
    (2, NO_TENSOR, NO_TENSOR, MissingTensorError, r"destination 'layer.weight'.*rank 2.*\(4, 3\), got none"),
    (
        1,
        tensor_check(torch.zeros(2, 6)),
        tensor_check(torch.zeros(4, 3)),
        MissingTensorError,
        r"destination.*must pass None, got a",
    ),
    (
        1,
        tensor_check(torch.zeros(2, 6, device="meta")),
        NO_TENSOR,
        DeviceError,
        r"source.*expected a tensor on cpu, got one on meta",
    ),
    (
        1,
        tensor_check(torch.zeros(2, 6, dtype=torch.half)),
        NO_TENSOR,
        DtypeError,
        r"source.*float32, got torch.float16.*not cast",
    ),
    (
        1,
        tensor_check(torch.zeros(2, 6), None, torch.half),
        NO_TENSOR,
        DtypeError,
        r"source.*float32, got torch.float16",
    ),
    (
        2,
        NO_TENSOR,
        tensor_check(torch.zeros(4, 3), (4, 7)),
        ShapeError,
        r"destination.*expected global shape \(4, 6\), got \(4, 7\)",
    ),
    (
        1,
        tensor_check(torch.zeros(6, 2)),
        NO_TENSOR,
        ShapeError,
        r"source.*local tensor of \(2, 6\).*got \(6, 2\).*torch.chunk",
    ),
    (
        2,
        NO_TENSOR,
        tensor_check(torch.zeros(4).expand(3, 4).t()),
        AliasingError,
        r"destination 'layer.weight'.*own elements share",
    ),
]


@pytest.mark.requirement("RS-ERROR-4", "RS-ERROR-5", "RS-ERROR-6", "RS-ERROR-7", "RS-ERROR-8", "RS-ERROR-12")
@pytest.mark.parametrize(("rank", "src", "dst", "kind", "text"), FAULTS)
def test_a_fault_names_tensor_expected_and_actual(
    rank: int, src: TensorCheck, dst: TensorCheck, kind: type[ReshardError], text: str
) -> None:
    with pytest.raises(kind) as caught:
        check_rank(rank, src, dst)
    assert re.search(text, str(caught.value))


@pytest.mark.requirement("RS-ERROR-9")
def test_the_first_fault_of_the_table_wins_on_either_side() -> None:
    wrong = torch.zeros(9, dtype=torch.half)
    with pytest.raises(MissingTensorError):
        check_rank(0, tensor_check(wrong), NO_TENSOR)
    with pytest.raises(DeviceError):
        check_rank(0, tensor_check(wrong), tensor_check(torch.zeros(4, 3, device="meta")))
    with pytest.raises(DtypeError):
        check_rank(0, tensor_check(torch.zeros(9)), tensor_check(torch.zeros(4, 3, dtype=torch.half)))
    shared = torch.zeros(9)
    with pytest.raises(ShapeError):
        check_rank(0, tensor_check(shared), tensor_check(shared))


SidesOfItems = list[tuple[ResolvedItem, TensorCheck, TensorCheck]]


def check_memory(sides: SidesOfItems, idle: tuple[int, ...] = ()) -> None:
    """Raise the memory fault of a call's tensors; this rank moves nothing of the items of these numbers."""
    fault = find_memory_fault(
        [item for item, _, _ in sides],
        [check.local for _, *checks in sides for check in checks],
        [
            (0, 0) if number in idle else (extent(src.local), extent(dst.local))
            for number, (_, src, dst) in enumerate(sides)
        ],
    )
    if fault is not None:
        raise fault


def extent(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else geometry_of(tensor).extent


@pytest.mark.requirement("RS-ERROR-8", "RS-EXACT-11")
def test_sides_that_share_elements_are_refused_and_sides_that_interleave_are_not() -> None:
    memory = torch.zeros(2, 6, 2)
    inside = memory.flatten()[1::2]
    check_memory([(ITEM, tensor_check(memory[..., 0]), tensor_check(inside.view(4, 3)))])
    text = r"(source|destination) 'layer.weight' and (source|destination) 'layer.weight' share elements"
    with pytest.raises(AliasingError, match=text):
        check_memory([(ITEM, tensor_check(memory[..., 0]), tensor_check(memory.flatten()[::2].view(4, 3)))])


@pytest.mark.requirement("RS-ERROR-8")
def test_aliasing_is_no_fault_where_the_rank_moves_nothing() -> None:
    item = replace(ITEM, shape=(1, 6), src=ROWS, dst=Layout(Mesh((2,), (0, 1)), (Shard(0),)))
    idle = plan(item.src, item.dst, item.shape, 1)
    assert idle.idle
    empty = torch.zeros(0, 6)
    check_item(item, idle, 1, CPU, tensor_check(empty), tensor_check(empty))
    same = tensor_check(torch.zeros(4))
    check_memory([(item, same, same), (item, same, same)], idle=(0, 1))


@st.composite
def calls(draw: st.DrawFn) -> SidesOfItems:
    """Draw items whose tensors are pieces of one memory, or absent."""
    memory = torch.zeros(60)

    def piece() -> TensorCheck:
        if draw(st.booleans()):
            return NO_TENSOR
        size, step = draw(st.integers(0, 4)), draw(st.integers(1, 3))
        return tensor_check(memory.as_strided((size,), (step,), draw(st.integers(0, 48))))

    return [(replace(ITEM, name=str(n)), piece(), piece()) for n in range(draw(st.integers(1, 5)))]


@pytest.mark.requirement("RS-ERROR-8", "RS-EXACT-11", "RS-BATCH-1")
@settings(max_examples=600, deadline=None, derandomize=True)
@given(calls())
def test_a_destination_shares_elements_with_no_other_tensor_of_a_call_and_sources_may(sides: SidesOfItems) -> None:
    def elements(check: TensorCheck) -> set[int]:
        local = torch.zeros(0) if check.local is None else check.local
        return {int(local.storage_offset()) + n * local.stride(0) for n in range(local.numel())}

    touched = [(side, elements(check)) for _, *checks in sides for side, check in zip(SIDES, checks, strict=True)]
    shared = any(
        first & second
        for (first_side, first), (second_side, second) in combinations(touched, 2)
        if "destination" in (first_side, second_side)
    )
    try:
        check_memory(sides)
    except AliasingError:
        assert shared
    else:
        assert not shared


@pytest.mark.requirement("RS-ERROR-8", "RS-ERROR-12")
def test_an_error_about_two_items_names_both() -> None:
    weights = torch.zeros(8)
    sides = [
        (replace(ITEM, name="up"), tensor_check(weights[:4]), NO_TENSOR),
        (replace(ITEM, name="down"), NO_TENSOR, tensor_check(weights[2:])),
    ]
    with pytest.raises(AliasingError, match="source 'up' and destination 'down' share elements"):
        check_memory(sides)
    check_memory(sides, idle=(1,))


@pytest.mark.requirement("RS-ERROR-4")
@pytest.mark.parametrize("left", [0, 4])
@pytest.mark.parametrize("freed", [0, 1])
def test_tensors_whose_memory_was_freed_are_missing(freed: int, left: int) -> None:
    tensors = [torch.zeros(6)[2:], torch.zeros(4)]  # the first one's address is not 0 without memory either
    assert find_memory_fault([ITEM], tensors, [(16, 16)]) is None
    tensors[freed].untyped_storage().resize_(left)
    fault = find_memory_fault([ITEM], tensors, [(16, 16)])
    assert isinstance(fault, MissingTensorError)
    assert re.search(f"{SIDES[freed]} 'layer.weight'.* storage of {left}", str(fault))
    assert find_memory_fault([ITEM], tensors, [(0, 0)]) is None  # nothing is moved


def test_an_error_with_its_rank_keeps_its_type_and_text() -> None:
    error = with_rank(7, ShapeError("expected (2,)"))
    assert type(error) is ShapeError
    assert str(error) == "rank 7: expected (2,)"


@pytest.mark.requirement("RS-ERROR-9", "RS-ERROR-12")
def test_of_the_faults_of_items_and_memory_the_first_of_the_table_is_returned_with_the_rank() -> None:
    def fault(*locals_: torch.Tensor, memory_fault: ReshardError | None = None) -> ReshardError | None:
        sides = [
            (replace(ITEM, name=str(number)), tensor_check(local), NO_TENSOR) for number, local in enumerate(locals_)
        ]
        plans = [plan(ITEM.src, ITEM.dst, ITEM.shape, 1)] * len(sides)
        return first_fault(iter(sides), plans, memory_fault, 1, CPU)

    good, short, half = torch.zeros(2, 6), torch.zeros(2, 5), torch.zeros(2, 6, dtype=torch.half)
    freed, aliased = MissingTensorError("freed"), AliasingError("shared")
    assert fault(good, good) is None
    for faulty, kind, text in (
        (fault(short, half, short), DtypeError, "rank 1: source '1': expected torch.float32"),
        (fault(good, short, short), ShapeError, "rank 1: source '1': expected a local tensor"),
        (fault(good, half, memory_fault=freed), MissingTensorError, "rank 1: freed"),
        (fault(short, memory_fault=aliased), ShapeError, "rank 1: source '0'"),
        (fault(good, memory_fault=aliased), AliasingError, "rank 1: shared"),
    ):
        assert type(faulty) is kind
        assert str(faulty).startswith(text)
