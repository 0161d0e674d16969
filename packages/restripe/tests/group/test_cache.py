"""The call cache: which calls it serves again, which it must not, and its bounds."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

import restripe
from restripe import Mesh, TensorRef
from restripe.errors import DtypeError, MissingTensorError, ReshardError, ShapeError
from restripe.group.cache import MAX_PLANS, MAX_TENSORS, CacheCounters, CallCache, LruCache
from restripe.group.call import Check
from restripe.xferdtensor_python import xferdtensor_python_impl

from ..conftest import Worlds
from ..helpers.meshes import CHANGING_MESHES, MESH_KINDS, RESHAPING, ChangingMesh
from ..helpers.moves import Move, Side, bits, poison_like
from ..helpers.views import conjugate, negative, permuted
from ..helpers.world import Group

pytestmark = pytest.mark.usefixtures("own_registry")

ROWS, COLUMNS = Side([0, 1], (0,)), Side([[2], [3]], (None, 1))
MOVE = Move((4, 6), ROWS, COLUMNS)  # from ranks 0 and 1 to rank 2 and 3, whose mesh has a dim more
SINGLE = Side([0], (None,))
LOCAL = Move((4,), SINGLE, SINGLE)
NOTHING = CacheCounters()


class TestLruCache:
    """The table that all others are made of."""

    def make(self, capacity: int) -> tuple[LruCache[str, int], CacheCounters]:
        counters = CacheCounters()
        return LruCache("letters", capacity, counters), counters

    def values(self, table: LruCache[str, int], keys: str) -> dict[str, int | None]:
        return {key: table.get(key) for key in keys}

    def test_the_value_not_used_for_longest_goes_first(self) -> None:
        table, counters = self.make(2)
        assert [table.get_or_make(key, lambda: n) for n, key in enumerate("ab")] == [0, 1]  # noqa: B023
        assert table.get("a") == 0
        assert table.get_or_make("c", lambda: 2) == 2
        assert self.values(table, "abc") == {"a": 0, "b": None, "c": 2}
        assert table.get_or_make("a", lambda: 9) == 0
        assert table.store("d", 3) == 3
        assert self.values(table, "acd") == {"a": 0, "c": None, "d": 3}
        assert len(table) == 2
        assert counters == CacheCounters(evictions=2)

    def test_values_are_bounded_by_their_weight(self) -> None:
        table, counters = self.make(6)
        for key, weight in (("a", 1), ("b", 2), ("c", 3)):
            table.store(key, weight, weight)
        assert counters.evictions == 0
        table.store("d", 1, 1)
        assert self.values(table, "abcd") == {"a": None, "b": 2, "c": 3, "d": 1}
        table.store("e", 4, 4)
        assert self.values(table, "bcde") == {"b": None, "c": None, "d": 1, "e": 4}
        assert counters.evictions == 3

    def test_a_value_stored_again_counts_once(self) -> None:
        table, counters = self.make(4)
        for _ in range(9):
            table.store("a", 1, 3)
        table.store("b", 2, 1)
        table.store("a", 3, 1)
        table.store("c", 4, 2)
        assert self.values(table, "abc") == {"a": 3, "b": 2, "c": 4}
        assert counters.evictions == 0

    def test_a_value_heavier_than_the_whole_table_is_kept_alone(self) -> None:
        table, _ = self.make(2)
        table.store("a", 1)
        table.store("b", 2, 5)
        assert self.values(table, "ab") == {"a": None, "b": 2}
        table.store("c", 3)
        assert self.values(table, "bc") == {"b": None, "c": 3}

    def test_a_value_is_made_once_and_none_is_kept_of_a_failure(self) -> None:
        table, _ = self.make(2)
        calls: list[int] = []

        def fail_once() -> int:
            calls.append(1)
            return 1 // (len(calls) - 1)

        with pytest.raises(ZeroDivisionError):
            table.get_or_make("a", fail_once)
        assert len(table) == 0
        assert table.get_or_make("a", fail_once) == table.get_or_make("a", fail_once) == 1
        assert len(calls) == 2

    def test_a_cleared_table_is_empty_and_has_its_whole_capacity(self) -> None:
        table, counters = self.make(2)
        for _ in range(2):
            for key in "ab":
                table.store(key, 1)
            assert counters.evictions == 0
            table.clear()
            assert len(table) == 0
            assert table.get("a") is None

    def test_the_first_eviction_is_logged_as_a_warning_and_no_later_one(self, caplog: pytest.LogCaptureFixture) -> None:
        table, _ = self.make(2)
        with caplog.at_level(logging.WARNING, "restripe"):
            for key in "ab":
                table.store(key, 0)
            assert caplog.messages == []
            for key in "cdef":
                table.store(key, 0)
            table.clear()
            for key in "abcd":
                table.store(key, 0)
        assert caplog.messages == ["a group's cache of letters is full at 2 and drops those not used for longest"]

    @settings(max_examples=200, derandomize=True)
    @given(
        st.integers(1, 6),
        st.lists(st.tuples(st.sampled_from(("get", "store", "clear")), st.sampled_from("abcde"), st.integers(1, 4))),
    )
    def test_it_keeps_what_a_list_in_order_of_use_keeps(self, capacity: int, steps: list[tuple[str, str, int]]) -> None:
        table, _ = self.make(capacity)
        entries: list[tuple[str, int, int]] = []  # key, value, weight; the one used last stands last
        for number, (step, key, weight) in enumerate(steps):
            held = [entry for entry in entries if entry[0] == key]
            rest = [entry for entry in entries if entry[0] != key]
            if step == "clear":
                table.clear()
                entries = []
            elif step == "get":
                assert table.get(key) == (held[0][1] if held else None)
                entries = rest + held
            else:
                table.store(key, number, weight)
                entries = [*rest, (key, number, weight)]
                while sum(entry[2] for entry in entries) > capacity and len(entries) > 1:
                    entries.pop(0)
            assert len(table) == len(entries)
        assert {key: table.get(key) for key in "abcde"} == dict.fromkeys("abcde") | {k: v for k, v, _ in entries}


@pytest.mark.requirement("RS-UPSTREAM-10")
def test_the_bounds_are_what_users_need() -> None:
    """As many plans as the published function keeps, and loops of tens of thousands of tensors."""
    assert MAX_PLANS == 1024
    assert MAX_TENSORS >= 65_536


def repeat(move: Move, call: Callable[[Group, Any, Any], object]) -> Callable[[Group], None]:
    """Return a body that moves the same local tensors at each run."""
    tensors: dict[int, Any] = {}

    def body(group: Group) -> None:
        src, dst = tensors.setdefault(group.rank, move.local_tensors(group.rank))
        if dst is not None:
            dst.copy_(poison_like(dst))
        call(group, src, dst)
        move.assert_moved(group.rank, src, dst)

    return body


FIRST_CALL = CacheCounters(submissions_resolved=4, plans_made=4, programs_lowered=4, launches_built=4)  # on four ranks


@pytest.mark.requirement("RS-UPSTREAM-2", "RS-UPSTREAM-10")
@pytest.mark.parametrize("sequence", [tuple, list])
@pytest.mark.parametrize("kind", MESH_KINDS)
def test_a_call_with_new_objects_of_equal_contents_is_found_again(worlds: Worlds, kind: str, sequence: type) -> None:
    """Meshes, placements and references are new at each call."""
    make = MESH_KINDS[kind]

    def call(group: Group, src: Any, dst: Any) -> None:
        src_ref, dst_ref = MOVE.tensor_refs(src, dst)
        placements = sequence(ROWS.placements), sequence(COLUMNS.placements)
        xferdtensor_python_impl(
            src_ref, make(ROWS.mesh), placements[0], dst_ref, make(COLUMNS.mesh), placements[1], group
        )

    world, body = worlds(4), repeat(MOVE, call)
    assert world.count(body) == FIRST_CALL
    for _ in range(3):
        assert world.count(body) == CacheCounters(launches_reused=4)


@pytest.mark.requirement("RS-UPSTREAM-2", "RS-UPSTREAM-10")
@pytest.mark.parametrize("sequence", [tuple, list])
def test_meshes_of_different_kinds_with_equal_ranks_share_plans_and_programs(worlds: Worlds, sequence: type) -> None:
    kinds = [*MESH_KINDS]

    def call(group: Group, src: Any, dst: Any) -> None:
        src_ref, dst_ref = MOVE.tensor_refs(src, dst)
        meshes = [MESH_KINDS[kinds[-1]](side.mesh) for side in (ROWS, COLUMNS)]
        placements = [sequence(side.placements) for side in (ROWS, COLUMNS)]
        xferdtensor_python_impl(src_ref, meshes[0], placements[0], dst_ref, meshes[1], placements[1], group)

    world, body = worlds(4), repeat(MOVE, call)
    world.run(body)
    while kinds:
        made = world.count(body)
        assert (made.plans_made, made.programs_lowered) == (0, 0)
        kinds.pop()


def device_mesh(side: Side, rank: int) -> DeviceMesh:
    return DeviceMesh("cpu", side.mesh, _init_backend=False, _rank=rank)


@pytest.mark.requirement("RS-UPSTREAM-2", "RS-UPSTREAM-10")
@pytest.mark.parametrize("sequence", [tuple, list])
@pytest.mark.parametrize("new", [False, True], ids=["one object", "a new object a call"])
def test_a_call_over_device_meshes_is_found_again_by_their_objects(
    worlds: Worlds, *, new: bool, sequence: type
) -> None:
    kept = {rank: [device_mesh(side, rank) for side in (ROWS, COLUMNS)] for rank in range(4)}

    def call(group: Group, src: Any, dst: Any) -> None:
        src_ref, dst_ref = MOVE.tensor_refs(src, dst)
        meshes = [device_mesh(side, group.rank) for side in (ROWS, COLUMNS)] if new else kept[group.rank]
        placements = [sequence(side.placements) for side in (ROWS, COLUMNS)]
        xferdtensor_python_impl(src_ref, meshes[0], placements[0], dst_ref, meshes[1], placements[1], group)

    world, body = worlds(4), repeat(MOVE, call)
    assert world.count(body) == FIRST_CALL
    for _ in range(3):
        made = world.count(body)
        assert made == (
            CacheCounters(submissions_resolved=4, launches_built=4) if new else CacheCounters(launches_reused=4)
        )


@pytest.mark.requirement("RS-UPSTREAM-10")
@pytest.mark.parametrize("new", [False, True], ids=["one object", "a new object a call"])
def test_a_call_with_layouts_is_found_again(worlds: Worlds, *, new: bool) -> None:
    kept = MOVE.arguments

    def call(group: Group, src: Any, dst: Any) -> None:
        restripe.reshard(src, dst, group, **(MOVE.arguments if new else kept))

    world, body = worlds(4), repeat(MOVE, call)
    assert world.count(body) == FIRST_CALL
    for _ in range(3):
        assert world.count(body) == CacheCounters(launches_reused=4)


@pytest.mark.requirement("RS-UPSTREAM-2", "RS-UPSTREAM-10")
@pytest.mark.parametrize("side", [0, 1], ids=["source", "destination"])
@pytest.mark.parametrize("grids", [([0, 1, 2, 3], [3, 1, 0, 2]), ([[0, 1], [2, 3]], [[0, 2], [1, 3]])], ids=str)
@pytest.mark.parametrize("change", CHANGING_MESHES)
def test_a_mesh_changed_in_place_is_seen(worlds: Worlds, change: str, grids: tuple[Any, Any], side: int) -> None:
    """The tensors, references and placements stay where they are; going back finds the first call again."""
    dims = (0,) if isinstance(grids[0][0], int) else (0, 1)
    other = Side([0, 1, 2, 3], (0,))
    moves = []
    for grid in grids:
        changed = Side(grid, dims)
        moves.append(Move((4, 8), *((changed, other) if side == 0 else (other, changed))))
    for sequence in (tuple, list):
        check_changes(worlds, moves, side, [CHANGING_MESHES[change](grids[0]) for _ in range(4)], sequence)


@pytest.mark.parametrize("change", RESHAPING)
def test_a_mesh_reshaped_in_place_is_seen_with_its_placements(worlds: Worlds, change: str) -> None:
    """The list of placements changes in place too."""
    grids: list[Any] = [[0, 1, 2, 3], [[0, 1], [2, 3]]]
    other = Side([3, 2, 1, 0], (0,))
    moves = [Move((4, 8), Side(grids[0], (1,)), other), Move((4, 8), Side(grids[1], (1, 1)), other)]
    check_changes(worlds, moves, 0, [CHANGING_MESHES[change](grids[0]) for _ in range(4)])
    moves = [Move((4, 8), Side(grids[0], (1,)), other), Move((8, 4), Side(grids[1], (1, 0)), other)]
    check_changes(worlds, moves, 0, [CHANGING_MESHES[change](grids[0]) for _ in range(4)])


def test_a_mesh_transposed_in_place_is_seen(worlds: Worlds) -> None:
    grids = [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]
    other = Side([3, 2, 1, 0], (0,))
    moves = [Move((4, 8), Side(grid, (0, 1)), other) for grid in grids]
    meshes = []
    for _ in range(4):
        mesh = CHANGING_MESHES[".mesh copy_"](grids[0])
        meshes.append(replace(mesh, change=partial(transpose_in_place, mesh.mesh_object.mesh)))
    check_changes(worlds, moves, 0, meshes)


def transpose_in_place(tensor: torch.Tensor, ranks: Any) -> None:
    tensor.t_()
    assert tensor.tolist() == ranks


def check_changes(
    worlds: Worlds, moves: list[Move], side: int, meshes: list[ChangingMesh], sequence: type = list
) -> None:
    """Make two moves in turn while the ranks' mesh of one side changes in place between them; all else is the same objects.

    Placements are a sequence of this type; a list changes in place where the moves' placements differ.
    """
    world = worlds(4)
    memories = [[torch.zeros(64, dtype=torch.int32) for _ in range(2)] for _ in range(4)]
    placements = [sequence(moves[0][side].placements) for _ in range(4)]
    other_layout = moves[0][1 - side].mesh_object, moves[0][1 - side].placements

    def body(group: Group) -> None:
        rank = group.rank
        src, dst = (
            None if local is None else memory[: local.numel()].view(local.shape).copy_(local)
            for memory, local in zip(memories[rank], move.local_tensors(rank), strict=True)
        )
        layouts = (meshes[rank].mesh_object, placements[rank]), other_layout
        (src_mesh, src_placements), (dst_mesh, dst_placements) = layouts if side == 0 else layouts[::-1]
        src_ref, dst_ref = move.tensor_refs(src, dst)
        xferdtensor_python_impl(src_ref, src_mesh, src_placements, dst_ref, dst_mesh, dst_placements, group)
        move.assert_moved(rank, src, dst)

    for turn in range(6):
        move = moves[turn % 2]
        for mesh, kept in zip(meshes, placements, strict=True):
            if turn:
                mesh.change(move[side].mesh)
            if tuple(kept) != move[side].placements:
                kept[:] = move[side].placements
        made = world.count(body)
        if turn < 2:
            assert made.submissions_resolved == made.launches_built == 4
        else:
            assert made == CacheCounters(launches_reused=4)
        assert world.count(body) == CacheCounters(launches_reused=4)


@pytest.mark.parametrize("side", [0, 1], ids=["source", "destination"])
@pytest.mark.parametrize("mesh_kind", MESH_KINDS)
def test_placements_changed_in_place_are_seen(worlds: Worlds, mesh_kind: str, side: int) -> None:
    """The mesh is the same object, and so is all else."""
    grid, other = [0, 1, 2, 3], Side([3, 2, 1, 0], (0,))
    sides = [Side(grid, (dim,)) for dim in (0, 1)]
    moves = [Move((4, 8), *((changed, other) if side == 0 else (other, changed))) for changed in sides]
    mesh = ChangingMesh(MESH_KINDS[mesh_kind](grid), lambda ranks: None)
    check_changes(worlds, moves, side, [mesh] * 4)


@pytest.mark.requirement("RS-UPSTREAM-10", "RS-CACHE-5")
def test_temporary_buffers_cost_a_launch_and_no_plan_or_program(worlds: Worlds) -> None:
    world = worlds(4)
    kept: list[Any] = []  # so that no address comes twice

    def body(group: Group) -> None:
        src, dst = MOVE.local_tensors(group.rank)
        kept.append((src, dst))
        MOVE.call_drop_in(group, src, dst)
        MOVE.assert_moved(group.rank, src, dst)

    assert world.count(body) == FIRST_CALL
    for _ in range(5):
        assert world.count(body) == CacheCounters(launches_built=4)


@pytest.mark.requirement("RS-UPSTREAM-10", "RS-CACHE-5")
def test_tensors_of_other_strides_have_a_program_of_their_own_and_no_plan(worlds: Worlds) -> None:
    world = worlds(4)
    world.run(MOVE.run_rank)
    transposed = Move(MOVE.shape, ROWS, COLUMNS, source=permuted)
    made = world.count(transposed.run_rank)
    assert (made.submissions_resolved, made.plans_made, made.programs_lowered) == (0, 0, 2)
    made = world.count(transposed.run_rank)
    assert (made.submissions_resolved, made.plans_made, made.programs_lowered) == (0, 0, 0)


def layers(count: int) -> list[tuple[Any, Any]]:
    """Return the local tensors of so many moves on one rank."""
    return [LOCAL.local_tensors(0) for _ in range(count)]


def move_all(tensors: list[tuple[Any, Any]]) -> Callable[[Group], None]:
    def body(group: Group) -> None:
        for src, dst in tensors:
            dst.copy_(poison_like(dst))
            LOCAL.call_drop_in(group, src, dst)
            LOCAL.assert_moved(0, src, dst)

    return body


@pytest.mark.requirement("RS-UPSTREAM-10")
def test_a_loop_that_fits_is_reused_whole_and_a_longer_one_only_builds_launches(
    worlds: Worlds, caplog: pytest.LogCaptureFixture
) -> None:
    """Each call has two tensors. As a model's layers do, moved tensor by tensor."""
    world, capacity = worlds(1), 8
    world.bound_caches(max_tensors=2 * capacity)
    tensors = layers(capacity + 1)
    with caplog.at_level(logging.WARNING, "restripe"):
        assert world.count(move_all(tensors[:capacity])) == CacheCounters(1, 1, 1, capacity)
        for _ in range(3):
            assert world.count(move_all(tensors[:capacity])) == CacheCounters(launches_reused=capacity)
        assert world.count(move_all(tensors[:capacity][::-1])) == CacheCounters(launches_reused=capacity)
        assert caplog.messages == []
        world.run(move_all(tensors[:capacity]))
        assert world.count(move_all(tensors[capacity:])) == CacheCounters(launches_built=1, evictions=1)
        for _ in range(2):  # the least recently used one is the next one
            made = world.count(move_all(tensors))
            assert made == CacheCounters(launches_built=capacity + 1, evictions=capacity + 1)
        assert world.count(move_all(tensors[1:])) == CacheCounters(launches_reused=capacity)
    assert caplog.messages == ["a group's cache of launches is full at 16 and drops those not used for longest"]


