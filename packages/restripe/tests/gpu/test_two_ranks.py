"""CUDA graphs, work handles and the second stream on two ranks, each with its GPU, or both on one where NCCL was told so."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard
from torch.multiprocessing.spawn import spawn

import restripe
from restripe import Item, Layout, Mesh, Resharder
from restripe.errors import CaptureError, PeerTimeoutError

GPUS = torch.cuda.device_count()
SHARED = GPUS == 1 and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
pytestmark = pytest.mark.skipif(
    GPUS < 2 and not SHARED, reason="needs two GPUs, or one and NCCL_MULTI_RANK_GPU_ENABLE=1 with NCCL 2.30"
)

ROWS, COLUMNS, WHOLE = (Layout(Mesh((2,), (0, 1)), (kind,)) for kind in (Shard(0), Shard(1), Replicate()))
FIRST, SECOND = (Layout(Mesh((1,), (rank,)), (Shard(0),)) for rank in (0, 1))
SHAPE = (64, 48)
LOCAL = (1 << 12, 1 << 14)  # 128 MiB
COPIES = 8  # of so many bytes: they outlast the messages, which have room between two of them
ITEMS = [
    Item("exchanged", SHAPE, torch.bfloat16, ROWS, COLUMNS),
    Item("gathered", SHAPE, torch.bfloat16, ROWS, WHOLE),
    Item("sent", SHAPE, torch.bfloat16, FIRST, SECOND),
]
Tensors = dict[str, torch.Tensor]
Body = Callable[[int], None]


def part(whole: torch.Tensor, layout: Layout, rank: int) -> torch.Tensor | None:
    """Return the rank's part of the whole."""
    if rank not in layout.mesh:
        return None
    (placement,), place = layout.placements, layout.mesh.ranks.index(rank)
    kept = whole.chunk(len(layout.mesh.ranks), placement.dim)[place] if isinstance(placement, Shard) else whole
    return kept.contiguous()


def held(rank: int, seed: int, side: str) -> Tensors:
    """Return the rank's tensors of one side, with values drawn from the seed."""
    found = {}
    for number, item in enumerate(ITEMS):
        draw = torch.Generator("cuda").manual_seed(10 * seed + number)
        whole = torch.randn(SHAPE, generator=draw, device="cuda").to(item.dtype)
        layout = item.src if side == "src" else item.dst
        mine = None if layout is None else part(whole, layout, rank)
        if mine is not None:
            found[item.name] = mine
    return found


def refill(sources: Tensors, rank: int, seed: int) -> None:
    for name, values in held(rank, seed, "src").items():
        sources[name].copy_(values)


def judge(destinations: Tensors, rank: int, seed: int) -> None:
    """Assert that every byte has the seed's value; then make all wrong again."""
    torch.cuda.synchronize()
    for name, values in held(rank, seed, "dst").items():
        assert torch.equal(destinations[name], values), f"rank {rank}: {name} of values {seed}"
        destinations[name].fill_(-7)


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    return graph


def replays(rank: int) -> None:
    """A captured refit is replayed with new values, beside eager calls and after the group's caches are cleared."""
    sources, destinations = held(rank, 0, "src"), held(rank, 1, "dst")
    others, there = held(rank, 5, "src"), held(rank, 6, "dst")
    with Resharder() as session:
        refit, eager = session.prepare(ITEMS, graph=True), session.prepare(ITEMS)
        refit.run(sources, destinations)
        judge(destinations, rank, 0)
        graph = captured(lambda: refit.run(sources, destinations))
        for seed in (1, 2, 3):
            refill(sources, rank, seed)
            graph.replay()
            if seed == 2:
                restripe.clear_caches()
            eager.run(others, there)
            judge(there, rank, 5)
            judge(destinations, rank, seed)
        del graph


def cold(rank: int) -> None:
    """A call that a graph cannot record is refused with an error that says so, and the refit works after it."""
    sources, destinations = held(rank, 0, "src"), held(rank, 1, "dst")
    with Resharder() as session:
        shared, own = session.prepare(ITEMS), session.prepare(ITEMS, graph=True)
        shared.run(sources, destinations)
        judge(destinations, rank, 0)
        with pytest.raises(CaptureError, match="graph=True"):
            captured(lambda: shared.run(sources, destinations))
        with pytest.raises(CaptureError, match="cold"):
            captured(lambda: own.run(sources, destinations))
        own.run(sources, destinations)
        judge(destinations, rank, 0)
        turned = {name: one.t().contiguous().t() for name, one in destinations.items()}
        with pytest.raises(CaptureError, match="same sizes"):
            captured(lambda: own.run(sources, turned))
        own.run(sources, turned)
        judge(turned, rank, 0)


def handles(rank: int) -> None:
    """A handle is not complete while its stream is busy, waits no longer than its timeout, and orders another stream."""
    sources, destinations = held(rank, 0, "src"), held(rank, 1, "dst")
    with Resharder() as session:
        refit = session.prepare(ITEMS)
        refit.run(sources, destinations)
        torch.cuda.synchronize()
        refill(sources, rank, 3)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000_000)
        work = refit.run(sources, destinations, stream=side)
        assert not work.is_completed()
        with pytest.raises(PeerTimeoutError):
            work.wait(timedelta(milliseconds=1))
        work.wait()
        copies = {name: one.clone() for name, one in destinations.items()}
        assert work.wait(timedelta(seconds=60))
        assert work.is_completed()
        judge(copies, rank, 3)


def beside(rank: int) -> None:
    """Local copies come after what the caller enqueued before, and before what comes next: long copies, a short message."""
    items = [
        *ITEMS,
        *(
            Item(f"local {own} {number}", LOCAL, torch.bfloat16, only, only)
            for own, only in enumerate((FIRST, SECOND))
            for number in range(COPIES)
        ),
    ]
    sources, destinations = held(rank, 0, "src"), held(rank, 1, "dst")
    names = [f"local {rank} {number}" for number in range(COPIES)]
    for side in (sources, destinations):
        side.update({name: torch.empty(LOCAL, dtype=torch.bfloat16, device="cuda") for name in names})
    with Resharder() as session:
        refit = session.prepare(items)
        for value in (1, 2, 3):
            refill(sources, rank, value)
            for name in names:
                destinations[name].fill_(-7)
            torch.cuda._sleep(20_000_000)
            for name in names:
                sources[name].fill_(value)
            refit.run(sources, destinations)
            last = destinations[names[-1]][-1].clone()  # first, since it is copied last
            copies = {one: tensor.clone() for one, tensor in destinations.items()}
            for name in names:
                sources[name].fill_(-7)
            torch.cuda.synchronize()
            for kept in (last, *map(copies.pop, names)):
                assert bool((kept == value).all()), f"rank {rank}: local copies of values {value}"
            judge(copies, rank, value)


def play(rank: int, store: str, body: Body) -> None:
    """One rank's process."""
    torch.cuda.set_device(rank % GPUS)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=2)
    body(rank)
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.requirement("RS-STREAM-1", "RS-STREAM-3", "RS-STREAM-7", "RS-STREAM-8")
@pytest.mark.parametrize("body", [replays, cold, handles, beside])
def test_on_two_ranks(tmp_path: Path, body: Body) -> None:
    spawn(play, (str(tmp_path / "store"), body), nprocs=2)
