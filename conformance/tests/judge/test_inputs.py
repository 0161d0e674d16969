"""The inputs of a rank, with and without a fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from reshard_conformance.case.files import Case, CaseError, Fault, Side
from reshard_conformance.judge.inputs import (
    MeshRef,
    RankInput,
    Segmented,
    as_seen_by,
    check_fault,
    make_inputs,
    torch_placements,
)
from reshard_conformance.judge.oracle import Truth

CASE = Case(5, (6, 4), "float32", Side((0, 1), ("S(0)",)), Side((1, 2, 3), ("S(0)",), "sliced"), expect="error:missing")


def inputs_with(fault: Fault | None, rank: int) -> tuple[RankInput, RankInput]:
    case = replace(CASE, fault=fault)
    check_fault(case)
    return make_inputs(case, Truth(case, 0), rank)


def local(side: RankInput) -> torch.Tensor:
    assert side.reference is not None
    assert side.reference._local_tensor is not None
    return side.reference._local_tensor


def test_a_rank_passes_its_shards() -> None:
    src, dst = inputs_with(None, 1)
    for side in (src, dst):
        assert side.reference is not None
        assert side.reference.shape == torch.Size([6, 4])
        assert side.reference.dtype == torch.float32
        assert side.reference.device == torch.device("cpu")
    assert local(src).shape == (3, 4)
    assert local(dst).shape == (2, 4)
    assert not local(dst).is_contiguous()


def test_a_rank_outside_a_mesh_passes_none() -> None:
    assert inputs_with(None, 0)[1] == RankInput()
    assert inputs_with(None, 2)[0] == RankInput()


@pytest.mark.requirement("RS-LAYOUT-3")
def test_an_idle_rank_passes_shape_and_dtype() -> None:
    src, dst = inputs_with(None, 4)
    assert src.reference is not None
    assert src.reference is dst.reference
    assert (src.reference.shape, src.reference.dtype) == (torch.Size([6, 4]), torch.float32)
    assert src.reference._local_tensor is None


def test_the_source_holds_its_bytes_and_the_destination_none_of_them() -> None:
    src, dst = inputs_with(None, 1)
    assert src.buffer is not None
    assert dst.buffer is not None
    assert dst.expected is not None
    truth = Truth(CASE, 0)
    assert torch.equal(src.buffer.content, truth.global_bytes[3:])
    assert torch.equal(dst.expected, truth.global_bytes[:2])
    assert not (dst.buffer.content == dst.expected).any()
    assert dst.faults("destination", filled=True)
    dst.buffer.content.copy_(dst.expected)
    assert dst.faults("destination", filled=True) == []
    assert "destination was written: " in dst.faults("destination", filled=False)[0]


def test_a_replaced_tensor_shows() -> None:
    src, _ = inputs_with(None, 1)
    assert not src.was_replaced()
    assert src.reference is not None
    src.reference._local_tensor = torch.zeros(3, 4)
    assert src.was_replaced()


def test_an_absent_tensor_is_none() -> None:
    assert inputs_with(Fault("src", (1,), "absent"), 1)[0] == RankInput()
    assert inputs_with(Fault("src", (4,), "absent"), 4) == (RankInput(), RankInput())
    assert inputs_with(Fault("src", (1,), "absent"), 0)[0].reference is not None


def test_a_wrong_shape_is_one_of_the_two() -> None:
    src, _ = inputs_with(Fault("src", (1,), "local_shape", (3, 9)), 1)
    assert local(src).shape == (3, 9)
    assert src.reference is not None
    assert src.reference.shape == (6, 4)
    src, _ = inputs_with(Fault("src", (1,), "global_shape", (5, 4)), 1)
    assert local(src).shape == (3, 4)
    assert src.reference is not None
    assert src.reference.shape == (5, 4)


@pytest.mark.parametrize("rank", [1, 4])
def test_another_dtype_is_that_of_reference_and_tensor(rank: int) -> None:
    src, _ = inputs_with(Fault("src", (1, 4), "dtype", "bool"), rank)
    assert src.reference is not None
    assert src.reference.dtype == torch.bool
    assert rank == 4 or local(src).dtype == torch.bool


def test_another_device_is_that_of_reference_and_tensor() -> None:
    src, _ = inputs_with(Fault("src", (1,), "device"), 1)
    assert src.reference is not None
    assert src.reference.device == local(src).device == torch.device("meta")


def test_a_stray_tensor_is_on_a_rank_outside() -> None:
    assert local(inputs_with(Fault("src", (2,), "stray"), 2)[0]).shape == (6, 4)


@pytest.mark.parametrize(("src_memory", "dst_memory"), [("contiguous", "sliced"), ("sliced", "transposed")])
def test_an_alias_shares_elements_and_the_source_is_still_compared(src_memory: str, dst_memory: str) -> None:
    fault = Fault("dst", (1,), "alias")
    case = replace(
        CASE, src=replace(CASE.src, memory=src_memory), dst=replace(CASE.dst, memory=dst_memory), fault=fault
    )
    check_fault(case)
    src, dst = make_inputs(case, Truth(case, 0), 1)
    assert local(src).data_ptr() == local(dst).data_ptr()
    assert local(dst).shape == (2, 4)
    assert src.faults("source", filled=False) == []
    local(dst).fill_(1)
    assert src.faults("source", filled=False)


def test_a_fault_in_placements_changes_the_layout_of_that_rank_alone() -> None:
    case = replace(CASE, fault=Fault("src", (1,), "placements", ("S(1)",)))
    assert as_seen_by(case, 1).src.placements == ("S(1)",)
    assert as_seen_by(case, 0) is case
    assert local(make_inputs(as_seen_by(case, 1), Truth(case, 0), 1)[0]).shape == (6, 2)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("src", (2,), "absent"),
        Fault("src", (2,), "dtype", "int8"),
        Fault("src", (2,), "global_shape", (1,)),
        Fault("dst", (4,), "device"),
        Fault("src", (0,), "alias"),
        Fault("src", (0,), "stray"),
    ],
)
def test_a_fault_that_a_rank_cannot_have_is_refused(fault: Fault) -> None:
    with pytest.raises(CaseError, match=r"field 'fault\.ranks'"):
        inputs_with(fault, fault.ranks[0])


def test_placements_are_those_of_torch() -> None:
    placements = torch_placements(Side(((0, 1), (2, 3)), ("S(-2)", "R")))
    assert placements == (Shard(-2), Replicate())
    assert [type(placement) for placement in placements] == [Shard, Replicate]
    (strided,) = torch_placements(Side((0,), ("SS(1,3)",)))
    assert (type(strided).__name__, strided.dim, strided.split_factor) == ("_StridedShard", 1, 3)  # type: ignore[attr-defined]  # of the strided one
    assert torch_placements(Side((0,), ("SG(-1,[2,0])",))) == (Segmented(-1, (2, 0)),)
    assert torch_placements(Side((0,), ("P(sum)",))) == (Partial("sum"),)


def test_a_mesh_has_both_names() -> None:
    mesh = MeshRef(Side(((3, 1), (0, 2)), ("R", "R")))
    assert mesh.mesh.tolist() == mesh._mesh.tolist() == [[3, 1], [0, 2]]
    assert (mesh.mesh.dtype, mesh.ndim) == (torch.int64, 2)
