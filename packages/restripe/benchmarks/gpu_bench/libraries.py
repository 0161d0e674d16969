"""The contenders that need NCCL: hand-written calls of nccl.bindings, and other libraries where they are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from nccl.bindings import nccl as bindings
from nccl.core import Communicator, UniqueId, get_unique_id
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from gpu_bench.consumer import (
    FOREIGN_MESH,
    OWN_MESH,
    ConsumerCalls,
    ConsumerRaw,
    foreign_side,
    own_side,
    upstream_names,
)
from gpu_bench.contenders import DropInCalls, RefitGraph, raw_and_restripe
from gpu_bench.moves import Call, Contender, ContendersOf, PreparedMove, UnsupportedRowError
from gpu_bench.processes import connect_ranks, shares_gpus
from gpu_bench.raw import Messages
from gpu_bench.rows import ConsumerRow, Ranks, RowTensors
from gpu_bench.timing import RankContext, first_line
from restripe import Resharder
from restripe.analysis.mapping import Move
from restripe.xferdtensor_python import clear_xferdtensor_python_caches, xferdtensor_python_impl

BYTES = 1  # ncclUint8
GOLDEN_MAX_NUMEL = 2**20  # it looks at the address of each element, on the CPU


@dataclass(eq=False)
class NcclGroup:
    """A process group by the upstream contract, which both restripe and the upstream function take."""

    rank: int
    world_size: int
    nccl_communicator: Communicator


@dataclass(eq=False)
class TransportGroup:
    """A process group as golden takes it, with a communicator of restripe's."""

    communicator: Any


def connect_nccl(context: RankContext, name: str, ranks: Sequence[int] | None = None) -> Communicator:
    """Return nccl4py's communicator of these ranks, or of all; they connect by the same names in the same order."""
    members = range(context.size) if ranks is None else ranks
    key = f"id/{name}/{list(members)}"
    if context.rank == members[0]:
        context.store.set(key, bytes(get_unique_id()))  # type: ignore[arg-type]  # torch types it narrower than it is
    unique_id = UniqueId.from_bytes(context.store.get(key))
    communicator = Communicator.init(len(members), members.index(context.rank), unique_id)
    context.cleanup.callback(communicator.abort)
    return communicator


def connect_group(context: RankContext, name: str, ranks: Ranks) -> NcclGroup:
    """Return a process group of these ranks."""
    return NcclGroup(ranks.index(context.rank), len(ranks), connect_nccl(context, name, ranks))


class BindingsTransport:
    """Raw pointers and byte counts, straight to NCCL; `cleanup` ends the communicators that are split from this one."""

    def __init__(self, communicator: Communicator, cleanup: ExitStack) -> None:
        self._communicator, self._cleanup = communicator, cleanup
        self._comm = bindings.Comm(communicator.ptr)

    def p2p_group(self, sends: Messages, receives: Messages) -> Call:
        comm, outgoing, incoming = self._comm, _pointers(sends), _pointers(receives)

        def call() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            bindings.group_start()
            for pointer, count, peer in outgoing:
                bindings.send(pointer, count, BYTES, peer, comm, stream)
            for pointer, count, peer in incoming:
                bindings.recv(pointer, count, BYTES, peer, comm, stream)
            bindings.group_end()

        return call

    def all_gather(self, output: torch.Tensor, part: torch.Tensor) -> Call:
        comm, pointers = self._comm, (part.data_ptr(), output.data_ptr())
        count = part.numel()
        return lambda: bindings.all_gather(*pointers, count, BYTES, comm, torch.cuda.current_stream().cuda_stream)

    def broadcast(self, buffer: torch.Tensor, root: int) -> Call:
        comm, pointer, count = self._comm, buffer.data_ptr(), buffer.numel()
        return lambda: bindings.broadcast(
            pointer, pointer, count, BYTES, root, comm, torch.cuda.current_stream().cuda_stream
        )

    def collective_group(self, calls: Sequence[Call]) -> Call:
        def call() -> None:
            bindings.group_start()
            for collective in calls:
                collective()
            bindings.group_end()

        return call

    def split(self, color: int, key: int) -> BindingsTransport:
        communicator = self._communicator.split(color, key)
        self._cleanup.callback(communicator.abort)
        return BindingsTransport(communicator, self._cleanup)


def _pointers(messages: Messages) -> list[tuple[int, int, int]]:
    return [(buffer.data_ptr(), buffer.numel(), peer) for buffer, peer in messages]


class Redistribute:
    """DTensor.redistribute over torch's own NCCL group."""

    name = "DTensor.redistribute"

    def __init__(self, context: RankContext) -> None:
        dist.init_process_group(
            "nccl",
            store=PrefixStore("torch", context.store),
            rank=context.rank,
            world_size=context.size,
            timeout=timedelta(seconds=context.patience),
            device_id=context.device,
        )
        context.cleanup.callback(dist.destroy_process_group)
        self._mesh = DeviceMesh("cuda", list(range(context.size)))

    def prepare(self, tensors: RowTensors) -> PreparedMove:
        if any(not move.src.mesh.is_grid_of(move.dst.mesh) for move in tensors.row.tensors):
            raise UnsupportedRowError("moves only within one mesh")
        (move,) = tensors.row.tensors
        (src,), (dst,) = tensors.sources.values(), tensors.destinations.values()
        tensor = DTensor.from_local(src, self._mesh, move.src.placements, run_check=False)
        last: list[DTensor] = []

        def call() -> None:
            last[:] = [tensor.redistribute(placements=move.dst.placements)]

        return PreparedMove(call, lambda: dst.copy_(last[0].to_local()))


