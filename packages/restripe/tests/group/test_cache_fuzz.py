"""Random sequences of drop-in calls on a group with its cache, each compared with the same call on a fresh group.

Between calls everything that a caller may change changes: meshes and placements in place, buffers at the same addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import restripe
from restripe.xferdtensor_python import xferdtensor_python_impl

from ..conftest import Worlds
from ..helpers.meshes import CHANGING_MESHES, MESH_KINDS, RESHAPING, ChangingMesh
from ..helpers.moves import Move, Side, bits, poison_like
from ..helpers.world import Group, World

pytestmark = pytest.mark.usefixtures("own_registry")

RANKS = 4
GRIDS: list[Any] = [
    [0, 1, 2, 3],
    [3, 1, 0, 2],
    [0, 1],
    [1, 0],
    [2, 3],
    [2],
    [[0, 1], [2, 3]],
    [[0, 2], [1, 3]],
    [[3, 0], [1, 2]],
    [[0, 1, 2, 3]],
    [[2], [0]],
]
SHAPES = [(4, 6), (6, 4), (5, 3), (1, 8)]
VIEWS: dict[str, Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]] = {
    "row-major": lambda flat, shape: flat.view(shape),
    "transposed": lambda flat, shape: flat.view(shape[::-1]).t(),
    "conj": lambda flat, shape: flat.view(shape).conj(),
    "neg": lambda flat, shape: torch._neg_view(flat.view(shape)),
}
DTYPES = [torch.int32, torch.float32, torch.complex64]


@dataclass(frozen=True)
class SideStep:
    """One side of a call: its layout, and which of its objects are kept from call to call, changed in place."""

    side: Side
    mesh_kind: str | None  # None: the kept mesh
    keeps_placements: bool
    keeps_memory: bool
    keeps_reference: bool
    view: str


@dataclass(frozen=True)
class Step:
    """One call, perhaps after a clear."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    seed: int
    sides: tuple[SideStep, SideStep]
    clears: bool


@st.composite
def draw_side(draw: st.DrawFn, dtype: torch.dtype, *, keeps_all: bool) -> SideStep:
    """Draw one side of a call.

    Args:
        keeps_all: nothing is a new object, so that only changes in place tell calls apart.
    """
    grid = draw(st.sampled_from(GRIDS))
    dims = tuple(draw(st.sampled_from((None, 0, 1))) for _ in torch.tensor(grid).shape)
    views = ["row-major", "transposed"] + (["conj", "neg"] if dtype.is_complex else ["neg"] * (dtype != torch.int32))
    return SideStep(
        Side(grid, dims),
        None if keeps_all else draw(st.none() | st.sampled_from([*MESH_KINDS])),
        keeps_all or draw(st.booleans()),
        keeps_all or draw(st.booleans()),
        keeps_all or draw(st.booleans()),
        draw(st.sampled_from(views)),
    )


@st.composite
def draw_steps(draw: st.DrawFn) -> list[Step]:
    """Draw a few calls, of which some come again in any order: a cache is of use to those alone."""
    steps, keeps_all = [], draw(st.booleans())
    shapes = SHAPES[:2] if keeps_all else SHAPES
    for seed in range(draw(st.integers(1, 5))):
        dtype = draw(st.sampled_from(DTYPES[:1] if keeps_all else DTYPES))
        sides = draw(draw_side(dtype, keeps_all=keeps_all)), draw(draw_side(dtype, keeps_all=keeps_all))
        steps.append(Step(draw(st.sampled_from(shapes)), dtype, seed, sides, draw(st.integers(0, 9)) == 0))
    return draw(st.lists(st.sampled_from(steps), min_size=2, max_size=10))


@dataclass
class Kept:
    """The objects of one side that a rank keeps from call to call."""

    mesh: ChangingMesh
    placements: list[Any] = field(default_factory=list)
    memory: torch.Tensor = field(default_factory=lambda: torch.zeros(64, dtype=torch.complex64))
    reference: SimpleNamespace = field(default_factory=SimpleNamespace)


def place(local: torch.Tensor | None, step: SideStep, memory: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a local tensor in the step's view of a memory."""
    if local is None:
        return None
    flat = memory.view(local.dtype)[: local.numel()]
    return VIEWS[step.view](flat, tuple(local.shape)).copy_(local)


def reference(step: SideStep, kept: Kept, move: Move, local: torch.Tensor | None) -> Any:
    if not step.keeps_reference:
        return move.tensor_ref(local)
    vars(kept.reference).update(vars(move.tensor_ref(local)))
    return kept.reference


def layout(step: SideStep, kept: Kept) -> tuple[Any, Any]:
    """Return the mesh and the placements of a step."""
    if step.mesh_kind is None:
        kept.mesh.change(step.side.mesh)
    kept.placements[:] = step.side.placements
    mesh = kept.mesh.mesh_object if step.mesh_kind is None else MESH_KINDS[step.mesh_kind](step.side.mesh)
    return mesh, kept.placements if step.keeps_placements else step.side.placements


def run_step(world: World, step: Step, kept: dict[int, list[Kept]]) -> None:
    """Make the step's call on the world's groups and on fresh ones, and compare the bytes."""
    move = Move(step.shape, step.sides[0].side, step.sides[1].side, step.dtype, seed=step.seed)
    numbers = torch.arange(1, move.global_tensor.numel() + 1).view(step.shape) * (step.seed + 1)
    # no random bits: torch changes the bits of NaNs where it conjugates or negates
    move.global_tensor = numbers.to(step.dtype) * (2 - 3j if step.dtype.is_complex else 1)
    fresh = world.make_groups()

    def body(group: Group) -> None:
        if step.clears:
            restripe.clear_caches(group)
        mine = kept[group.rank]
        locals_ = [
            place(local, side, one.memory if side.keeps_memory else torch.zeros(64, dtype=torch.complex64))
            for local, side, one in zip(move.local_tensors(group.rank), step.sides, mine, strict=True)
        ]
        refs = [reference(side, one, move, local) for side, one, local in zip(step.sides, mine, locals_, strict=True)]
        if any(local is not None for local in locals_):
            refs = [None if local is None else ref for ref, local in zip(refs, locals_, strict=True)]
        (src_mesh, src_placements), (dst_mesh, dst_placements) = map(layout, step.sides, mine)
        xferdtensor_python_impl(refs[0], src_mesh, src_placements, refs[1], dst_mesh, dst_placements, group)
        move.assert_moved(group.rank, *locals_)
        src, dst = move.local_tensors(group.rank)
        move.call_drop_in(fresh[group.rank], src, None if dst is None else dst.copy_(poison_like(dst)))
        assert dst is None or bits(locals_[1]) == bits(dst)  # type: ignore[arg-type]  # None together

    world.run(body)


@pytest.mark.requirement("RS-UPSTREAM-2", "RS-UPSTREAM-10", "RS-EXACT-1")
@settings(max_examples=50, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=draw_steps(),
    ways=st.tuples(st.sampled_from(RESHAPING), st.sampled_from(RESHAPING)),
    bounds=st.sampled_from([{}, {"max_plans": 1}, {"max_tensors": 2}, {"max_tensors": 5, "max_plans": 2}]),
)
def test_whatever_changes_between_calls_a_cache_moves_the_same_bytes_as_none(
    worlds: Worlds, steps: list[Step], ways: tuple[str, str], bounds: dict[str, int]
) -> None:
    world = worlds(RANKS)
    world.bound_caches(**bounds)
    kept = {rank: [Kept(CHANGING_MESHES[way](GRIDS[0])) for way in ways] for rank in range(RANKS)}
    for step in steps:
        run_step(world, step, kept)