@pytest.mark.requirement("RS-UPSTREAM-10")
def test_the_launch_not_used_for_longest_goes_first(worlds: Worlds) -> None:
    world, tensors = worlds(1), layers(4)
    world.bound_caches(max_tensors=6)
    world.run(move_all(tensors[:3]))
    world.run(move_all(tensors[:1]))
    assert world.count(move_all(tensors[3:])) == CacheCounters(launches_built=1, evictions=1)
    assert world.count(move_all([tensors[0], tensors[2], tensors[3]])) == CacheCounters(launches_reused=3)
    assert world.count(move_all(tensors[1:2])) == CacheCounters(launches_built=1, evictions=1)


@pytest.mark.requirement("RS-UPSTREAM-10")
def test_the_1024_plans_used_last_are_kept(worlds: Worlds) -> None:
    world = worlds(1)
    dtypes = iter((torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64))

    def plans_made(*sizes: int) -> int:
        """Return how many plans are made for these sizes, in a dtype for which no program has been lowered."""
        dtype = next(dtypes)
        moves = [Move((size,), SINGLE, SINGLE, dtype) for size in sizes]
        return world.count(lambda group: [move.run_rank(group) for move in moves]).plans_made

    assert plans_made(*range(1024)) == 1024
    assert plans_made(0, 1023) == 0
    assert plans_made(1024) == 1
    assert plans_made(0, *range(2, 1025)) == 0
    plans_made(*range(1025))
    assert plans_made(0) == 1


