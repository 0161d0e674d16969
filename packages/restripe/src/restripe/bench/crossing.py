"""What crosses from rank to rank in a row, by restripe's plans and by way of representatives."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from restripe.analysis.simulation import simulate
from restripe.analysis.traffic import loads
from restripe.bench.pieces import Way, numel, route
from restripe.bench.rows import Row


class Crossing(NamedTuple):
    """Bytes that go from one rank to another before replicas share what they have: in all, and the most into one rank."""

    total: int
    busiest: int


def crossing(row: Row) -> dict[str, Crossing]:
    """restripe's, counted in the plans of all ranks, and the representatives'."""
    planned = loads(simulate(row.tensors)["all"].sent)[1]
    found = {"restripe": planned, Way.REPRESENTATIVE.value: representatives(row)}
    return {name: Crossing(sum(each.values()), max(each.values(), default=0)) for name, each in found.items()}


def representatives(row: Row) -> Counter[int]:
    """What each rank receives where replicas get all from a representative."""
    received = Counter[int]()
    for turn, tensor in enumerate(row.tensors):
        for sender, receiver, part in route(tensor, Way.REPRESENTATIVE, turn).pieces:
            received[receiver] += (sender != receiver) * numel(part) * tensor.dtype.itemsize
    return received
