"""restripe's own calls as contenders, and their list with the hand-written move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from gpu_bench.moves import Call, Contender, PreparedMove, UnsupportedRowError, record_graph
from gpu_bench.raw import RawMove, RawTransport
from gpu_bench.routes import ReplicaStrategy
from gpu_bench.rows import RowTensors
from restripe import Item, Resharder, TensorRef, reshard
from restripe.bench.transfers import DTYPE
from restripe.xferdtensor_python import xferdtensor_python_impl


@dataclass(frozen=True)
class DropInCalls:
    """A function with the drop-in's signature, called tensor by tensor.

    Args:
        function: as `restripe.xferdtensor_python.xferdtensor_python_impl`.
        max_numel: the most elements of one tensor that it moves in reasonable time; None without a bound.
    """

    name: str
    function: Callable[..., object]
    group: Any
    max_numel: int | None = None

    def prepare(self, tensors: RowTensors) -> PreparedMove:
        calls = []
        for move in tensors.row.tensors:
            shape = torch.Size(move.shape)
            if self.max_numel is not None and shape.numel() > self.max_numel:
                raise UnsupportedRowError(f"takes long beyond {self.max_numel} elements a tensor")
            src, dst = (
                TensorRef(shape, DTYPE, tensors.device, local[move.name]) if move.name in local else None
                for local in (tensors.sources, tensors.destinations)
            )
            source_side = move.src.mesh, move.src.placements
            calls.append((src, *source_side, dst, move.dst.mesh, move.dst.placements, self.group))
        return PreparedMove(lambda: [self.function(*arguments) for arguments in calls])


@dataclass(frozen=True)
class ReshardCalls:
    """restripe.reshard, tensor by tensor."""

    group: Any
    name: str = "reshard"

    def prepare(self, tensors: RowTensors) -> PreparedMove:
        pairs = [
            (tensors.sources.get(move.name), tensors.destinations.get(move.name), move) for move in tensors.row.tensors
        ]

        def call() -> None:
            for src, dst, move in pairs:
                reshard(src, dst, self.group, src_layout=move.src, dst_layout=move.dst, shape=move.shape, dtype=DTYPE)

        return PreparedMove(call)


@dataclass(frozen=True)
class RefitCall:
    """A prepared refit: all tensors in one submission."""

    session: Resharder
    name: str = "refit"

    def prepare(self, tensors: RowTensors) -> PreparedMove:
        return PreparedMove(refit_call(self.session, tensors, graph=False))


@dataclass(frozen=True)
class RefitGraph:
    """A prepared refit replayed from a CUDA graph, in a session that ends when the next row begins: its communicators are many.

    Args:
        group: a group that no other contender uses, since a session's end clears it.
        last_session: ends the session of the row before.
    """

    group: Any
    last_session: ExitStack
    name: str = "refit graph"

    def prepare(self, tensors: RowTensors) -> PreparedMove:
        self.last_session.close()
        session = self.last_session.enter_context(Resharder(self.group))
        return PreparedMove(record_graph(refit_call(session, tensors, graph=True)))


def refit_call(session: Resharder, tensors: RowTensors, *, graph: bool) -> Call:
    """Return one run of a refit of the row's tensors."""
    items = [Item(move.name, move.shape, DTYPE, move.src, move.dst) for move in tensors.row.tensors]
    refit = session.prepare(items, graph=graph)
    return lambda: refit.run(tensors.sources, tensors.destinations)


def raw_and_restripe(
    session: Resharder, graph: RefitGraph, transports: Sequence[RawTransport], ranks: int
) -> list[Contender]:
    """Return raw and restripe's calls, in the order of the tables.

    Two ranks have no mesh of several replicas beside another one, so nothing to broadcast from a representative.

    Args:
        transports: three, each with a communicator of its own.
    """
    eager, captured, one_by_one = transports
    representative = [RawMove(eager, strategy=ReplicaStrategy.REPRESENTATIVE)] if ranks >= 4 else []
    return [
        RawMove(eager),
        RawMove(captured, graph=True),
        RawMove(one_by_one, one_by_one=True),
        *representative,
        DropInCalls("drop-in", xferdtensor_python_impl, session.group),
        ReshardCalls(session.group),
        RefitCall(session),
        graph,
    ]
