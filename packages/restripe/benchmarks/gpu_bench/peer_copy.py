"""The limit: copies from GPU to GPU by one process, without NCCL. In a process of its own, so not in turn with the others."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch
from torch import multiprocessing
from torch.distributed.tensor import Shard

from gpu_bench.clock import time_behind_wait
from gpu_bench.results import Spread
from gpu_bench.rows import noise_tensor
from gpu_bench.timing import WARM_CALLS, burst_calls
from restripe.bench.transfers import DTYPE, Row

LIMIT = 60.0  # seconds that all copies may take
LEAD = 0.01  # seconds that the GPU waits, for the host to be ahead of it


def measure_copies(selected: Sequence[Row]) -> dict[str, Spread]:
    """Return the GPU microseconds of one copy from GPU 0 to GPU 1, of what one GPU of the row sends, by row.

    Only rows where each GPU sends to one other have a copy; there is none where the process fails.
    """
    context = multiprocessing.get_context("spawn")
    inlet, outlet = context.Pipe(duplex=False)
    paired = [row for row in selected if paired_senders(row)]
    process = context.Process(target=_run, args=(paired, outlet), daemon=True)
    process.start()
    outlet.close()
    try:
        spreads: dict[str, Spread] = inlet.recv() if inlet.poll(LIMIT) else {}
    except EOFError:
        spreads = {}
    process.kill()
    return spreads


def paired_senders(row: Row) -> int:
    """Return how many GPUs send, where each sends all that it has to one other; 0 where that is not so."""
    meshes = {(move.src.mesh.ranks, move.dst.mesh.ranks) for move in row.tensors}
    placements = {placement for move in row.tensors for placement in (*move.src.placements, *move.dst.placements)}
    (sources, destinations), *more = meshes
    paired = not more and placements == {Shard(0)} and len(sources) == len(destinations)
    return len(sources) if paired else 0


def _run(selected: Sequence[Row], outlet: Connection) -> None:
    outlet.send({row.name: Spread.of(_copy_us(row)) for row in selected})


def _copy_us(row: Row) -> list[float]:
    source_gpu, destination_gpu = torch.device("cuda", 0), torch.device("cuda", 1)
    source = noise_tensor((row.size_bytes // paired_senders(row) // DTYPE.itemsize,), source_gpu)
    destination = torch.empty_like(source, device=destination_gpu)

    def copy() -> None:
        destination.copy_(source, non_blocking=True)

    count, repeats = burst_calls(row), WARM_CALLS + row.repeats
    return [1e6 * time_behind_wait(copy, count, LEAD).gpu for _ in range(repeats)][WARM_CALLS:]