class M2N:
    """NVIDIA's native reshard, tensor by tensor."""

    name = "nccl.m2n"

    def __init__(self, context: RankContext) -> None:
        self._m2n = importlib.import_module("nccl.m2n")
        self._communicator = connect_nccl(context, self.name)
        context.cleanup.callback(self._m2n.finalize)

    def prepare(self, tensors: RowTensors) -> PreparedMove:
        calls = [
            (tensors.sources.get(move.name), tensors.destinations.get(move.name), _m2n_sides(move))
            for move in tensors.row.tensors
        ]

        def call() -> None:
            stream = torch.cuda.current_stream()
            for src, dst, sides in calls:
                self._m2n.reshard(src, dst, self._communicator, stream, **sides)

        return PreparedMove(call)


def _m2n_sides(move: Move) -> dict[str, Any]:
    return {
        "src_mesh": move.src.mesh.mesh.tolist(),
        "src_placements": move.src.placements,
        "dst_mesh": move.dst.mesh.mesh.tolist(),
        "dst_placements": move.dst.placements,
    }


@dataclass(frozen=True)
class AbsentLibrary:
    """A contender that is not installed, or does not start here."""

    name: str
    reason: str

    def prepare(self, tensors: RowTensors) -> PreparedMove:  # noqa: ARG002 - a contender's method
        raise UnsupportedRowError(self.reason)


def make_contenders(context: RankContext, upstream: str = "") -> ContendersOf:
    """Return the contenders by row, in the order of the tables; libraries are left out where ranks share a GPU.

    Args:
        upstream: the module of the function that restripe replaces; "" leaves it out.
    """
    everyone = tuple(range(context.size))
    group = connect_group(context, "group", everyone)
    transports = [BindingsTransport(connect_nccl(context, name), context.cleanup) for name in ("raw", "graph", "each")]
    graph_group = connect_group(context, "refit graph", everyone)
    graph = RefitGraph(graph_group, context.cleanup.enter_context(ExitStack()))
    session = context.cleanup.enter_context(Resharder(group))
    contenders = raw_and_restripe(session, graph, transports, context.size)
    consumers = consumer_contenders(context)
    if not shares_gpus(context.size):  # libraries are not made for it, and one that breaks down takes its process along
        contenders.append(_or_absent(Redistribute.name, context, lambda: Redistribute(context)))
        contenders.append(_or_absent(M2N.name, context, lambda: M2N(context)))
    if upstream:
        contenders.append(_or_absent("upstream", context, lambda: upstream_calls(upstream, group)))
        consumers.append(_or_absent("upstream", context, lambda: upstream_consumer(upstream, context)))
    if not shares_gpus(context.size):
        contenders.append(_or_absent("golden", context, lambda: golden(context)))
    return lambda row: consumers if isinstance(row, ConsumerRow) else contenders


def consumer_contenders(context: RankContext) -> list[Contender]:
    """Return the contenders of consumer rows: raw, and the drop-in with a foreign mesh class and with restripe's."""
    names = xferdtensor_python_impl, clear_xferdtensor_python_caches

    def transport(name: str, ranks: Ranks) -> BindingsTransport:
        return BindingsTransport(connect_nccl(context, name, ranks), context.cleanup)

    connect = partial(connect_group, context)
    return [
        ConsumerRaw(transport),
        ConsumerCalls(FOREIGN_MESH, *names, connect, foreign_side),
        ConsumerCalls(OWN_MESH, *names, connect, own_side),
    ]


def upstream_calls(name: str, group: NcclGroup) -> Contender:
    """Return the function that restripe replaces, tensor by tensor."""
    return DropInCalls("upstream", upstream_names(name)[0], group)


def upstream_consumer(name: str, context: RankContext) -> Contender:
    """Return the function that restripe replaces as a consumer calls it."""
    return ConsumerCalls("upstream", *upstream_names(name), partial(connect_group, context), foreign_side)


def golden(context: RankContext) -> Contender:
    """Return the reference."""
    reshard = importlib.import_module("reshard_golden").reshard
    return DropInCalls("golden", reshard, TransportGroup(connect_ranks(context, "golden")), GOLDEN_MAX_NUMEL)


def _or_absent(name: str, context: RankContext, make: Callable[[], Any]) -> Contender:
    """Return the contender, on every rank or on none."""
    contender, reason = None, ""
    try:
        contender = make()
    except Exception as error:  # noqa: BLE001 - whatever keeps it from starting is what the table says
        reason = first_line(error)
    reasons = [text for text in context.all_gather(reason) if text]
    return AbsentLibrary(name, reasons[0]) if reasons or contender is None else contender
