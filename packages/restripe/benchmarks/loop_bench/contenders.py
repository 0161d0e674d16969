"""The rows between two processes on the CPU, and the drop-in as it is called there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gpu_bench.consumer import FOREIGN_MESH, OWN_MESH, ConsumerCalls, foreign_side, own_side
from gpu_bench.moves import Contender, ContendersOf
from gpu_bench.processes import connect_ranks
from gpu_bench.rows import ConsumerRow, Ranks, consumer_rows, shrink
from gpu_bench.timing import RankContext
from restripe.transport.protocol import Communicator
from restripe.xferdtensor_python import clear_xferdtensor_python_caches, xferdtensor_python_impl

RANKS = 2
DIVISOR = 64  # of every size: over gloo large tensors would hide the calls' own time


@dataclass(eq=False)
class Group:
    """A process group, as restripe takes it."""

    communicator: Communicator


def connect_group(context: RankContext, name: str, ranks: Ranks) -> Group:
    """Return a group of these ranks over gloo."""
    return Group(connect_ranks(context, name, ranks))


def make_contenders(context: RankContext) -> ContendersOf:
    """Return the drop-in with a foreign mesh class, and with restripe's, for every row."""
    names, connect = (xferdtensor_python_impl, clear_xferdtensor_python_caches), partial(connect_group, context)
    contenders: Sequence[Contender] = [
        ConsumerCalls(FOREIGN_MESH, *names, connect, foreign_side),
        ConsumerCalls(OWN_MESH, *names, connect, own_side),
    ]
    return lambda _: contenders


def cpu_rows() -> list[ConsumerRow]:
    """Return the consumer rows between two ranks, with smaller tensors."""
    return [shrink(row, DIVISOR) for row in consumer_rows(RANKS)]
