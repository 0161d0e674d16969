"""One row on one rank: the tensors, what the destination has to hold, and how many of its bytes are wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch.distributed.tensor import Shard

from restripe.bench.rows import DTYPE, Row, Shape
from restripe.layout.mesh import Layout

_FIRST, _SECOND = -7046029254386353131, -4658895280553007687  # odd, so that multiplying loses nothing


def noise(shape: Shape, seed: int, device: torch.device) -> torch.Tensor:
    """A tensor of well-mixed bytes that follow from index and seed, alike on every device."""
    size = math.prod(shape) * DTYPE.itemsize
    words = torch.arange(-(-size // 8), dtype=torch.int64, device=device)
    words += (seed + 1) << 40
    words *= _FIRST
    words ^= words >> 31
    words *= _SECOND
    words ^= words >> 29
    return words.view(torch.uint8)[:size].view(DTYPE).view(shape)


def shard(whole: torch.Tensor, layout: Layout, rank: int) -> torch.Tensor | None:
    """The part of the global tensor that a rank holds, which must have elements; None outside the mesh."""
    places = layout.mesh.coordinates(rank)
    if places is None:
        return None
    for placement, parts, place in zip(layout.placements, layout.mesh.shape, places, strict=True):
        if isinstance(placement, Shard):
            whole = whole.chunk(parts, placement.dim)[place]
    return whole


def octets(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's bytes, flat."""
    return tensor.view(-1).view(torch.uint8)


@dataclass
class Case:
    """The tensors of a row on one rank; by name, and only those that the rank has."""

    row: Row
    rank: int
    size: int
    device: torch.device
    sources: dict[str, torch.Tensor] = field(default_factory=dict)
    destinations: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seeds = {one.name: seed for seed, one in enumerate(self.row.tensors)}
        for one in self.row.tensors:
            whole = self._whole(one.name)
            source, truth = shard(whole, one.src, self.rank), shard(whole, one.dst, self.rank)
            if source is not None:
                self.sources[one.name] = source.clone(memory_format=torch.contiguous_format)
            if truth is not None:
                self.destinations[one.name] = torch.empty(truth.shape, dtype=DTYPE, device=self.device)

    def truth(self, name: str) -> torch.Tensor:
        """What the destination has to hold, on a rank that has it."""
        found = shard(self._whole(name), self.row.tensors[self._seeds[name]].dst, self.rank)
        if found is None:
            raise KeyError(f"rank {self.rank} has no destination {name!r} in row {self.row.name!r}")
        return found.contiguous()

    def _whole(self, name: str) -> torch.Tensor:
        seed = self._seeds[name]
        return noise(self.row.tensors[seed].shape, seed, self.device)

    def poison(self) -> None:
        """Make every byte of the destination wrong."""
        for name, tensor in self.destinations.items():
            torch.bitwise_not(octets(self.truth(name)), out=octets(tensor))

    def wrong(self) -> int:
        """How many bytes of the destination are wrong."""
        return sum(
            int((octets(tensor) != octets(self.truth(name))).sum()) for name, tensor in self.destinations.items()
        )
