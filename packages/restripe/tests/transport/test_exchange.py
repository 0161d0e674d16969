"""Records of different lengths, exchanged over gathers of rows of one length."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from restripe.transport.exchange import exchange_records


class Ranks:
    """Gathers one rank's rows with those of ranks that exchange the other records."""

    def __init__(self, records: list[bytes], rank: int) -> None:
        self.records, self.rank = records, rank
        self.rows: list[torch.Tensor] = []

    def gather(self, row: torch.Tensor) -> torch.Tensor:
        assert row.dim() == 1
        assert row.device == torch.device("cpu")
        assert len(row)  # a transport's buffers are not empty
        self.rows.append(row)
        if len(self.rows) == 1:
            lengths = torch.tensor([[len(record)] for record in self.records], dtype=row.dtype, device="cpu")
            assert torch.equal(row, lengths[self.rank])
            return lengths
        padded = [record.ljust(len(row), b"\xff") for record in self.records]  # a transport may pad with anything
        own = self.records[self.rank]
        assert bytes(row.tolist())[: len(own)] == own
        assert max(map(len, padded)) == len(row)
        return torch.tensor([list(text) for text in padded], dtype=torch.uint8, device="cpu")


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.data())
def test_every_rank_has_every_record_in_rank_order(records: list[bytes], data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, len(records) - 1))
    ranks = Ranks(records, rank)
    assert exchange_records(records[rank], ranks.gather) == records
    assert len(ranks.rows) == 2


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_records_are_exchanged_on_the_host_in_any_mode_whatever_the_default_device(mode: type) -> None:
    records = [b"", b"x" * 70_000, b"one"]
    with torch.device("meta"), mode():
        assert exchange_records(b"one", Ranks(records, 2).gather) == records
