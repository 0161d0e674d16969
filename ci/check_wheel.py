"""Reshard over two gloo processes with the installed restripe; run it where its wheel and torch are, and no checkout.

Rows of a 5 x 3 tensor on ranks 0 and 1 become columns on ranks 1 and 0, twice, with a clear between.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import Shard

import restripe
from restripe.xferdtensor_python import clear_xferdtensor_python_caches, xferdtensor_python_impl


@dataclass(frozen=True)
class Reference:
    """A distributed tensor as a caller without DTensors hands it over."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    _local_tensor: torch.Tensor


@dataclass(frozen=True)
class Mesh:
    """A grid of ranks of the group."""

    mesh: torch.Tensor

    @property
    def ndim(self) -> int:
        """The number of mesh dims."""
        return self.mesh.ndim


def reshard(rank: int, whole: torch.Tensor) -> None:
    """One call on one rank; raises when a byte is wrong."""
    rows = (whole[:3], whole[3:])[rank].clone()
    columns = (whole[:, 2:], whole[:, :2])[rank].clone()
    result = torch.full_like(columns, -1)
    src, dst = (Reference(whole.shape, whole.dtype, whole.device, local) for local in (rows, result))
    meshes = [Mesh(torch.tensor(ranks)) for ranks in ([0, 1], [1, 0])]
    xferdtensor_python_impl(src, meshes[0], (Shard(0),), dst, meshes[1], (Shard(1),), dist.group.WORLD)
    if not torch.equal(result, columns):
        raise SystemExit(f"rank {rank}: expected {columns.tolist()}, got {result.tolist()}")


def run(rank: int, rendezvous: str) -> None:
    """One rank, a process of its own."""
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    whole = torch.arange(15, dtype=torch.int16).reshape(5, 3)
    for call in range(2):
        reshard(rank, whole + 100 * call)
        clear_xferdtensor_python_caches(dist.group.WORLD)
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks; refuse a restripe that comes from a checkout, or company that the wheel must not need."""
    if not Path(restripe.__file__).is_relative_to(sys.prefix):
        raise SystemExit(f"expected restripe below {sys.prefix}, got {restripe.__file__}")
    if not resources.files("restripe.transport").joinpath("copy.cu").is_file():
        raise SystemExit("expected the wheel to bring its copy kernel, restripe/transport/copy.cu, and it has none")
    company = {"nccl", "numpy", "typer", "rich", "reshard_golden"} & {name.split(".")[0] for name in sys.modules}
    if company:
        raise SystemExit(f"expected restripe to load with torch alone, got {sorted(company)}")
    with TemporaryDirectory() as directory:
        mp.spawn(run, (f"file://{directory}/store",), nprocs=2)
    sys.stdout.write(f"restripe {restripe.__version__} reshards from its wheel\n")


if __name__ == "__main__":
    main()