@pytest.mark.requirement("RS-UPSTREAM-5")
@pytest.mark.parametrize("bounds", [{}, {"max_plans": 2}], ids=["as they are", "few plans"])
def test_calls_rotate_among_holders_and_each_rotation_is_lowered_once(worlds: Worlds, bounds: dict[str, int]) -> None:
    world = worlds(6)
    world.bound_caches(**bounds)
    moves = [Move((6, size), Side([3, 1, 2], (None,)), Side([4], (None,)), torch.int8) for size in (2, 3)]
    senders, lowered = [], 0
    for number in range(12):
        world.forget_events()
        lowered += world.count(moves[number % 2].run_rank).programs_lowered
        senders += [rank for rank in range(6) if "send" in world.ops(rank)]
    assert senders == [3, 1, 2] * 4
    assert lowered == 6 * len(moves) * 3  # ranks, moves, holders


@pytest.mark.requirement("RS-UPSTREAM-7")
def test_cached_calls_rotate_among_holders(worlds: Worlds) -> None:
    world, move = worlds(3), Move((4,), Side([0, 1], (None,)), Side([2], (None,)))
    body = repeat(move, move.call_drop_in)
    counts = [world.count(body) for _ in range(6)]
    assert [event.peer for event in world.events[2] if event.op == "recv"] == [0, 1] * 3
    assert counts[2:] == [CacheCounters(launches_reused=3)] * 4


