"""Tensors that are drawn where they are hold what the oracle says of small ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from reshard_conformance import vast
from reshard_conformance.cases import Case, CaseError, Fault, Side
from reshard_conformance.handing import hand
from reshard_conformance.oracle import CPU, Truth

CASES = (
    Case(3, (37, 21), "uint8", Side((0, 1), ("S(0)",)), Side((2, 0, 1), ("S(1)",))),
    Case(4, (1000,), "uint8", Side((0, 1), ("R",)), Side(((2, 0), (1, 3)), ("S(0)", "S(-1)"))),
    Case(4, (9, 5, 7), "uint8", Side(((0, 1), (2, 3)), ("S(2)", "S(0)")), Side((1,), ("R",))),
    Case(4, (3, 100), "uint8", Side((0, 1, 2, 3), ("S(0)",)), Side((1,), ("R",))),
)


@pytest.mark.requirement("RS-LAYOUT-9")
@pytest.mark.parametrize("piece", [1, 50, 1 << 24])
@pytest.mark.parametrize("case", CASES)
def test_every_shard_is_the_oracles(monkeypatch: pytest.MonkeyPatch, case: Case, piece: int) -> None:
    monkeypatch.setattr(vast, "PIECE", piece)
    for side in (case.src, case.dst):
        for rank in range(case.world_size):
            expected = Truth(case, 3).shard(side, rank)
            laid = vast.lay(case, side, rank, 3, CPU, filled=True)
            assert (laid is None) == (expected is None)
            if laid is not None and expected is not None:
                assert torch.equal(laid.tensor, expected[..., 0])
                assert laid.differences(None) == []


def test_a_destination_starts_wrong_everywhere_and_one_wrong_byte_is_found() -> None:
    case = CASES[0]
    laid = vast.lay(case, case.dst, 1, 3, CPU, filled=False)
    expected = Truth(case, 3).shard(case.dst, 1)
    assert laid is not None
    assert expected is not None
    count = laid.tensor.numel()
    assert laid.differences(None) == []
    assert laid.differences(laid.tensor) == [f"{count} of {count} elements differ"]
    laid.tensor.copy_(expected[..., 0])
    assert laid.differences(laid.tensor) == []
    laid.tensor[-1, -1] ^= 4
    assert laid.differences(laid.tensor) == [f"1 of {count} elements differ"]


def test_a_vast_case_is_handed_over_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vast, "VAST", 1)
    case = CASES[0]
    src, dst = hand(case, Truth(case, 5), 0)
    assert src.reference is not None
    assert dst.reference is not None
    assert tuple(src.reference.shape) == case.shape
    assert src.faults("source", filled=False) == []
    assert dst.faults("destination", filled=True)
    src.reference._local_tensor.zero_()  # type: ignore[union-attr]
    assert "source was written" in src.faults("source", filled=False)[0]


def test_an_idle_rank_of_a_vast_case_hands_over_one_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vast, "VAST", 1)
    case = Case(3, (5, 60), "uint8", Side((0,), ("R",)), Side((1,), ("R",)))
    src, dst = hand(case, Truth(case, 5), 2)
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
def test_only_plain_bytes_can_be_vast(case: Case) -> None:
    with pytest.raises(CaseError, match="contiguous uint8"):
        vast.lay(case, case.src, 0, 3, CPU, filled=True)
