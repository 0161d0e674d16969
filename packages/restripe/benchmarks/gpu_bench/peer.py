"""The limit: copies from GPU to GPU by one process, without NCCL. In a process of its own, so not in turn with the others."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch
from torch import multiprocessing
from torch.distributed.tensor import Shard

from restripe.bench.case import noise
from restripe.bench.clock import ahead
from restripe.bench.ranks import WARM
from restripe.bench.results import Spread
from restripe.bench.rows import DTYPE, Row

LIMIT = 60.0  # seconds that all may take
LEAD = 0.01  # seconds that the GPU waits, for the host to be ahead of it


def copies(rows: Sequence[Row]) -> dict[str, Spread]:
    """GPU microseconds of one copy from GPU 0 to GPU 1, of what one GPU of the row sends; for rows where each sends to one other.

    Empty where the process fails.
    """
    context = multiprocessing.get_context("spawn")
    inlet, outlet = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=([row for row in rows if pairs(row)], outlet), daemon=True)
    process.start()
    outlet.close()
    try:
        found: dict[str, Spread] = inlet.recv() if inlet.poll(LIMIT) else {}
    except EOFError:
        found = {}
    process.kill()
    return found


def pairs(row: Row) -> int:
    """How many GPUs send, where each sends all that it has to one other; 0 where that is not so."""
    meshes = {(one.src.mesh.ranks, one.dst.mesh.ranks) for one in row.tensors}
    placed = {placement for one in row.tensors for placement in (*one.src.placements, *one.dst.placements)}
    (sources, destinations), *more = meshes
    paired = not more and placed == {Shard(0)} and len(sources) == len(destinations)
    return len(sources) if paired else 0


def _serve(rows: Sequence[Row], outlet: Connection) -> None:
    outlet.send({row.name: Spread.of(_times(row)) for row in rows})


def _times(row: Row) -> list[float]:
    here, there = torch.device("cuda", 0), torch.device("cuda", 1)
    source = noise((row.size // pairs(row) // DTYPE.itemsize,), 0, here)
    destination = torch.empty_like(source, device=there)

    def copy() -> None:
        destination.copy_(source, non_blocking=True)

    return [1e6 * ahead(copy, row.burst, LEAD).gpu for _ in range(WARM + row.repeats)][WARM:]