def call_with_kept_layouts() -> Callable[[Group, Any, Any], object]:
    arguments = MOVE.arguments
    return lambda group, src, dst: restripe.reshard(src, dst, group, **arguments)


KINDS_OF_CALLS = pytest.mark.parametrize(
    "call", [MOVE.call_drop_in, call_with_kept_layouts()], ids=["new meshes", "one object each"]
)


@pytest.mark.requirement("RS-CACHE-5")
@KINDS_OF_CALLS
def test_a_clear_drops_all_tables(worlds: Worlds, call: Callable[[Group, Any, Any], object]) -> None:
    world, body = worlds(4), repeat(MOVE, call)
    for _ in range(3):
        assert world.count(body) == FIRST_CALL
        assert world.count(body) == CacheCounters(launches_reused=4)
        assert world.count(restripe.clear_caches) == NOTHING


@pytest.mark.requirement("RS-CACHE-5", "RS-CACHE-9")
@KINDS_OF_CALLS
def test_another_communicator_drops_all_tables(worlds: Worlds, call: Callable[[Group, Any, Any], object]) -> None:
    world, body = worlds(4), repeat(MOVE, call)
    for _ in range(2):
        assert world.count(body) == FIRST_CALL
        for group, communicator in zip(world.groups, world.make_communicators(), strict=True):
            group.communicator = communicator


