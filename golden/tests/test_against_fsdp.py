"""golden against FSDP2 over tensor parallelism itself, on gloo: what eight processes really hold, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from reshard_golden import GoldenError, reshard

from .layouts import Mesh, reference

SIZE = 8
COLUMNS = 3
#: Mesh shapes, the names of the dims that FSDP2 takes, and numbers of rows.
DESCRIBED = (
    ((4, 2), ("dp",), (8, 14, 10, 7, 3, 1)),
    ((2, 4), ("dp",), (8, 9, 17, 5)),
    ((2, 2, 2), ("replica", "dp"), (8, 11, 9)),
)
#: Where FSDP2 holds rows that its placements do not describe, in the mesh of 4 x 2.
UNDESCRIBED = (9, 17)


@dataclass(frozen=True)
class Gloo:
    """A communicator over torch's default group."""

    rank: int
    size: int = SIZE

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def broadcast(self, buffer: torch.Tensor, root: int, stream: torch.cuda.Stream | None = None) -> None:
        dist.broadcast(buffer, root)


def weight(grid: tuple[int, ...], names: tuple[str, ...], whole: torch.Tensor) -> DTensor:
    """The weight of a linear layer with these values, cut by rows over the last mesh dim, then by FSDP2."""
    mesh = init_device_mesh("cpu", grid, mesh_dim_names=(*names, "tp"))
    layer = torch.nn.Linear(COLUMNS, len(whole), bias=False)
    layer.weight.data.copy_(whole)
    parallelize_module(layer, mesh["tp"], ColwiseParallel())
    fully_shard(layer, mesh=mesh[names])
    found = layer.weight
    assert isinstance(found, DTensor)
    return found


def move(held: DTensor, communicator: Gloo, *, back: bool = False) -> torch.Tensor:
    """What golden makes of the weight on every rank whole; or of the whole (as arange has it), for the weight's place."""
    whole = torch.arange(held.numel(), dtype=held.dtype).view(held.shape)
    local = torch.zeros_like(held.to_local()) if back else torch.zeros_like(whole)
    everywhere = Mesh(torch.arange(SIZE)), (Replicate(),)
    spread = Mesh(held.device_mesh.mesh), held.placements
    source = reference(tuple(held.shape), held.dtype, whole if back else held.to_local())
    target = reference(tuple(held.shape), held.dtype, local)
    src, dst = (everywhere, spread) if back else (spread, everywhere)
    reshard(source, *src, target, *dst, communicator)
    return local


def compare(communicator: Gloo) -> list[str]:
    """What differs, of all that the placements describe."""
    wrong = []
    for grid, names, sizes in DESCRIBED:
        for rows in sizes:
            whole = torch.arange(float(rows * COLUMNS)).view(rows, COLUMNS)
            held = weight(grid, names, whole)
            strided = [type(placement) is _StridedShard for placement in held.placements]
            facts = {
                "strided": strided == [*(name == "dp" for name in names), False],
                "whole": torch.equal(move(held, communicator), whole),
                "its own": torch.equal(move(held, communicator, back=True), held.to_local()),
            }
            wrong += [f"{rows} rows over {grid}: {name}" for name, right in facts.items() if not right]
    return wrong


def refuse(communicator: Gloo) -> list[str]:
    """How golden refuses what the placements do not describe; only ranks that see it call, as nobody tells the others."""
    kinds = []
    for rows in UNDESCRIBED:
        held = weight((4, 2), ("dp",), torch.arange(float(rows * COLUMNS)).view(rows, COLUMNS))
        if communicator.rank in {6, 7}:
            with pytest.raises(GoldenError, match="expected a local tensor of") as caught:
                move(held, communicator)
            kinds.append(caught.value.kind)
    return kinds


def serve(rank: int, file: str, pipe: Connection) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    limit = timedelta(minutes=1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=SIZE, timeout=limit)
    try:
        pipe.send((compare(Gloo(rank)), refuse(Gloo(rank))))
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[tuple[list[str], list[str]]]]:
    """What each of the eight processes found."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.fsdp", "torch.distributed.tensor"])
    file = str(Path(tmp_path_factory.mktemp("gloo")) / "store")
    pipes = [context.Pipe(duplex=False) for _ in range(SIZE)]
    ranks = [context.Process(target=serve, args=(rank, file, theirs)) for rank, (_, theirs) in enumerate(pipes)]
    for rank, (_, theirs) in zip(ranks, pipes, strict=True):
        rank.start()
        theirs.close()
    try:
        yield [ours.recv() for ours, _ in pipes]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


@pytest.mark.requirement("RS-LAYOUT-10")
def test_golden_moves_what_fsdp_holds_and_to_where_it_holds_it(found: list[tuple[list[str], list[str]]]) -> None:
    assert [wrong for wrong, _ in found] == [[]] * SIZE


@pytest.mark.requirement("RS-LAYOUT-13")
def test_golden_refuses_what_the_placements_of_fsdp_do_not_describe(found: list[tuple[list[str], list[str]]]) -> None:
    assert [kinds for _, kinds in found] == [*[[]] * 6, ["shape"] * 2, ["shape"] * 2]
