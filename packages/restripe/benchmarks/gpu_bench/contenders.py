"""The contenders that restripe's own benchmark lacks; each library is imported only where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from nccl.bindings import nccl as bindings
from nccl.core import Communicator, UniqueId, get_unique_id
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from restripe.analysis.mapping import Move
from restripe.api import Resharder
from restripe.bench.calls import Call, Contender, Ready, Unfit
from restripe.bench.case import Case
from restripe.bench.contenders import GraphRefit, OneByOne, own
from restripe.bench.ranks import Seat, why
from restripe.bench.wires import Messages
from restripe.bench.world import crowded
from restripe.transport.nccl import NcclCommunicator

BYTES = 1  # ncclUint8
GOLDEN_LIMIT = 2**20  # it looks at the address of each element, on the CPU


@dataclass(eq=False)
class Group:
    """The upstream contract: what both restripe and the upstream function take as process group."""

    rank: int
    world_size: int
    nccl_communicator: Communicator


@dataclass(eq=False)
class Carried:
    """What golden takes as process group."""

    communicator: NcclCommunicator


def meet(seat: Seat, name: str) -> Communicator:
    """nccl4py's communicator of all ranks; the same names in the same order on every rank."""
    if seat.rank == 0:
        seat.store.set(f"id/{name}", bytes(get_unique_id()))  # type: ignore[arg-type]  # torch types it narrower than it is
    made = Communicator.init(seat.size, seat.rank, UniqueId.from_bytes(seat.store.get(f"id/{name}")))
    seat.closing.callback(made.abort)
    return made


class BindingsWire:
    """Raw pointers and byte counts, straight to NCCL; `closing` ends the communicators that are split from this one."""

    def __init__(self, communicator: Communicator, closing: ExitStack) -> None:
        self._communicator, self._closing = communicator, closing
        self._comm = bindings.Comm(communicator.ptr)

    def messages(self, sends: Messages, receives: Messages) -> Call:
        comm, out, into = self._comm, _pointers(sends), _pointers(receives)

        def call() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            bindings.group_start()
            for pointer, count, peer in out:
                bindings.send(pointer, count, BYTES, peer, comm, stream)
            for pointer, count, peer in into:
                bindings.recv(pointer, count, BYTES, peer, comm, stream)
            bindings.group_end()

        return call

    def gather(self, output: torch.Tensor, part: torch.Tensor) -> Call:
        comm, pointers = self._comm, (part.data_ptr(), output.data_ptr())
        count = part.numel()
        return lambda: bindings.all_gather(*pointers, count, BYTES, comm, torch.cuda.current_stream().cuda_stream)

    def broadcast(self, buffer: torch.Tensor, root: int) -> Call:
        comm, pointer, count = self._comm, buffer.data_ptr(), buffer.numel()
        return lambda: bindings.broadcast(
            pointer, pointer, count, BYTES, root, comm, torch.cuda.current_stream().cuda_stream
        )

    def together(self, calls: Sequence[Call]) -> Call:
        def call() -> None:
            bindings.group_start()
            for one in calls:
                one()
            bindings.group_end()

        return call

    def split(self, color: int, key: int) -> BindingsWire:
        made = self._communicator.split(color, key)
        self._closing.callback(made.abort)
        return BindingsWire(made, self._closing)


def _pointers(messages: Messages) -> list[tuple[int, int, int]]:
    return [(buffer.data_ptr(), buffer.numel(), peer) for buffer, peer in messages]


