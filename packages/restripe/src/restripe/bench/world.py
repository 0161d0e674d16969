"""A process for each GPU: they play the rows in step, and none outlives its limit."""

from __future__ import annotations

import faulthandler
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic
from typing import NoReturn

import torch
from torch import multiprocessing
from torch._C._distributed_c10d import TCPStore

from restripe.api import Resharder
from restripe.bench.calls import Contender
from restripe.bench.clock import Clock, Gate
from restripe.bench.contenders import GraphRefit, own
from restripe.bench.ranks import CROWDED, PATIENCE, Seat, play
from restripe.bench.results import Result
from restripe.bench.rows import Row
from restripe.bench.wires import ModuleWire
from restripe.transport import connect as comm
from restripe.transport.protocol import Communicator

HOST = "127.0.0.1"
LEAVE = 20.0  # seconds for a process to end by itself
SHORTEST, EACH, LONGEST = 240.0, 30.0, 510.0  # seconds of a run: at least, a row, and at most
#: What lets ranks share a GPU, from NCCL 2.30 on.
SHARING = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8"}
NO_TIMES = "several ranks share a GPU: times say nothing, only bytes do"


class BenchError(RuntimeError):
    """The benchmark cannot go on; the text says what happened."""


@dataclass(frozen=True)
class Plan:
    """What every process is told. `make` is importable, and gives the contenders of a rank."""

    size: int
    rows: tuple[Row, ...]
    make: Callable[[Seat], Sequence[Contender]]
    port: int
    gate: Path


@dataclass(eq=False)
class Group:
    """What restripe is handed here: a communicator of its own making."""

    communicator: Communicator


def meet(seat: Seat, name: str) -> Communicator:
    """A communicator of all ranks that restripe makes; the same names in the same order on every rank."""
    made = comm.meet(seat.store, f"bench/{name}", seat.rank, seat.size, seat.device, timedelta(seconds=seat.patience))
    seat.closing.callback(made.abort)
    return made


def restripes(seat: Seat) -> list[Contender]:
    """restripe's ways, and raw through its own communicators."""
    wires = [ModuleWire(meet(seat, name), seat.closing) for name in ("raw", "graph", "each")]
    session = seat.closing.enter_context(Resharder(Group(meet(seat, "group"))))
    graph = GraphRefit(Group(meet(seat, "refit graph")), seat.closing.enter_context(ExitStack()))
    return own(session, graph, wires, seat.size)


def taking_part(asked: int | None = None) -> int:
    """How many ranks take part: as asked, an even number, or as many as there are GPUs.

    Raises:
        BenchError: there are not two GPUs, or not even one for the ranks asked for; or their number is not even.
    """
    if asked is None:
        return gpus()
    if asked < 2 or asked % 2:
        raise BenchError(f"expected an even number of ranks, at least two, got {asked}")
    if not torch.cuda.device_count():
        raise BenchError("expected a GPU for ranks to share on this host, found none")
    return asked


def allowed(rows: Sequence[Row]) -> float:
    """The seconds that a run of these rows may take."""
    return min(LONGEST, max(SHORTEST, EACH * len(rows)))


def crowded(ranks: int) -> bool:
    """Whether several ranks share a GPU."""
    return ranks > torch.cuda.device_count()


def gpus() -> int:
    """How many GPUs take part: all of this host, or one fewer where their number is odd.

    Raises:
        BenchError: there are not two.
    """
    found = torch.cuda.device_count() // 2 * 2
    if found < 2:
        raise BenchError(f"expected at least two GPUs on this host, found {torch.cuda.device_count()}")
    return found


def results(
    rows: Sequence[Row], make: Callable[[Seat], Sequence[Contender]], size: int, limit: float
) -> Iterator[Result]:
    """Play the rows on `size` ranks, and give each row's result as it comes.

    A rank has a GPU to itself where there are enough. Else every row is timed once, and only its bytes say anything.

    Args:
        limit: seconds after which the processes are ended.

    Raises:
        BenchError: a process ended early, or time ran out.
    """
    if crowded(size):
        rows = [row.once for row in rows]
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="restripe-bench-") as folder:
        gate = Path(folder) / "gate"
        gate.write_bytes(bytes(64 * size))
        plan = Plan(size, tuple(rows), make, store.port, gate)
        inlet, outlet = context.Pipe(duplex=False)
        ranks = [context.Process(target=serve, args=(rank, plan, outlet), daemon=True) for rank in range(size)]
        for process in ranks:
            process.start()
        outlet.close()
        try:
            yield from _receive(inlet, ranks, len(rows), monotonic() + limit)
        finally:
            for process in ranks:
                process.join(LEAVE)
                process.kill()


def _receive(inlet: Connection, ranks: Sequence[BaseProcess], count: int, deadline: float) -> Iterator[Result]:
    for _ in range(count):
        while not inlet.poll(1.0):
            dead = [rank for rank, process in enumerate(ranks) if process.exitcode not in {None, 0}]
            if dead or monotonic() > deadline:
                _end(ranks, f"ranks {dead} ended early" if dead else "time ran out")
        try:
            result: Result = inlet.recv()
        except EOFError:
            _end(ranks, "every rank ended early")
        yield result


def _end(ranks: Sequence[BaseProcess], what: str) -> NoReturn:
    for process in ranks:
        process.kill()
    raise BenchError(f"{what}; what they wrote last is above")


def serve(rank: int, plan: Plan, outlet: Connection) -> None:
    """What one process does: rank 0 sends the results."""
    patience = CROWDED if crowded(plan.size) else PATIENCE
    device = home(rank, plan.size)
    store = TCPStore(HOST, plan.port, is_master=False, timeout=timedelta(seconds=patience))
    seat = Seat(rank, plan.size, device, store, plan.gate, patience)
    seat.alarm(2 * patience)
    with seat.closing, torch.no_grad(), torch.cuda.stream(torch.cuda.Stream(device)):
        contenders = plan.make(seat)
        clock = Clock(Gate(seat.gate, rank, plan.size), _align(seat))
        for row in plan.rows:
            result = play(row, contenders, clock, seat)
            if rank == 0:
                outlet.send(result)
        seat.alarm(LEAVE)
    faulthandler.cancel_dump_traceback_later()


def home(rank: int, ranks: int) -> torch.device:
    """The GPU of a rank, made this process's current one; ranks go round where there are fewer GPUs."""
    if crowded(ranks):
        os.environ.update(SHARING)  # before NCCL is first called, which is when it looks at them
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _align(seat: Seat) -> Callable[[], object]:
    """A small all-gather: no GPU has its end before all have begun."""
    part = torch.zeros(8, dtype=torch.uint8, device=seat.device)
    return ModuleWire(meet(seat, "align")).gather(part.repeat(seat.size), part)
