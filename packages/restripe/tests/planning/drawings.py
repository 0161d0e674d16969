"""Random pairs of layouts, as sides that the judge reads and as restripe's own layouts."""

from math import prod
from random import Random
from typing import NamedTuple

from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard

from restripe.cuts import Region
from restripe.layout import Layout, Mesh
from restripe.planning import RankPlan, plan

from .judge import Box, Shape, Side

WORLDS = [8, 12, *range(1, 13)]
MESHES: list[Shape] = [(n,) for n in range(1, 13)]
MESHES += [(n, m) for n in range(1, 13) for m in range(1, 13) if n * m <= 12]
MESHES += [(n, m, k) for n in range(1, 5) for m in range(1, 5) for k in range(1, 5) if n * m * k <= 12]
FITTING = {ranks: [mesh for mesh in MESHES if prod(mesh) <= ranks] for ranks in range(1, 13)}
ORDERS = [tuple(range(12)), *(tuple(Random(seed).sample(range(12), 12)) for seed in range(200))]
TENSOR_DIMS = [2, 1, 0, 3, 4, 2, 1, 3]
SIZES = [12, 8, 1, 0, 2, 3, 4, 5, 6, 7, 11, 13, 16, 24]
EVEN_SIZES = [12, 24, 6, 2, 36]
LARGE_SIZES = [60, 90, 96, 120, 144, 210, 2, 6]


class Drawn(NamedTuple):
    """One reshard in a world of ranks; negative: its shard dims are counted from the last."""

    world: int
    shape: Shape
    src: Side
    dst: Side
    turn: int = 0
    negative: bool = False

    def layouts(self) -> tuple[Layout, Layout]:
        src, dst = (layout(side, len(self.shape), self.negative) for side in (self.src, self.dst))
        return src, dst

    def plans(self) -> list[RankPlan]:
        src, dst = self.layouts()
        return [plan(src, dst, self.shape, rank, self.turn) for rank in range(self.world)]


def layout(side: Side, tensor_dims: int, negative: bool = False) -> Layout:
    shift = tensor_dims if negative else 0
    placements = tuple(Replicate() if dim is None else Shard(dim - shift) for dim in side.shards)
    return Layout(Mesh(side.mesh, side.ranks), placements)


def box(region: Region) -> Box:
    """The box of a plain region that is not empty: one interval a dim."""
    return tuple(interval for (interval,) in region)


@st.composite
def drawings(draw: st.DrawFn) -> Drawn:
    """Worlds of 1 to 12 ranks: meshes equal, overlapping, or disjoint, in any order, with idle ranks left over."""
    if draw(st.sampled_from([False, True, False])):
        return draw(replicated())
    world = draw(st.sampled_from(WORLDS))
    shape = draw(shapes(draw(st.sampled_from(TENSOR_DIMS)), SIZES))
    ranks = draw(orders(world))
    src = draw(sides(ranks, len(shape), FITTING[world]))
    meshes = draw(st.sampled_from(["any", "disjoint", "equal"]))
    if meshes == "equal":
        dst = draw(sides(src.ranks, len(shape), [src.mesh]))
    else:
        rest = ranks[len(src.ranks) :] if meshes == "disjoint" else draw(orders(world))
        rest = rest or ranks
        dst = draw(sides(rest, len(shape), FITTING[len(rest)]))
    return Drawn(world, shape, src, dst, draw(st.sampled_from([0, 1, 2, 5])), draw(st.booleans()))


@st.composite
def replicated(draw: st.DrawFn) -> Drawn:
    """Sharded sources and replicated destinations of sizes that often divide: where stripes are to be judged."""
    shape = draw(shapes(draw(st.sampled_from([2, 3, 1, 3])), EVEN_SIZES))
    ranks = draw(orders(12))
    shards = st.sampled_from(range(len(shape)))
    meshes: list[Shape] = [(2,), (3,), (4,), (2, 2), (6,), (2, 3), (3, 2)]
    src_mesh, dst_mesh = draw(st.sampled_from(meshes)), draw(st.sampled_from(meshes))
    src = Side(src_mesh, ranks[: prod(src_mesh)], tuple(draw(shards) for _ in src_mesh))
    kept = (*(draw(shards) for _ in dst_mesh[1:]), None)
    dst = Side(dst_mesh, ranks[-prod(dst_mesh) :], kept[:: draw(st.sampled_from([1, -1]))])
    return Drawn(12, shape, src, dst, draw(st.integers(0, 3)))


@st.composite
def larger(draw: st.DrawFn) -> Drawn:
    """Up to 30 chunks a tensor dim, to replicas on other ranks."""
    shape = draw(shapes(draw(st.sampled_from([1, 2])), LARGE_SIZES))
    shards = st.sampled_from(range(len(shape)))
    src_mesh = (draw(st.integers(2, 10)), draw(st.integers(1, 3)))
    dst_mesh = (draw(st.integers(2, 4)), draw(st.integers(1, 10)))
    world = prod(src_mesh) + prod(dst_mesh)
    src = Side(src_mesh, tuple(range(prod(src_mesh))), (draw(shards), draw(shards)))
    dst = Side(dst_mesh, tuple(range(prod(src_mesh), world)), (None, draw(shards)))
    return Drawn(world, shape, src, dst)


@st.composite
def shapes(draw: st.DrawFn, tensor_dims: int, sizes: list[int]) -> Shape:
    return tuple(draw(st.sampled_from(sizes)) for _ in range(tensor_dims))


@st.composite
def orders(draw: st.DrawFn, world: int) -> Shape:
    return tuple(rank for rank in draw(st.sampled_from(ORDERS)) if rank < world)


@st.composite
def sides(draw: st.DrawFn, ranks: Shape, tensor_dims: int, meshes: list[Shape]) -> Side:
    """A side on the first of the ranks, as many as its mesh takes."""
    mesh = draw(st.sampled_from(meshes))
    shards = st.sampled_from([None, *range(tensor_dims)])
    return Side(mesh, ranks[: prod(mesh)], tuple(draw(shards) for _ in mesh))