def test_a_clear_keeps_the_counters() -> None:
    cache = CallCache()
    cache.counters.plans_made = 3
    cache.clear()
    assert cache.counters == CacheCounters(plans_made=3)


@pytest.mark.requirement("RS-AGREE-4", "RS-AGREE-5")
@pytest.mark.parametrize("check", ["first", "always", "off"])
def test_where_every_call_is_checked_no_launch_is_kept_and_the_program_is(worlds: Worlds, check: Check) -> None:
    def call(group: Group, src: Any, dst: Any) -> None:
        restripe.reshard(src, dst, group, **MOVE.arguments, check=check)

    world, body = worlds(4), repeat(MOVE, call)
    assert world.count(body) == FIRST_CALL
    assert world.count(body) == (
        CacheCounters(launches_built=4) if check == "always" else CacheCounters(launches_reused=4)
    )


@pytest.mark.parametrize(
    "modes", [(torch.inference_mode, torch.enable_grad), (torch.enable_grad, torch.inference_mode)]
)
@pytest.mark.parametrize("dst", [Side([0, 1], (0,)), Side([2, 3], (1,)), Side([[0, 2], [1, 3]], (0, None))])
@pytest.mark.parametrize("addresses", [False, True], ids=["tensors", "addresses"])
def test_a_call_cached_in_one_mode_of_autograd_is_reused_in_another(
    worlds: Worlds, modes: tuple[Any, Any], dst: Side, *, addresses: bool
) -> None:
    world = worlds(4)
    if addresses:
        world.take_addresses()
    move = Move((4, 6), Side([0, 1], (0,)), dst, torch.float32)
    mode = modes[0]

    def call(group: Group, src: Any, dst: Any) -> None:
        with mode():
            move.call_drop_in(group, src, dst)

    body = repeat(move, call)
    world.run(body)
    for mode in (*modes, *modes):  # noqa: B007 (the call reads it)
        assert world.count(body) == CacheCounters(launches_reused=4)


