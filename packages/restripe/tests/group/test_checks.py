"""What a rank passes is held against its plan, in the order of the table of errors, and against each other."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

import pytest
import torch
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st
from torch.distributed.tensor import Shard

from restripe import Layout, Mesh
from restripe.errors import AliasingError, DeviceError, DtypeError, MissingTensorError, ReshardError, ShapeError
from restripe.execution.memory import geometry
from restripe.group.checks import Given, check, check_memory
from restripe.group.inputs import SIDES, Whole
from restripe.planning.planner import plan

CPU = torch.device("cpu")
ROWS, COLUMNS = Layout(Mesh((2,), (0, 1)), (Shard(0),)), Layout(Mesh((2,), (0, 2)), (Shard(1),))
ITEM = Whole("layer.weight", (4, 6), torch.float32, ROWS, COLUMNS)
NONE = Given(None, None, None)


def given(local: torch.Tensor | None, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None) -> Given:
    return Given(shape, dtype, local)


def held(rank: int, src: Given, dst: Given, device: torch.device = CPU) -> None:
    check(ITEM, plan(ITEM.src, ITEM.dst, ITEM.shape, rank), rank, device, src, dst)


@pytest.mark.requirement("RS-ERROR-12")
def test_a_good_call_is_accepted() -> None:
    held(0, given(torch.zeros(2, 6)), given(torch.zeros(4, 3)))
    held(1, given(torch.zeros(2, 6), (4, 6), torch.float32), NONE)
    held(2, NONE, given(torch.zeros(4, 3)))
    held(3, given(None, (4, 6), torch.float32), given(None, (4, 6), torch.float32))


FAULTS = [
    (1, NONE, NONE, MissingTensorError, r"source 'layer.weight'.*rank 1.*\(2, 6\), got none"),
    (2, NONE, NONE, MissingTensorError, r"destination 'layer.weight'.*rank 2.*\(4, 3\), got none"),
    (1, given(torch.zeros(2, 6)), given(torch.zeros(4, 3)), MissingTensorError, r"destination.*must pass None, got a"),
    (
        1,
        given(torch.zeros(2, 6, device="meta")),
        NONE,
        DeviceError,
        r"source.*expected a tensor on cpu, got one on meta",
    ),
    (1, given(torch.zeros(2, 6, dtype=torch.half)), NONE, DtypeError, r"source.*float32, got torch.float16.*not cast"),
    (1, given(torch.zeros(2, 6), None, torch.half), NONE, DtypeError, r"source.*float32, got torch.float16"),
    (
        2,
        NONE,
        given(torch.zeros(4, 3), (4, 7)),
        ShapeError,
        r"destination.*expected global shape \(4, 6\), got \(4, 7\)",
    ),
    (1, given(torch.zeros(6, 2)), NONE, ShapeError, r"source.*local tensor of \(2, 6\).*got \(6, 2\).*torch.chunk"),
    (2, NONE, given(torch.zeros(4).expand(3, 4).t()), AliasingError, r"destination 'layer.weight'.*own elements share"),
]


@pytest.mark.requirement("RS-ERROR-4", "RS-ERROR-5", "RS-ERROR-6", "RS-ERROR-7", "RS-ERROR-8", "RS-ERROR-12")
@pytest.mark.parametrize(("rank", "src", "dst", "kind", "text"), FAULTS)
def test_a_fault_names_tensor_expected_and_actual(
    rank: int, src: Given, dst: Given, kind: type[ReshardError], text: str
) -> None:
    with pytest.raises(kind) as caught:
        held(rank, src, dst)
    assert re.search(text, str(caught.value))


@pytest.mark.requirement("RS-ERROR-9")
def test_the_first_fault_of_the_table_wins_on_either_side() -> None:
    wrong = torch.zeros(9, dtype=torch.half)
    with pytest.raises(MissingTensorError):
        held(0, given(wrong), NONE)
    with pytest.raises(DeviceError):
        held(0, given(wrong), given(torch.zeros(4, 3, device="meta")))
    with pytest.raises(DtypeError):
        held(0, given(torch.zeros(9)), given(torch.zeros(4, 3, dtype=torch.half)))
    shared = torch.zeros(9)
    with pytest.raises(ShapeError):
        held(0, given(shared), given(shared))


Requests = list[tuple[Whole, Given, Given]]


def lie(requests: Requests, idle: tuple[int, ...] = ()) -> None:
    """Check where the tensors of a call lie; this rank moves nothing of the requests of these numbers."""
    check_memory(
        [item for item, _, _ in requests],
        [given.local for _, *sides in requests for given in sides],
        [
            (0, 0) if number in idle else (reach(src.local), reach(dst.local))
            for number, (_, src, dst) in enumerate(requests)
        ],
    )


def reach(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else geometry(tensor).extent


@pytest.mark.requirement("RS-ERROR-8", "RS-EXACT-11")
def test_sides_that_share_elements_are_refused_and_sides_that_interleave_are_not() -> None:
    memory = torch.zeros(2, 6, 2)
    inside = memory.flatten()[1::2]
    lie([(ITEM, given(memory[..., 0]), given(inside.view(4, 3)))])
    text = r"(source|destination) 'layer.weight' and (source|destination) 'layer.weight' share elements"
    with pytest.raises(AliasingError, match=text):
        lie([(ITEM, given(memory[..., 0]), given(memory.flatten()[::2].view(4, 3)))])


@pytest.mark.requirement("RS-ERROR-8")
def test_aliasing_is_no_fault_where_the_rank_moves_nothing() -> None:
    item = replace(ITEM, shape=(1, 6), src=ROWS, dst=Layout(Mesh((2,), (0, 1)), (Shard(0),)))
    idle = plan(item.src, item.dst, item.shape, 1)
    assert idle.idle
    empty = torch.zeros(0, 6)
    check(item, idle, 1, CPU, given(empty), given(empty))
    same = given(torch.zeros(4))
    lie([(item, same, same), (item, same, same)], idle=(0, 1))


@st.composite
def calls(draw: st.DrawFn) -> Requests:
    """Requests whose tensors are pieces of one memory, or absent."""
    memory = torch.zeros(60)

    def piece() -> Given:
        if draw(st.booleans()):
            return NONE
        size, step = draw(st.integers(0, 4)), draw(st.integers(1, 3))
        return given(memory.as_strided((size,), (step,), draw(st.integers(0, 48))))

    return [(replace(ITEM, name=str(n)), piece(), piece()) for n in range(draw(st.integers(1, 5)))]


@pytest.mark.requirement("RS-ERROR-8", "RS-EXACT-11", "RS-BATCH-1")
@settings(max_examples=600, deadline=None, derandomize=True)
@hypothesis_given(calls())
def test_a_destination_shares_elements_with_no_other_tensor_of_a_call_and_sources_may(requests: Requests) -> None:
    def elements(one: Given) -> set[int]:
        local = torch.zeros(0) if one.local is None else one.local
        return {int(local.storage_offset()) + n * local.stride(0) for n in range(local.numel())}

    sides = [(name, elements(one)) for _, *both in requests for name, one in zip(("src", "dst"), both, strict=True)]
    shared = any(mine & yours for (one, mine), (other, yours) in combinations(sides, 2) if "dst" in (one, other))
    try:
        lie(requests)
    except AliasingError:
        assert shared
    else:
        assert not shared


@pytest.mark.requirement("RS-ERROR-8", "RS-ERROR-12")
def test_an_error_about_two_items_names_both() -> None:
    weights = torch.zeros(8)
    requests = [
        (replace(ITEM, name="up"), given(weights[:4]), NONE),
        (replace(ITEM, name="down"), NONE, given(weights[2:])),
    ]
    with pytest.raises(AliasingError, match="source 'up' and destination 'down' share elements"):
        lie(requests)
    lie(requests, idle=(1,))


@pytest.mark.requirement("RS-ERROR-4")
@pytest.mark.parametrize("left", [0, 4])
@pytest.mark.parametrize("freed", [0, 1])
def test_tensors_whose_memory_was_freed_are_missing(freed: int, left: int) -> None:
    tensors = [torch.zeros(6)[2:], torch.zeros(4)]  # of the first nothing lies at address 0
    check_memory([ITEM], tensors, [(16, 16)])
    tensors[freed].untyped_storage().resize_(left)
    with pytest.raises(MissingTensorError, match=f"{SIDES[freed]} 'layer.weight'.* storage of {left}"):
        check_memory([ITEM], tensors, [(16, 16)])
    check_memory([ITEM], tensors, [(0, 0)])  # nothing is moved
