"""A contender's protocol: a way to move a row's tensors, and a row made ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from gpu_bench.rows import RowTensors
from restripe.bench.transfers import Row

Call = Callable[[], object]


class UnsupportedRowError(Exception):
    """A contender cannot play the row; the text says why."""


def do_nothing() -> None:
    """Do nothing."""


def call_all(calls: Sequence[Call]) -> Call:
    """Return a call that makes all calls in turn."""
    if len(calls) == 1:
        return calls[0]

    def call() -> None:
        for part in calls:
            part()

    return call


@dataclass(frozen=True)
class PreparedMove:
    """A row made ready.

    Args:
        call: enqueues one move on the current stream.
        finish: brings the outcome to the row's destinations, untimed.
        refresh: has to be called, untimed, once the row's tensors were renewed.
        steps: `call` in parts, between which the host may wait for the GPU; () for one part.
    """

    call: Call
    finish: Call = do_nothing
    refresh: Call = do_nothing
    steps: tuple[Call, ...] = ()


class Contender(Protocol):
    """A way to move tensors. To prepare a row may be collective and slow; it is not timed."""

    @property
    def name(self) -> str:
        """The name in the tables."""

    def prepare(self, tensors: RowTensors) -> PreparedMove:
        """Return the row made ready; raise UnsupportedRowError where it cannot be played."""


ContendersOf = Callable[[Row], Sequence[Contender]]


def record_graph(call: Call) -> Call:
    """Return the replay of a CUDA graph of the call, which runs once outside it before."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # torch's own NCCL threads may ask after events
        call()
    return graph.replay
