"""Random layouts, and the light objects that golden is handed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TypeAlias

import torch
from hypothesis import strategies as st
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard, _StridedShard

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 11, 12)
MESHES = tuple(shape for n in (1, 2, 3) for shape in product(range(1, 9), repeat=n) if math.prod(shape) <= 8)


FACTORS = (1, 2, 3, 4, 13)  # 13: more than most dims have elements


class Segmented(Placement):
    """A dim made of segments that are each sharded by themselves; golden knows it by what it has, not by its type."""

    def __init__(self, dim: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.dim, self.sizes = dim, sizes


@dataclass(frozen=True)
class Mesh:
    mesh: torch.Tensor


@dataclass(frozen=True)
class Tensor:
    """A reference to a distributed tensor: global shape and dtype, and this rank's part."""

    shape: torch.Size
    dtype: torch.dtype
    _local_tensor: torch.Tensor | None

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")


def reference(shape: tuple[int, ...], dtype: torch.dtype, local: torch.Tensor | None) -> Tensor:
    return Tensor(torch.Size(shape), dtype, local)


@dataclass(frozen=True)
class Layout:
    """One side: its ranks as a nested grid, and a placement a mesh dim."""

    mesh_shape: tuple[int, ...]
    ranks: tuple[int, ...]
    placements: tuple[Placement, ...]

    @property
    def mesh(self) -> torch.Tensor:
        return torch.tensor(self.ranks).reshape(self.mesh_shape)


#: A world size, a global shape, and the two sides.
Problem: TypeAlias = tuple[int, tuple[int, ...], Layout, Layout]


# Strategies are made once: making them anew for each draw costs more than golden does.
@cache
def mesh_shapes(world_size: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sampled_from([shape for shape in MESHES if math.prod(shape) <= world_size])


@cache
def rank_orders(world_size: int) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(world_size))


@cache
def placements_of(ndim: int, strided: bool) -> st.SearchStrategy[Placement]:
    dims = range(-ndim, ndim)
    kinds: list[Placement] = [Replicate(), *map(Shard, dims)]
    if strided:
        kinds += [_StridedShard(dim, split_factor=factor) for dim in dims for factor in FACTORS]
    return st.sampled_from(kinds)


WORLD_SIZES = st.integers(1, 8)
SHAPES = st.lists(st.sampled_from(SIZES), max_size=4).map(tuple)


@st.composite
def layouts(draw: st.DrawFn, ndim: int, world_size: int, *, strided: bool = False) -> Layout:
    mesh_shape = draw(mesh_shapes(world_size))
    ranks = draw(rank_orders(world_size))[: math.prod(mesh_shape)]
    placements = tuple(draw(placements_of(ndim, strided)) for _ in mesh_shape)
    return Layout(mesh_shape, tuple(ranks), placements)


@st.composite
def problems(draw: st.DrawFn, *, strided: bool = False) -> Problem:
    world_size, shape = draw(WORLD_SIZES), draw(SHAPES)
    src, dst = (draw(layouts(len(shape), world_size, strided=strided)) for _ in range(2))
    return world_size, shape, src, dst
