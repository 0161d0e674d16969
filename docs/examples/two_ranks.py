"""Move a DTensor from rows to columns between two processes of this machine.

    pip install ./packages/restripe          # from a checkout
    python docs/examples/two_ranks.py

prints

    rows    [[0, 1, 2, 3], [4, 5, 6, 7]] [[8, 9, 10, 11], [12, 13, 14, 15]]
    reshard [[0, 1], [4, 5], [8, 9], [12, 13]] [[2, 3], [6, 7], [10, 11], [14, 15]]
    drop-in [[0, 1], [4, 5], [8, 9], [12, 13]] [[2, 3], [6, 7], [10, 11], [14, 15]]
"""

from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, zeros

import restripe
from restripe.xferdtensor_python import xferdtensor_python_impl


def show(what: str, tensor: DTensor) -> None:
    """Print what each rank holds."""
    parts = [None, None]
    dist.all_gather_object(parts, tensor.to_local().tolist())
    if dist.get_rank() == 0:
        print(what, *parts)


def run(rank: int, rendezvous: str) -> None:
    """One rank, a process of its own."""
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    src = distribute_tensor(torch.arange(16).reshape(4, 4), mesh, [Shard(0)])
    dst = zeros(4, 4, dtype=torch.int64, device_mesh=mesh, placements=[Shard(1)])
    show("rows   ", src)

    restripe.reshard(src, dst)
    show("reshard", dst)

    dst.zero_()
    xferdtensor_python_impl(src, mesh, src.placements, dst, mesh, dst.placements, dist.group.WORLD)
    show("drop-in", dst)

    restripe.clear_caches()  # gives back the communicators that restripe made; collective like the calls above
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.set_forkserver_preload(["restripe"])  # import torch once, not twice
    with TemporaryDirectory() as directory:
        mp.start_processes(run, (f"file://{directory}/store",), nprocs=2, start_method="forkserver")
