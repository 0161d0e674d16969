"""A contender's way to be called, and how a call is recorded in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from restripe.bench.case import Case

Call = Callable[[], object]


class Unfit(Exception):  # noqa: N818 - no error: some contenders cannot play some rows
    """A row that a contender cannot play; the text says why."""


def nothing() -> None:
    """Do nothing."""


def chain(calls: Sequence[Call]) -> Call:
    """All of them in turn, as one."""
    if len(calls) == 1:
        return calls[0]
    return lambda: [call() for call in calls]


@dataclass(frozen=True)
class Ready:
    """A row made ready: `call` enqueues one move on the current stream; `land` brings its outcome to the row's destination."""

    call: Call
    land: Call = nothing


class Contender(Protocol):
    """A way to move tensors. Making a row ready may be collective and slow; it is not timed."""

    @property
    def name(self) -> str:
        """How it is shown."""

    def ready(self, case: Case) -> Ready:
        """The row made ready; Unfit where it cannot be played."""


def captured(call: Call) -> Call:
    """The call recorded in a CUDA graph, after one run outside it."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # torch's own NCCL threads may ask after events
        call()
    return graph.replay
