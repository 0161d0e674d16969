"""Ways to move a row's tensors: restripe's own, and the same sends and receives by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from restripe.api import Resharder, reshard
from restripe.bench.calls import Call, Contender, Ready, Unfit, captured
from restripe.bench.case import Case
from restripe.bench.pieces import Way
from restripe.bench.raw import Raw
from restripe.bench.rows import DTYPE
from restripe.bench.wires import Wire
from restripe.group.inputs import Item, TensorRef
from restripe.xferdtensor_python import xferdtensor_python_impl


@dataclass(frozen=True)
class OneByOne:
    """A function with the drop-in's signature, called tensor by tensor.

    Args:
        function: as `restripe.xferdtensor_python.xferdtensor_python_impl`.
        limit: the most elements of one tensor that it can be given in reasonable time; None without a bound.
    """

    name: str
    function: Callable[..., object]
    group: Any
    limit: int | None = None

    def ready(self, case: Case) -> Ready:
        calls = []
        for tensor in case.row.tensors:
            whole = torch.Size(tensor.shape)
            if self.limit is not None and whole.numel() > self.limit:
                raise Unfit(f"takes long beyond {self.limit} elements a tensor")
            src, dst = (
                TensorRef(whole, DTYPE, case.device, held[tensor.name]) if tensor.name in held else None
                for held in (case.sources, case.destinations)
            )
            source, target = tensor.src, tensor.dst
            calls.append((src, source.mesh, source.placements, dst, target.mesh, target.placements, self.group))
        return Ready(lambda: [self.function(*arguments) for arguments in calls])


@dataclass(frozen=True)
class Reshard:
    """restripe.reshard, tensor by tensor."""

    group: Any
    name: str = "reshard"

    def ready(self, case: Case) -> Ready:
        calls = [
            (case.sources.get(one.name), case.destinations.get(one.name), one.src, one.dst, one.shape)
            for one in case.row.tensors
        ]

        def call() -> None:
            for src, dst, source, target, shape in calls:
                reshard(src, dst, self.group, src_layout=source, dst_layout=target, shape=shape, dtype=DTYPE)

        return Ready(call)


@dataclass(frozen=True)
class Refit:
    """A prepared refit: all tensors in one submission."""

    session: Resharder
    name: str = "refit"

    def ready(self, case: Case) -> Ready:
        return Ready(prepared(self.session, case, graph=False))


@dataclass(frozen=True)
class GraphRefit:
    """A prepared refit replayed from a CUDA graph, in a session that ends when the next row begins: its communicators are many.

    Args:
        group: what no other contender uses, since a session's end clears it.
        closing: ends the last session.
    """

    group: Any
    closing: ExitStack
    name: str = "refit graph"

    def ready(self, case: Case) -> Ready:
        self.closing.close()
        session = self.closing.enter_context(Resharder(self.group))
        return Ready(captured(prepared(session, case, graph=True)))


def prepared(session: Resharder, case: Case, *, graph: bool) -> Call:
    """One run of a refit of the row's tensors."""
    items = [Item(one.name, one.shape, DTYPE, one.src, one.dst) for one in case.row.tensors]
    refit = session.prepare(items, graph=graph)
    return lambda: refit.run(case.sources, case.destinations)


def own(session: Resharder, graph: GraphRefit, wires: Sequence[Wire], ranks: int) -> list[Contender]:
    """Raw and restripe's ways, in the order of the table; three wires, each with a communicator of its own.

    Two ranks have no mesh of several replicas beside another one, so nothing to broadcast from a representative.
    """
    representative = [Raw(wires[0], way=Way.REPRESENTATIVE)] if ranks >= 4 else []
    return [
        Raw(wires[0]),
        Raw(wires[1], graph=True),
        Raw(wires[2], each=True),
        *representative,
        OneByOne("drop-in", xferdtensor_python_impl, session.group),
        Reshard(session.group),
        Refit(session),
        graph,
    ]
