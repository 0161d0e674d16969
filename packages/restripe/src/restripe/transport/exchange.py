"""The exchange of records of different lengths, over any transport that gathers rows of one length."""

from __future__ import annotations

from collections.abc import Callable

import torch


def exchange_records(record: bytes, gather_rows: Callable[[torch.Tensor], torch.Tensor]) -> list[bytes]:
    """Return every rank's record, in rank order.

    Args:
        record: this rank's record, of any length.
        gather_rows: gathers a flat CPU tensor of every rank, all of one length, into a CPU tensor of one row a rank.
    """
    sizes = gather_rows(torch.tensor([len(record)], dtype=torch.int64, device="cpu")).flatten().tolist()
    padded = torch.zeros(max(1, *sizes), dtype=torch.uint8, device="cpu")
    if record:
        padded[: len(record)] = torch.frombuffer(bytearray(record), dtype=torch.uint8)
    return [bytes(row[:size].tolist()) for row, size in zip(gather_rows(padded), sizes, strict=True)]
