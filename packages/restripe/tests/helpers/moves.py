"""What a test moves: a global tensor of random bits, its shards cut with torch.chunk, and the calls that move them.

The cutting is the tests' own, so that restripe's is judged by it.
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
    def reference(self) -> restripe.Mesh:
        return restripe.Mesh.of(self.mesh)

    def shard(self, whole: torch.Tensor, rank: int) -> torch.Tensor | None:
        """The rank's part of the whole tensor, cut by torch.chunk; None outside the mesh."""
        place = (torch.tensor(self.mesh) == rank).nonzero().tolist()
        if not place:
            return None
        for size, index, dim in zip(torch.tensor(self.mesh).shape, place[0], self.shards, strict=True):
            if dim is not None:
                pieces = whole.chunk(size, dim)
                whole = pieces[index] if index < len(pieces) else whole.narrow(dim, 0, 0)
        return whole.clone(memory_format=torch.contiguous_format)


def drawn(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """A tensor of random bits: NaNs of every payload, negative zeros and denormals occur; a bool is 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype == torch.bool else 256
    count = math.prod(shape) * dtype.itemsize
    return torch.randint(high, (count,), dtype=torch.uint8, generator=generator).view(dtype).reshape(tuple(shape))


def bits(tensor: torch.Tensor) -> bytes:
    """The tensor's values as bytes, in row-major order."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).tolist())


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of the same sizes with no bit pattern that a test draws on purpose."""
    count = tensor.numel() * tensor.element_size()
    fill = 0 if tensor.dtype == torch.bool else POISON
    return torch.full((count,), fill, dtype=torch.uint8).view(tensor.dtype).reshape(tensor.shape)


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@dataclass
class Move:
    """One reshard of a world; `source` and `destination` put a rank's contiguous shard into other memory."""

    shape: tuple[int, ...]
    src: Side
    dst: Side
    dtype: torch.dtype = torch.int32
    source: Maker = contiguous
    destination: Maker = contiguous
    seed: int = 0
    whole: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.whole = drawn(self.shape, self.dtype, self.seed)

    def hand(self, rank: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The rank's local tensors: a source of the right bits, a destination of poison."""
        src, dst = self.src.shard(self.whole, rank), self.dst.shard(self.whole, rank)
        return (
            None if src is None else self.source(src),
            None if dst is None else self.destination(poisoned(dst)),
        )

    def reference(self, local: torch.Tensor | None) -> restripe.TensorRef:
        return restripe.TensorRef(torch.Size(self.shape), self.dtype, torch.device("cpu"), local)

    def references(self, src: torch.Tensor | None, dst: torch.Tensor | None) -> tuple[Any, Any]:
        """What the drop-in takes: None on a rank without that side, references without a tensor on an idle one."""
        if src is None and dst is None:
            return self.reference(None), self.reference(None)
        return (None if src is None else self.reference(src), None if dst is None else self.reference(dst))

    def call(self, group: Group, src: torch.Tensor | None, dst: torch.Tensor | None) -> None:
        """The drop-in with these local tensors."""
        out, into = self.references(src, dst)
        xferdtensor_python_impl(
            out, self.src.reference, self.src.placements, into, self.dst.reference, self.dst.placements, group
        )

    def play(self, group: Group) -> torch.Tensor | None:
        """Hand, call, and judge: the destination holds its bits and the source is as it was."""
        src, dst = self.hand(group.rank)
        self.call(group, src, dst)
        self.judge(group.rank, src, dst)
        return dst

    def judge(self, rank: int, src: torch.Tensor | None, dst: torch.Tensor | None) -> None:
        for local, side in ((src, self.src), (dst, self.dst)):
            wanted = side.shard(self.whole, rank)
            assert (local is None) == (wanted is None)
            if local is not None and wanted is not None:
                assert bits(local) == bits(wanted), f"rank {rank}: {local} instead of {wanted}"

    def run(self, world: World) -> None:
        world.run(self.play)
