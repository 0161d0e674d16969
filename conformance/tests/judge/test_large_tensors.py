"""Large tensors, drawn on their device, hold the bytes of the oracle."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from reshard_conformance.case.files import Case, CaseError, Fault, Side
from reshard_conformance.judge import large_tensors
from reshard_conformance.judge.inputs import make_inputs
from reshard_conformance.judge.oracle import CPU, Truth

CASES = (
    Case(3, (37, 21), "uint8", Side((0, 1), ("S(0)",)), Side((2, 0, 1), ("S(1)",))),
    Case(4, (1000,), "uint8", Side((0, 1), ("R",)), Side(((2, 0), (1, 3)), ("S(0)", "S(-1)"))),
    Case(4, (9, 5, 7), "uint8", Side(((0, 1), (2, 3)), ("S(2)", "S(0)")), Side((1,), ("R",))),
    Case(4, (3, 100), "uint8", Side((0, 1, 2, 3), ("S(0)",)), Side((1,), ("R",))),
)


@pytest.mark.requirement("RS-LAYOUT-9")
@pytest.mark.parametrize("part_numel", [1, 50, 1 << 24])
@pytest.mark.parametrize("case", CASES)
def test_every_shard_has_the_bytes_of_the_oracle(monkeypatch: pytest.MonkeyPatch, case: Case, part_numel: int) -> None:
    monkeypatch.setattr(large_tensors, "PART_NUMEL", part_numel)
    for side in (case.src, case.dst):
        for rank in range(case.world_size):
            expected = Truth(case, 3).shard(side, rank)
            large = large_tensors.make_large_tensor(case, side, rank, 3, CPU, filled=True)
            assert (large is None) == (expected is None)
            if large is not None and expected is not None:
                assert torch.equal(large.tensor, expected[..., 0])
                assert large.differences(None) == []


def test_a_destination_starts_wrong_everywhere_and_one_wrong_byte_shows() -> None:
    case = CASES[0]
    large = large_tensors.make_large_tensor(case, case.dst, 1, 3, CPU, filled=False)
    expected = Truth(case, 3).shard(case.dst, 1)
    assert large is not None
    assert expected is not None
    count = large.tensor.numel()
    assert large.differences(None) == []
    assert large.differences(large.tensor) == [f"{count} of {count} elements differ"]
    large.tensor.copy_(expected[..., 0])
    assert large.differences(large.tensor) == []
    large.tensor[-1, -1] ^= 4
    assert large.differences(large.tensor) == [f"1 of {count} elements differ"]


def test_a_large_case_has_inputs_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_tensors, "LARGE_NUMEL", 1)
    case = CASES[0]
    src, dst = make_inputs(case, Truth(case, 5), 0)
    assert src.reference is not None
    assert dst.reference is not None
    assert tuple(src.reference.shape) == case.shape
    assert src.faults("source", filled=False) == []
    assert dst.faults("destination", filled=True)
    src.reference._local_tensor.zero_()  # type: ignore[union-attr]
    assert "source was written" in src.faults("source", filled=False)[0]


def test_an_idle_rank_of_a_large_case_passes_one_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_tensors, "LARGE_NUMEL", 1)
    case = Case(3, (5, 60), "uint8", Side((0,), ("R",)), Side((1,), ("R",)))
    src, dst = make_inputs(case, Truth(case, 5), 2)
    assert src is dst
    assert src.reference is not None
    assert src.reference._local_tensor is None


@pytest.mark.parametrize(
    "case",
    [
        replace(CASES[0], dtype="int16"),
        replace(CASES[0], src=Side((0, 1), ("S(0)",), "transposed")),
        replace(CASES[0], expect="error:missing", fault=Fault("src", (0,), "absent")),
    ],
)
def test_only_contiguous_bytes_can_be_large(case: Case) -> None:
    with pytest.raises(CaseError, match="contiguous uint8"):
        large_tensors.make_large_tensor(case, case.src, 0, 3, CPU, filled=True)
