"""Moves for tests: a global tensor of random bits, its shards cut with torch.chunk, and the calls that move them.

The tests cut shards themselves, so that restripe's cutting is checked against another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import Replicate, Shard

import restripe
from restripe.xferdtensor_python import xferdtensor_python_impl

from .world import Group, World

Maker = Callable[[torch.Tensor], torch.Tensor]
POISON = 0x5A


class Side(NamedTuple):
    """A mesh as nested lists of ranks, and one placement a mesh dim: a tensor dim to shard, or None to replicate."""

    mesh: Any
    shards: tuple[int | None, ...]

    @property
    def placements(self) -> tuple[Shard | Replicate, ...]:
        return tuple(Replicate() if dim is None else Shard(dim) for dim in self.shards)

    @property
    def layout(self) -> restripe.Layout:
        return restripe.Layout(restripe.Mesh.of(self.mesh), self.placements)

    @property
    def mesh_object(self) -> restripe.Mesh:
        return restripe.Mesh.of(self.mesh)

    def shard(self, tensor: torch.Tensor, rank: int) -> torch.Tensor | None:
        """Return the rank's part of the global tensor, cut by torch.chunk; None outside the mesh."""
        coordinates = (torch.tensor(self.mesh) == rank).nonzero().tolist()
        if not coordinates:
            return None
        for size, index, dim in zip(torch.tensor(self.mesh).shape, coordinates[0], self.shards, strict=True):
            if dim is not None:
                pieces = tensor.chunk(size, dim)
                tensor = pieces[index] if index < len(pieces) else tensor.narrow(dim, 0, 0)
        return tensor.clone(memory_format=torch.contiguous_format)


def random_tensor(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return a tensor of random bits: NaNs of every payload, negative zeros and denormals occur; a bool is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype == torch.bool else 256
    count = math.prod(shape) * dtype.itemsize
    return torch.randint(high, (count,), dtype=torch.uint8, generator=generator).view(dtype).reshape(tuple(shape))


def bits(tensor: torch.Tensor) -> bytes:
    """Return the tensor's values as bytes, in row-major order."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).tolist())


def poison_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor of the same sizes, every byte of it POISON; a bool's is 0."""
    count = tensor.numel() * tensor.element_size()
    fill = 0 if tensor.dtype == torch.bool else POISON
    return torch.full((count,), fill, dtype=torch.uint8).view(tensor.dtype).reshape(tensor.shape)


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@dataclass
class Move:
    """One reshard of a world; `source` and `destination` lay a rank's contiguous shard out in other memory."""

    shape: tuple[int, ...]
    src: Side
    dst: Side
    dtype: torch.dtype = torch.int32
    source: Maker = contiguous
    destination: Maker = contiguous
    seed: int = 0
    global_tensor: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.global_tensor = random_tensor(self.shape, self.dtype, self.seed)

    def __getitem__(self, number: int) -> Side:
        """Return the source side for 0, the destination side for 1."""
        return (self.src, self.dst)[number]

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `restripe.reshard` that say what is moved."""
        return {
            "src_layout": self.src.layout,
            "dst_layout": self.dst.layout,
            "shape": self.shape,
            "dtype": self.dtype,
        }

    def item(self, name: str = "w") -> restripe.Item:
        """Return the move as an item with both layouts."""
        return restripe.Item(name, self.shape, self.dtype, self.src.layout, self.dst.layout)

    def local_tensors(self, rank: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the rank's local tensors: a source of the right bits, a destination of poison."""
        src, dst = self.src.shard(self.global_tensor, rank), self.dst.shard(self.global_tensor, rank)
        return (
            None if src is None else self.source(src),
            None if dst is None else self.destination(poison_like(dst)),
        )

    def tensor_ref(self, local: torch.Tensor | None) -> restripe.TensorRef:
        return restripe.TensorRef(torch.Size(self.shape), self.dtype, torch.device("cpu"), local)

    def tensor_refs(self, src: torch.Tensor | None, dst: torch.Tensor | None) -> tuple[Any, Any]:
        """Return the drop-in's tensors: None on a rank without that side, references without a tensor on an idle one."""
        if src is None and dst is None:
            return self.tensor_ref(None), self.tensor_ref(None)
        return (None if src is None else self.tensor_ref(src), None if dst is None else self.tensor_ref(dst))

    def call_drop_in(self, group: Group, src: torch.Tensor | None, dst: torch.Tensor | None) -> None:
        """Call the drop-in with these local tensors, in new references and over new Mesh objects."""
        src_ref, dst_ref = self.tensor_refs(src, dst)
        xferdtensor_python_impl(
            src_ref,
            self.src.mesh_object,
            self.src.placements,
            dst_ref,
            self.dst.mesh_object,
            self.dst.placements,
            group,
        )

    def run_rank(self, group: Group) -> torch.Tensor | None:
        """Make this rank's tensors, call the drop-in, assert that they were moved, and return the destination."""
        src, dst = self.local_tensors(group.rank)
        self.call_drop_in(group, src, dst)
        self.assert_moved(group.rank, src, dst)
        return dst

    def assert_moved(self, rank: int, src: torch.Tensor | None, dst: torch.Tensor | None) -> None:
        """Assert that the destination holds its bits and that the source is as it was."""
        for local, side in ((src, self.src), (dst, self.dst)):
            expected = side.shard(self.global_tensor, rank)
            assert (local is None) == (expected is None)
            if local is not None and expected is not None:
                assert bits(local) == bits(expected), f"rank {rank}: {local} instead of {expected}"

    def run(self, world: World) -> None:
        world.run(self.run_rank)