def test_plain_tensors_and_references_without_more_to_say_share_a_call(worlds: Worlds) -> None:
    world = worlds(3)
    move = Move((4,), Side([0, 1], (None,)), Side([2], (None,)))
    tensors = [move.local_tensors(rank) for rank in range(3)]

    def body(group: Group) -> None:
        for _ in range(2):  # each holder has its turn
            move.call_drop_in(group, *tensors[group.rank])
        for _ in range(2):
            restripe.reshard(*tensors[group.rank], group, **move.arguments)
        move.assert_moved(group.rank, *tensors[group.rank])

    made = world.count(body)
    assert (made.programs_lowered, made.launches_built + made.launches_reused) == (6, 12)
    assert world.count(body) == CacheCounters(launches_reused=12)


VIEWS_AT_ONE_ADDRESS: dict[str, tuple[torch.dtype, Callable[[torch.Tensor], torch.Tensor]]] = {
    "strides": (torch.float32, lambda tensor: tensor.view(2, 2).t()),
    "conj": (torch.complex64, lambda tensor: tensor.view(2, 2).conj()),
    "neg": (torch.float32, lambda tensor: torch._neg_view(tensor.view(2, 2))),
    "conj and neg": (torch.complex64, lambda tensor: torch._neg_view(tensor.view(2, 2).conj())),
}


