"""Mesh shapes, and the order of ranks in meshes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import TypeAlias

from reshard_conformance.case.files import Case, NestedInts, Side
from reshard_conformance.case.geometry import SideGeometry

__all__ = ["Shape", "mesh_shapes", "nest_ranks", "piece_count", "renumber_ranks", "reverse_ranks"]

Shape: TypeAlias = tuple[int, ...]


@cache
def mesh_shapes(ndim: int, low: int, high: int, excluded_size: int) -> tuple[Shape, ...]:
    """Return every mesh shape of `ndim` dims with `low` to `high` ranks, except `excluded_size`; few ranks first."""
    shapes = (shape for shape in product(range(1, high + 1), repeat=ndim) if low <= math.prod(shape) <= high)
    allowed = [shape for shape in shapes if math.prod(shape) != excluded_size]
    return tuple(sorted(allowed, key=lambda shape: (math.prod(shape), shape)))


def nest_ranks(shape: Shape, ranks: Sequence[int]) -> NestedInts:
    """Return ranks in row-major order as nested tuples of this shape."""
    if len(shape) == 1:
        return tuple(ranks)
    step = len(ranks) // shape[0]
    return tuple(nest_ranks(shape[1:], ranks[i * step : (i + 1) * step]) for i in range(shape[0]))


def renumber_ranks(script: Sequence[Case], seed: int) -> tuple[Case, ...]:
    """Return the cases with other ranks, so that few different destinations are left.

    The first destination gets its ranks in ascending order, or in the one other order that follows from the seed.
    """
    world, ranks = script[0].world_size, script[0].dst.ranks
    order = list(range(world))
    if list(ranks) != sorted(ranks):
        random.Random(f"{seed} {world}").shuffle(order)  # noqa: S311 - no secret
        order[:2] = sorted(order[:2], reverse=True)  # so that no two of them ascend
    others = [rank for rank in range(world) if rank not in ranks]
    new_ranks = dict(zip((*ranks, *others), order, strict=True))

    def renumber_side(side: Side) -> Side:
        return replace(side, mesh=nest_ranks(side.mesh_shape, [new_ranks[rank] for rank in side.ranks]))

    return tuple(replace(case, src=renumber_side(case.src), dst=renumber_side(case.dst)) for case in script)


def reverse_ranks(side: Side) -> Side:
    """Return the side with its ranks in the opposite order."""
    return replace(side, mesh=nest_ranks(side.mesh_shape, side.ranks[::-1]))


def piece_count(side: Side, ndim: int, dim: int | None) -> int:
    """Return the number of pieces into which a side's mesh cuts a tensor dim; for None, its number of replicas."""
    dims = SideGeometry(side, (0,) * ndim).dims
    return math.prod(size for size, sharded in zip(side.mesh_shape, dims, strict=True) if sharded == dim)