class Redistribute:
    """DTensor.redistribute over torch's own NCCL group."""

    name = "DTensor.redistribute"

    def __init__(self, seat: Seat) -> None:
        dist.init_process_group(
            "nccl",
            store=PrefixStore("torch", seat.store),
            rank=seat.rank,
            world_size=seat.size,
            timeout=timedelta(seconds=seat.patience),
            device_id=seat.device,
        )
        seat.closing.callback(dist.destroy_process_group)
        self._mesh = DeviceMesh("cuda", list(range(seat.size)))

    def ready(self, case: Case) -> Ready:
        if any(not one.src.mesh.is_grid_of(one.dst.mesh) for one in case.row.tensors):
            raise Unfit("moves only within one mesh")
        (moved,) = case.row.tensors
        (src,), (dst,) = case.sources.values(), case.destinations.values()
        tensor = DTensor.from_local(src, self._mesh, moved.src.placements, run_check=False)
        last: list[DTensor] = []

        def call() -> None:
            last[:] = [tensor.redistribute(placements=moved.dst.placements)]

        return Ready(call, lambda: dst.copy_(last[0].to_local()))


class M2N:
    """NVIDIA's native reshard, tensor by tensor."""

    name = "nccl.m2n"

    def __init__(self, seat: Seat) -> None:
        self._m2n = importlib.import_module("nccl.m2n")
        self._communicator = meet(seat, self.name)
        seat.closing.callback(self._m2n.finalize)

    def ready(self, case: Case) -> Ready:
        calls = [(case.sources.get(one.name), case.destinations.get(one.name), _sides(one)) for one in case.row.tensors]

        def call() -> None:
            stream = torch.cuda.current_stream()
            for src, dst, sides in calls:
                self._m2n.reshard(src, dst, self._communicator, stream, **sides)

        return Ready(call)


def _sides(one: Move) -> dict[str, Any]:
    return {
        "src_mesh": one.src.mesh.mesh.tolist(),
        "src_placements": one.src.placements,
        "dst_mesh": one.dst.mesh.mesh.tolist(),
        "dst_placements": one.dst.placements,
    }


@dataclass(frozen=True)
class Absent:
    """A contender that is not installed, or does not start here."""

    name: str
    reason: str

    def ready(self, case: Case) -> Ready:  # noqa: ARG002 - a contender's method
        raise Unfit(self.reason)


def every(seat: Seat) -> Sequence[Contender]:
    """All contenders, in the order of the table; restripe's own and raw alone where ranks share a GPU."""
    group = Group(seat.rank, seat.size, meet(seat, "group"))
    wires = [BindingsWire(meet(seat, name), seat.closing) for name in ("raw", "graph", "each")]
    alone = Group(seat.rank, seat.size, meet(seat, "refit graph"))
    graph = GraphRefit(alone, seat.closing.enter_context(ExitStack()))
    ours = own(seat.closing.enter_context(Resharder(group)), graph, wires, seat.size)
    if crowded(seat.size):
        return ours  # other libraries are not made for it, and one that breaks down takes its process along
    return [
        *ours,
        _or_absent(Redistribute.name, seat, lambda: Redistribute(seat)),
        _or_absent(M2N.name, seat, lambda: M2N(seat)),
        _or_absent("upstream", seat, lambda: upstream(group)),
        _or_absent("golden", seat, lambda: golden(seat)),
    ]


def upstream(group: Group) -> Contender:
    """The published Python function that restripe replaces."""
    module = importlib.import_module("nemo_rl.weight_sync.xferdtensor_python")
    return OneByOne("upstream", module.xferdtensor_python_impl, group)


def golden(seat: Seat) -> Contender:
    """The reference."""
    reshard = importlib.import_module("reshard_golden").reshard
    return OneByOne("golden", reshard, Carried(NcclCommunicator(meet(seat, "golden"))), GOLDEN_LIMIT)


def _or_absent(name: str, seat: Seat, make: Callable[[], Any]) -> Contender:
    """The contender, on every rank or on none."""
    made, reason = None, ""
    try:
        made = make()
    except Exception as error:  # noqa: BLE001 - whatever keeps it from starting is what the table says
        reason = why(error)
    reasons = [one for one in seat.tell(reason) if one]
    return Absent(name, reasons[0]) if reasons or made is None else made