@pytest.mark.requirement("RS-UPSTREAM-10")
@pytest.mark.parametrize("kind", VIEWS_AT_ONE_ADDRESS)
@pytest.mark.parametrize("side", [0, 1], ids=["source", "destination"])
def test_a_cached_call_is_not_served_to_another_view_at_the_same_address(worlds: Worlds, kind: str, side: int) -> None:
    dtype, view = VIEWS_AT_ONE_ADDRESS[kind]
    memories = [torch.arange(1, 5, dtype=torch.float32).to(dtype) * (1 - 2j if dtype.is_complex else 1) for _ in "sd"]
    plain = [memory.view(2, 2) for memory in memories]
    other = [view(memories[0]), plain[1]] if side == 0 else [plain[0], view(memories[1])]
    assert other[side].data_ptr() == plain[side].data_ptr()
    arguments: dict[str, Any] = {"src_layout": SINGLE.layout, "dst_layout": SINGLE.layout, "shape": (2, 2)}

    def body(group: Group) -> None:
        for src, dst in (plain, other, plain, other):
            memories[1].fill_(7)
            restripe.reshard(src, dst, group, **arguments)
            assert torch.equal(dst.resolve_conj().resolve_neg(), src.resolve_conj().resolve_neg())

    made = worlds(1).count(body)
    assert (made.plans_made, made.programs_lowered) == (1, 2)


@pytest.mark.requirement("RS-UPSTREAM-10")
@pytest.mark.parametrize("side", [0, 1], ids=["source", "destination"])
@pytest.mark.parametrize(
    ("view", "error"),
    [
        (lambda tensor: tensor.view(2, 3), ShapeError),
        (lambda tensor: tensor.view(torch.int32), DtypeError),
        (lambda tensor: tensor[:5], ShapeError),
    ],
    ids=["shape", "dtype", "size"],
)
def test_another_view_at_the_same_address_is_checked(
    worlds: Worlds, view: Callable[[torch.Tensor], torch.Tensor], error: type[ReshardError], side: int
) -> None:
    def body(group: Group) -> None:
        arguments: dict[str, Any] = move.arguments
        tensors = list(move.local_tensors(0))
        restripe.reshard(tensors[0], tensors[1], group, **arguments)
        move.assert_moved(0, *tensors)
        tensors[side] = view(tensors[side])  # type: ignore[arg-type]  # rank 0 has both
        restripe.reshard(tensors[0], tensors[1], group, **arguments)

    move = Move((6,), SINGLE, SINGLE, torch.float32)

    worlds(1).assert_all_raise(body, error)


@pytest.mark.parametrize("side", [0, 1], ids=["source", "destination"])
def test_a_cached_call_is_not_served_to_tensors_whose_memory_was_freed(worlds: Worlds, side: int) -> None:
    def body(group: Group) -> None:
        tensors = layers(1)[0]
        for _ in range(2):
            LOCAL.call_drop_in(group, *tensors)
        tensors[side].untyped_storage().resize_(0)
        LOCAL.call_drop_in(group, *tensors)

    worlds(1).assert_all_raise(body, MissingTensorError)


