"""A process for each rank: they play the rows in step, and none outlives its limit."""

from __future__ import annotations

import faulthandler
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch._C._distributed_c10d import TCPStore

from gpu_bench.clock import Clock, SpinBarrier
from gpu_bench.moves import Call, ContendersOf, do_nothing
from gpu_bench.results import Result
from gpu_bench.rows import ConsumerRow, shrink
from gpu_bench.timing import PATIENCE, SHARED_PATIENCE, RankContext, play_row
from restripe.bench.transfers import EXIT_SECONDS, BenchError, Row, run_ranks
from restripe.transport.connect import meet
from restripe.transport.protocol import Communicator

HOST = "127.0.0.1"
LEAST_SECONDS, SECONDS_PER_ROW, MOST_SECONDS = 240.0, 30.0, 510.0
#: Settings that let ranks share a GPU, from NCCL 2.30 on.
SHARED_GPU_SETTINGS = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8"}
SHARED_GPU_NOTE = "several ranks share a GPU: times say nothing, only bytes do, and of consumer rows the host's times"
SHARED_GPU_DIVISOR = 8  # of the sizes of consumer rows, whose tensors would not fit twice on one GPU
SHARED_GPU_REPEATS = 5, 2  # of consumer rows, and of those of more than a thousand tensors


@dataclass(frozen=True)
class RunConfig:
    """A run as every process plays it.

    Args:
        make: is importable, and returns a rank's contenders by row.
        on_cpu: whether tensors live on the CPU; rows are consumer rows then.
    """

    size: int
    rows: tuple[Row, ...]
    make: Callable[[RankContext], ContendersOf]
    port: int
    barrier_path: Path
    on_cpu: bool = False


def connect_ranks(context: RankContext, name: str, ranks: Sequence[int] | None = None) -> Communicator:
    """Return restripe's communicator of these ranks, or of all; they connect by the same names in the same order."""
    members = range(context.size) if ranks is None else ranks
    prefix, timeout = f"bench/{name}/{list(members)}", timedelta(seconds=context.patience)
    index = members.index(context.rank)
    communicator = meet(context.store, prefix, index, len(members), context.device, timeout)
    context.cleanup.callback(communicator.abort)
    return communicator


def rank_count(asked: int | None = None) -> int:
    """Return how many ranks take part: as asked, an even number, or as many as there are GPUs.

    Raises:
        BenchError: there are not two GPUs, or not even one for the ranks asked for; or their number is not even.
    """
    if asked is None:
        return gpu_count()
    if asked < 2 or asked % 2:
        raise BenchError(f"expected an even number of ranks, at least two, got {asked}")
    if not torch.cuda.device_count():
        raise BenchError("expected a GPU for ranks to share on this host, found none")
    return asked


def gpu_count() -> int:
    """Return how many GPUs take part: all of this host, or one fewer where their number is odd.

    Raises:
        BenchError: there are not two.
    """
    count = torch.cuda.device_count() // 2 * 2
    if count < 2:
        raise BenchError(f"expected at least two GPUs on this host, found {torch.cuda.device_count()}")
    return count


def shares_gpus(ranks: int) -> bool:
    """Return whether several ranks share a GPU."""
    return ranks > torch.cuda.device_count()


def time_limit(selected: Sequence[Row], *, shared: bool = False) -> float:
    """Return the seconds that a run of these rows may take; where ranks share a GPU, the most."""
    return MOST_SECONDS if shared else min(MOST_SECONDS, max(LEAST_SECONDS, SECONDS_PER_ROW * len(selected)))


def play_rows(
    selected: Sequence[Row],
    make: Callable[[RankContext], ContendersOf],
    size: int,
    limit: float,
    *,
    on_cpu: bool = False,
) -> Iterator[Result]:
    """Play the rows on `size` ranks, and yield each row's result as it comes.

    A rank has a GPU to itself where there are enough. Else rows are played as `shared_gpu_row` has them.

    Args:
        make: as in RunConfig.
        limit: seconds after which the processes are ended.
        on_cpu: whether tensors live on the CPU; rows are consumer rows then.

    Raises:
        BenchError: a process ended early, or time ran out.
    """
    if shares_gpus(size) and not on_cpu:
        selected = [shared_gpu_row(row) for row in selected]
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory(prefix="restripe-bench-") as folder:
        barrier_path = Path(folder) / "barrier"
        barrier_path.write_bytes(bytes(64 * size))
        config = RunConfig(size, tuple(selected), make, store.port, barrier_path, on_cpu)
        yield from run_ranks(run_rank, size, (config,), len(selected), limit)


def shared_gpu_row(row: Row) -> Row:
    """Return the row as it is played where ranks share a GPU: timed once, since only its bytes say anything.

    The host's time in consumer rows says something too: these have smaller tensors, and a few repeats.
    """
    if isinstance(row, ConsumerRow):
        return replace(shrink(row, SHARED_GPU_DIVISOR), repeats=SHARED_GPU_REPEATS[len(row.tensors) > 1000])
    return replace(row, repeats=1)


def run_rank(rank: int, config: RunConfig, outlet: Connection) -> None:
    """Play the rows on one rank; rank 0 sends the results."""
    shared = shares_gpus(config.size) and not config.on_cpu
    patience = SHARED_PATIENCE if shared or config.on_cpu else PATIENCE
    device = torch.device("cpu") if config.on_cpu else select_gpu(rank, config.size)
    store = TCPStore(HOST, config.port, is_master=False, timeout=timedelta(seconds=patience))
    context = RankContext(rank, config.size, device, store, config.barrier_path, patience, shared)
    context.set_deadline(2 * patience)
    stream = nullcontext() if config.on_cpu else torch.cuda.stream(torch.cuda.Stream(device))
    with context.cleanup, torch.no_grad(), stream:
        contenders_of = config.make(context)
        align = do_nothing if config.on_cpu else _align_gpus(context)
        clock = Clock(SpinBarrier(context.barrier_path, rank, config.size), align, cpu_time=config.on_cpu)
        for row in config.rows:
            result = play_row(row, contenders_of(row), clock, context)
            if rank == 0:
                outlet.send(result)
        context.set_deadline(EXIT_SECONDS)
    faulthandler.cancel_dump_traceback_later()


def select_gpu(rank: int, ranks: int) -> torch.device:
    """Make the rank's GPU this process's current one and return it; ranks go round where there are fewer GPUs."""
    if shares_gpus(ranks):
        os.environ.update(SHARED_GPU_SETTINGS)  # before NCCL is first called, which is when it looks at them
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _align_gpus(context: RankContext) -> Call:
    """Return a small all-gather: no GPU has its end before all have begun."""
    part = torch.zeros(8, dtype=torch.uint8, device=context.device)
    output, communicator = part.repeat(context.size), connect_ranks(context, "align")
    return lambda: communicator.all_gather(output, part)
