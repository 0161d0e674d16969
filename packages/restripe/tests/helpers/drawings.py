"""Random pairs of layouts, as sides that the judge reads and as restripe's own layouts."""

from collections.abc import Sequence
from math import prod
from random import Random
from typing import NamedTuple

from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard

from restripe.layout.chunked import Region
from restripe.layout.mesh import Host, Layout, Mesh
from restripe.planning.plan import RankPlan
from restripe.planning.planner import make_planner, plan

from .judge import Box, Shape, Side

MESHES: list[Shape] = [(n,) for n in range(1, 13)]
MESHES += [(n, m) for n in range(1, 13) for m in range(1, 13) if n * m <= 12]
MESHES += [(n, m, k) for n in range(1, 5) for m in range(1, 5) for k in range(1, 5) if n * m * k <= 12]

# Every strategy is made once: making them anew for each draw costs more than planning does.
WORLDS = st.sampled_from([8, 12, *range(1, 13)])
FITTING = {ranks: st.sampled_from([mesh for mesh in MESHES if prod(mesh) <= ranks]) for ranks in range(1, 13)}
REPLICATED_MESHES = st.sampled_from([(2,), (3,), (4,), (2, 2), (6,), (2, 3), (3, 2)])
ORDERS = st.sampled_from([tuple(range(12)), *(tuple(Random(seed).sample(range(12), 12)) for seed in range(200))])
TENSOR_DIMS = st.sampled_from([2, 1, 0, 3, 4, 0, 1, 3])
SIZES = st.sampled_from([12, 8, 1, 0, 2, 3, 4, 5, 6, 7, 11, 13, 16, 24])
EVEN_SIZES = st.sampled_from([12, 24, 6, 2, 36])
LARGE_SIZES = st.sampled_from([60, 4, 16, 2, 22, 40, 90, 96, 120, 144, 210])
REPLICATED_DIMS = st.sampled_from([2, 3, 1, 3])
ODDS = st.sampled_from([False, True, False])
MEETING = st.sampled_from(["any", "disjoint", "equal"])
TURNS = st.sampled_from([0, 1, 2, 5])
PLACED = {dims: st.sampled_from([None, *range(dims)]) for dims in range(5)}
SHARDED = {dims: st.sampled_from(range(dims)) for dims in range(1, 5)}


class Drawn(NamedTuple):
    """One reshard in a world of ranks; negative: its shard dims are counted from the last."""

    world: int
    shape: Shape
    src: Side
    dst: Side
    rotation: int = 0
    negative: bool = False

    def layouts(self) -> tuple[Layout, Layout]:
        src, dst = (layout(side, len(self.shape), self.negative) for side in (self.src, self.dst))
        return src, dst

    def plans(self) -> list[RankPlan]:
        src, dst = self.layouts()
        return [plan(src, dst, self.shape, rank, self.rotation) for rank in range(self.world)]

    def shared_plans(self) -> list[RankPlan]:
        """Return every rank's plan from one planner, in half the time."""
        shared = make_planner(*self.layouts(), self.shape)
        return [shared.plan(rank, self.rotation) for rank in range(self.world)]


def layout(side: Side, tensor_dims: int, negative: bool = False) -> Layout:
    shift = tensor_dims if negative else 0
    placements = tuple(Replicate() if dim is None else Shard(dim - shift) for dim in side.shards)
    return Layout(Mesh(side.mesh, side.ranks), placements)


def hosted(layout: Layout, hosts: Sequence[Host]) -> Layout:
    """The same where each rank's host is known."""
    mesh = layout.mesh
    return Layout(Mesh(mesh.shape, mesh.ranks, tuple(hosts[rank] for rank in mesh.ranks)), layout.placements)


def box(region: Region) -> Box:
    """The box of a plain region that is not empty: one interval a dim."""
    return tuple(interval for (interval,) in region)


@st.composite
def drawings(draw: st.DrawFn) -> Drawn:
    """Worlds of 1 to 12 ranks: meshes equal, overlapping, or disjoint, in any order, with idle ranks left over."""
    if draw(ODDS):
        return replicated(draw)
    world = draw(WORLDS)
    shape = sizes(draw, draw(TENSOR_DIMS), SIZES)
    ranks = order(draw, world)
    src = side(draw, ranks, len(shape), draw(FITTING[world]))
    meshes = draw(MEETING)
    if meshes == "equal":
        dst = side(draw, src.ranks, len(shape), src.mesh)
    else:
        rest = ranks[len(src.ranks) :] if meshes == "disjoint" else order(draw, world)
        rest = rest or ranks
        dst = side(draw, rest, len(shape), draw(FITTING[len(rest)]))
    return Drawn(world, shape, src, dst, draw(TURNS), draw(st.booleans()))


def replicated(draw: st.DrawFn) -> Drawn:
    """Sharded sources and replicated destinations of sizes that often divide: where stripes are to be judged."""
    shape = sizes(draw, draw(REPLICATED_DIMS), EVEN_SIZES)
    ranks, shards = order(draw, 12), SHARDED[len(shape)]
    src_mesh, dst_mesh = draw(REPLICATED_MESHES), draw(REPLICATED_MESHES)
    src = Side(src_mesh, ranks[: prod(src_mesh)], tuple(draw(shards) for _ in src_mesh))
    kept = (*(draw(shards) for _ in dst_mesh[1:]), None)
    dst = Side(dst_mesh, ranks[-prod(dst_mesh) :], kept[::-1] if draw(st.booleans()) else kept)
    return Drawn(12, shape, src, dst, draw(TURNS))


@st.composite
def larger(draw: st.DrawFn) -> Drawn:
    """Up to 30 chunks a tensor dim, nested in each other, to replicas on other ranks."""
    shape = sizes(draw, draw(st.integers(1, 2)), LARGE_SIZES)
    shards = SHARDED[len(shape)]
    src_mesh = (draw(st.integers(2, 10)), draw(st.integers(1, 3)))
    dst_mesh = (draw(st.integers(2, 3)), draw(st.integers(1, 6)), draw(st.integers(1, 3)))
    world = prod(src_mesh) + prod(dst_mesh)
    src = Side(src_mesh, tuple(range(prod(src_mesh))), (draw(shards), draw(shards)))
    dst = Side(dst_mesh, tuple(range(prod(src_mesh), world)), (None, draw(shards), draw(shards)))
    return Drawn(world, shape, src, dst)


def sizes(draw: st.DrawFn, tensor_dims: int, of: st.SearchStrategy[int]) -> Shape:
    return tuple(draw(of) for _ in range(tensor_dims))


def order(draw: st.DrawFn, world: int) -> Shape:
    return tuple(rank for rank in draw(ORDERS) if rank < world)


def side(draw: st.DrawFn, ranks: Shape, tensor_dims: int, mesh: Shape) -> Side:
    """A side on the first of the ranks, as many as its mesh takes."""
    return Side(mesh, ranks[: prod(mesh)], tuple(draw(PLACED[tensor_dims]) for _ in mesh))