@pytest.mark.requirement("RS-UPSTREAM-10")
@pytest.mark.parametrize("check", ["first", "off"])
def test_a_reference_that_declares_another_shape_is_checked(worlds: Worlds, check: Check) -> None:
    def body(group: Group) -> None:
        src, dst = torch.zeros(6), torch.zeros(6)
        for size in (6, 7):
            src_ref, dst_ref = (
                TensorRef(torch.Size((declared,)), src.dtype, src.device, local)
                for declared, local in ((6, src), (size, dst))
            )
            restripe.reshard(
                src_ref, dst_ref, group, src_layout=SINGLE.layout, dst_layout=SINGLE.layout, shape=(6,), check=check
            )

    worlds(1).assert_all_raise(body, ShapeError)


@pytest.mark.parametrize(("dtype", "view"), [(torch.complex64, conjugate), (torch.float32, negative)])
def test_lazy_views_are_moved_by_their_values_at_each_call(
    worlds: Worlds, dtype: torch.dtype, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    world = worlds(4)
    move = Move((4, 6), ROWS, COLUMNS, dtype, source=view)
    body = repeat(move, move.call_drop_in)
    world.run(body)
    for _ in range(2):
        made = world.count(body)
        assert (made.plans_made, made.programs_lowered, made.launches_reused) == (0, 0, 2)  # reused by destinations


def test_a_missing_tensor_is_not_served_the_call_of_an_empty_one(worlds: Worlds) -> None:
    world, move = worlds(2), Move((1, 4), Side([0, 1], (0,)), Side([0], (None,)))

    def body(group: Group) -> None:
        src, dst = move.local_tensors(group.rank)
        for local in (src, None if group.rank else src):
            restripe.reshard(local, dst, group, **move.arguments)

    assert [type(outcome) for outcome in world.outcomes(body)] == [type(None), MissingTensorError]


def test_a_cache_keeps_no_tensor(worlds: Worlds) -> None:
    world = worlds(2)
    references: list[Any] = []

    def body(group: Group) -> None:
        move = Move((4,), Side([0], (None,)), Side([1], (None,)))
        src, dst = move.local_tensors(group.rank)
        for _ in range(3):
            move.call_drop_in(group, src, dst)
        references.extend(weakref.ref(local) for local in (src, dst) if local is not None)

    world.run(body)
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@pytest.mark.parametrize("identities", [2**19, 1])
def test_a_device_mesh_whose_id_is_in_a_key_is_kept(monkeypatch: pytest.MonkeyPatch, identities: int) -> None:
    """Another one could get its id."""
    monkeypatch.setattr("restripe.group.cache.MAX_IDENTITY_RANKS", identities)
    cache, placements, other = CallCache(), (Shard(0),), Mesh((2,), (0, 1))
    references = []
    for _ in range(3):
        mesh = device_mesh(ROWS, 0)
        cache.submission((mesh, placements, other, placements), torch.Size((4,)), torch.int8, None, 2)
        references.append(weakref.ref(mesh))
        del mesh
    gc.collect()
    assert None not in [reference() for reference in references]
    cache.clear()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


@pytest.mark.parametrize("kind", ["Mesh", ".mesh tensor", "DeviceMesh"])
def test_a_new_mesh_at_the_id_of_an_earlier_one_is_not_taken_for_it(worlds: Worlds, kind: str) -> None:
    """All else is the same objects."""
    world, whole = worlds(2), torch.arange(4, dtype=torch.int32)
    sharded, replicated, other_mesh = (Shard(0),), (Replicate(),), Mesh((2,), (0, 1))
    locals_ = [(torch.zeros(2, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)) for _ in range(2)]

    def body(group: Group) -> None:
        draw = Random(0)  # in no rhythm that ids could share
        for _ in range(60):
            ranks = draw.sample([0, 1], 2)
            mesh = device_mesh(Side(ranks, (0,)), group.rank) if kind == "DeviceMesh" else MESH_KINDS[kind](ranks)
            src, dst = locals_[group.rank]
            src.copy_(whole.chunk(2)[ranks.index(group.rank)])
            dst.zero_()
            src_ref, dst_ref = (TensorRef(whole.shape, whole.dtype, whole.device, local) for local in (src, dst))
            xferdtensor_python_impl(src_ref, mesh, sharded, dst_ref, other_mesh, replicated, group)
            assert bits(dst) == bits(whole)
            del mesh  # the next one may get its id

    world.run(body)
