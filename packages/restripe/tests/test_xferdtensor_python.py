"""The drop-in: upstream's names and signatures, inputs by duck type, and upstream's behaviour in what crosses."""

from __future__ import annotations

import inspect
from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

from reshard_conformance.judge.trace import Event
from restripe import Mesh, TensorRef
from restripe.errors import LayoutError, MissingTensorError
from restripe.xferdtensor_python import clear_xferdtensor_python_caches, xferdtensor_python_impl

from .conftest import Worlds
from .helpers.moves import Move, Side, contiguous
from .helpers.views import permuted
from .helpers.world import Group, World

MOVE = Move((6, 4), Side([0, 1], (0,)), Side([[2], [3]], (None, 1)))


def total_bytes(world: World, op: str) -> Counter[int]:
    """Return the bytes of the calls of this name, by rank."""
    return Counter({rank: sum(e.nbytes or 0 for e in log if e.op == op) for rank, log in world.events.items()})


def calls_of(world: World, *ops: str) -> list[tuple[int, Event]]:
    return [(rank, event) for rank, log in world.events.items() for event in log if event.op in ops]


@pytest.mark.requirement("RS-UPSTREAM-1")
def test_the_signatures_are_those_of_upstream() -> None:
    names = [
        "src_tensor",
        "src_mesh",
        "src_placement",
        "dst_tensor",
        "dst_mesh",
        "dst_placement",
        "process_group",
        "stream",
    ]
    parameters = inspect.signature(xferdtensor_python_impl).parameters
    assert list(parameters) == names
    assert [name for name in names if parameters[name].default is not inspect.Parameter.empty] == ["stream"]
    assert parameters["stream"].default is None
    cleared = inspect.signature(clear_xferdtensor_python_caches).parameters
    assert [(name, parameter.default) for name, parameter in cleared.items()] == [("process_group", None)]


@pytest.mark.requirement("RS-UPSTREAM-1")
def test_the_call_returns_none_and_is_complete(worlds: Worlds) -> None:
    call: Any = xferdtensor_python_impl

    def body(group: Group) -> object:
        src, dst = MOVE.local_tensors(group.rank)
        src_ref, dst_ref = MOVE.tensor_refs(src, dst)
        result = call(
            src_ref,
            MOVE.src.mesh_object,
            MOVE.src.placements,
            dst_ref,
            MOVE.dst.mesh_object,
            MOVE.dst.placements,
            process_group=group,
            stream=None,
        )
        MOVE.assert_moved(group.rank, src, dst)
        return result

    assert worlds(5).run(body) == [None] * 5


def light_mesh(mesh: Any, *names: str) -> SimpleNamespace:
    """Return a mesh with its ranks under these names and little else."""
    ranks = torch.as_tensor(mesh)
    return SimpleNamespace(**dict.fromkeys(names, ranks), ndim=ranks.ndim)


@pytest.mark.requirement("RS-UPSTREAM-2")
@pytest.mark.parametrize("names", [("mesh",), ("_mesh",), ("mesh", "_mesh")])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_meshes_are_read_by_either_name(worlds: Worlds, names: tuple[str, ...], dtype: torch.dtype) -> None:
    def body(group: Group) -> None:
        src, dst = MOVE.local_tensors(group.rank)
        src_ref, dst_ref = MOVE.tensor_refs(src, dst)
        meshes = [light_mesh(torch.tensor(side.mesh, dtype=dtype), *names) for side in (MOVE.src, MOVE.dst)]
        xferdtensor_python_impl(src_ref, meshes[0], MOVE.src.placements, dst_ref, meshes[1], MOVE.dst.placements, group)
        MOVE.assert_moved(group.rank, src, dst)

    worlds(4).run(body)


@pytest.mark.requirement("RS-UPSTREAM-2")
def test_of_a_layout_passed_as_a_mesh_only_the_mesh_is_used(worlds: Worlds) -> None:
    move = Move((6, 4), Side([[0, 1], [2, 3]], (0, None)), Side([[0, 1], [2, 3]], (1, 0)))
    other = Side(move.src.mesh, (None, 0)).layout

    def body(group: Group) -> None:
        src, dst = move.local_tensors(group.rank)
        src_ref, dst_ref = move.tensor_refs(src, dst)
        for _ in range(2):
            xferdtensor_python_impl(src_ref, other, move.src.placements, dst_ref, other, move.dst.placements, group)
            move.assert_moved(group.rank, src, dst)

    worlds(4).run(body)


@pytest.mark.requirement("RS-UPSTREAM-2")
def test_a_placement_of_another_library_is_read_at_each_call(worlds: Worlds) -> None:
    segments, mesh = SimpleNamespace(dim=0, sizes=[2, 6]), Mesh((2,), (0, 1))  # the segments change
    cut: tuple[Any, ...] = (segments,)
    whole, full = torch.arange(8), (Replicate(),)

    def body(group: Group) -> None:
        parts = whole[: segments.sizes[0]], whole[segments.sizes[0] :]
        src, dst = torch.cat([part.chunk(2)[group.rank] for part in parts]), torch.zeros_like(whole)
        src_ref, dst_ref = (TensorRef(whole.shape, whole.dtype, whole.device, local) for local in (src, dst))
        xferdtensor_python_impl(src_ref, mesh, cut, dst_ref, mesh, full, group)
        assert torch.equal(dst, whole)

    world = worlds(2)
    for segments.sizes in ([2, 6], [4, 4], [6, 2]):
        world.run(body)


@pytest.mark.parametrize("side", ["src", "dst"])
@pytest.mark.parametrize("changed", ["mesh", "placements"])
def test_calls_that_differ_in_one_mesh_or_placement_are_told_apart(worlds: Worlds, side: str, changed: str) -> None:
    """All else is the same objects, as in a loop over layouts."""
    meshes = {name: Mesh((2,), (0, 1)) for name in ("src", "dst")}
    placements: dict[str, tuple[Any, ...]] = {"src": (Shard(0),), "dst": (Shard(0),)}
    other_meshes = meshes | ({side: Mesh((2,), (1, 0))} if changed == "mesh" else {})
    other_placements = placements | ({side: (Shard(1),)} if changed == "placements" else {})
    whole = torch.arange(16).view(4, 4)

    def body(group: Group) -> None:
        for mesh, kinds in ((meshes, placements), (other_meshes, other_placements)) * 2:
            src, expected = (
                whole.chunk(2, kinds[name][0].dim)[mesh[name].ranks.index(group.rank)].clone()
                for name in ("src", "dst")
            )
            dst = torch.zeros_like(expected)
            src_ref, dst_ref = (TensorRef(whole.shape, whole.dtype, whole.device, local) for local in (src, dst))
            xferdtensor_python_impl(src_ref, mesh["src"], kinds["src"], dst_ref, mesh["dst"], kinds["dst"], group)
            assert torch.equal(dst, expected)

    worlds(2).run(body)


@pytest.mark.requirement("RS-UPSTREAM-2", "RS-LAYOUT-3")
def test_references_need_four_names_and_are_left_as_they_are(worlds: Worlds) -> None:
    def reference(local: torch.Tensor | None) -> SimpleNamespace:
        return SimpleNamespace(
            shape=torch.Size(MOVE.shape), dtype=MOVE.dtype, device=torch.device("cpu"), _local_tensor=local
        )

    def body(group: Group) -> None:
        src, dst = MOVE.local_tensors(group.rank)
        idle = src is None and dst is None
        src_ref = reference(src) if src is not None or idle else None
        dst_ref = reference(dst) if dst is not None or idle else None
        meshes = MOVE.src.mesh_object, MOVE.dst.mesh_object
        xferdtensor_python_impl(src_ref, meshes[0], MOVE.src.placements, dst_ref, meshes[1], MOVE.dst.placements, group)
        assert src_ref is None or src_ref._local_tensor is src
        assert dst_ref is None or dst_ref._local_tensor is dst
        MOVE.assert_moved(group.rank, src, dst)

    worlds(5).run(body)


@pytest.mark.requirement("RS-UPSTREAM-3")
def test_a_group_is_anything_with_a_communicator(worlds: Worlds) -> None:
    world = worlds(4)
    world.run(MOVE.run_rank)
    with pytest.raises(LayoutError, match=r"object with a \.communicator, got SimpleNamespace"):
        MOVE.call_drop_in(SimpleNamespace(rank=0), None, None)  # type: ignore[arg-type]


@pytest.mark.requirement("RS-UPSTREAM-4", "RS-TRAFFIC-1", "RS-TRAFFIC-2")
def test_each_unique_byte_crosses_once_and_holders_serve_themselves(worlds: Worlds) -> None:
    world = worlds(6)
    src, dst = Side([[0, 1, 2], [3, 4, 5]], (0, None)), Side([[1, 4], [5, 2]], (0, None))
    Move((8, 3), src, dst, torch.int8).run(world)
    own = {1: 6, 4: 0, 5: 6, 2: 0}  # bytes of its own stripe that each receiver holds: rows 0-1, 2-3, 4-5, 6-7
    assert total_bytes(world, "recv") == Counter({0: 0, 3: 0, **{rank: 6 - held for rank, held in own.items()}})
    assert sum(total_bytes(world, "send").values()) == 8 * 3 - sum(own.values())


@pytest.mark.requirement("RS-UPSTREAM-5")
def test_holders_share_the_receivers_and_the_calls(worlds: Worlds) -> None:
    world = worlds(8)
    move = Move((8, 3), Side([0, 1, 2, 3], (None,)), Side([4, 5, 6, 7], (0,)), torch.int8)
    senders = []
    for _ in range(4):
        world.forget_events()
        move.run(world)
        assert total_bytes(world, "send") == Counter({0: 6, 1: 6, 2: 6, 3: 6})
        senders.append({rank: event.peer for rank, event in calls_of(world, "send")})
    assert all(len({peers[rank] for peers in senders}) == 4 for rank in range(4))


@pytest.mark.requirement("RS-UPSTREAM-5")
def test_two_worlds_choose_alike(worlds: Worlds) -> None:
    chosen = []
    for _ in range(2):
        world = worlds(8)
        for _ in range(3):
            Move((8, 3), Side([3, 1, 2, 0], (None,)), Side([4, 5, 6], (0,)), torch.int8).run(world)
        chosen.append(world.events)
    assert chosen[0] == chosen[1]


@pytest.mark.requirement("RS-UPSTREAM-6", "RS-UPSTREAM-9")
@pytest.mark.parametrize(("mesh", "first"), [([[3, 1], [2, 4]], {3, 2}), ([[4, 2], [1, 3]], {4, 1})])
@pytest.mark.parametrize(("shape", "dim"), [((4, 6), 1), ((2, 1), 0)])
def test_the_member_at_coordinate_0_receives_and_broadcasts(
    worlds: Worlds, mesh: list[list[int]], first: set[int], shape: tuple[int, ...], dim: int
) -> None:
    """Broken at both ends, and shards of one element."""
    world = worlds(7)
    Move(shape, Side([0, 5, 6], (dim,)), Side(mesh, (dim, None)), torch.int8).run(world)
    assert {rank for rank, _ in calls_of(world, "recv")} == first
    roots = {rank for rank, event in calls_of(world, "broadcast") if event.rank == event.peer}
    assert roots == first
    assert calls_of(world, "all_gather") == []


STRIPES = [
    ((8, 3), Side([0, 1], (0,)), Side([2, 3], (None,)), "all_gather", {2, 3}),
    ((8, 3), Side([0, 1], (1,)), Side([2, 3], (None,)), "all_gather", {2, 3}),  # broken only where it lands
    ((7, 3), Side([0, 1], (0,)), Side([2, 3], (None,)), "broadcast", {2, 3}),  # 4 and 3 rows
    ((4, 6), Side([0, 1, 4], (1,)), Side([[1, 3], [0, 2]], (None, 1)), "broadcast", {1, 3}),  # broken at both ends
    ((6, 3), Side([4], (0,)), Side([[0, 1], [2, 3]], (0, None)), "broadcast", {0, 1, 2, 3}),  # 2 and 1 rows a shard
    ((5, 3), Side([4], (0,)), Side([[0], [1], [2]], (None, 1)), "broadcast", {0, 1, 2}),  # 2, 2 and 1 rows
    ((4, 3), Side([4], (0,)), Side([[0, 1], [2, 3]], (0, None)), "all_gather", {0, 1, 2, 3}),
    ((1, 8), Side([4], (0,)), Side([[0, 1], [2, 3]], (1, None)), "all_gather", {0, 1, 2, 3}),  # dim 0 is of no use
    ((2, 5), Side([4], (0,)), Side([0, 1, 2, 3, 5], (None,)), "broadcast", {0, 1, 2, 3}),  # two rows, each in halves
    ((2, 3), Side([4], (0,)), Side([[0, 1], [2, 3], [5, 6]], (0, None)), "broadcast", {0, 1, 2, 3}),  # an empty shard
    ((4, 3), Side([4], (0,)), Side([[0, 1], [2, 3], [5, 6]], (0, None)), "all_gather", {0, 1, 2, 3}),
]


@pytest.mark.requirement("RS-UPSTREAM-7", "RS-UPSTREAM-8", "RS-UPSTREAM-9")
@pytest.mark.parametrize(("shape", "src", "dst", "op", "receivers"), STRIPES)
def test_a_destination_is_striped_by_the_rule_of_upstream(
    worlds: Worlds, shape: tuple[int, ...], src: Side, dst: Side, op: str, receivers: set[int]
) -> None:
    world = worlds(7)
    Move(shape, src, dst, torch.int8).run(world)
    calls = calls_of(world, "all_gather", "broadcast")
    assert {event.op for _, event in calls} == {op}
    assert {rank for rank, _ in calls_of(world, "recv")} == receivers
    if op == "broadcast" and len(receivers) > 2:
        assert {rank for rank, event in calls if event.rank == event.peer} == receivers


@pytest.mark.requirement("RS-UPSTREAM-7")
def test_a_rank_s_own_strides_decide_nothing(worlds: Worlds) -> None:
    events = []
    for source, destination in product((contiguous, permuted), repeat=2):
        world = worlds(4)
        Move((8, 3), Side([0, 1], (0,)), Side([2, 3], (None,)), torch.int8, source, destination).run(world)
        events.append(world.events)
    assert all(of_strides == events[0] for of_strides in events)


Memory = tuple[int, int]  # address, length in bytes


class MemoryTracer:
    """A communicator of tensors, not of addresses, that records the memory of what it receives and gathers; so do its splits."""

    def __init__(self, base: Any, memories: dict[str, list[Memory]]) -> None:
        self._base, self._memories = base, memories

    def __getattr__(self, name: str) -> Any:
        if name in {"p2p", "collectives", "copies"}:
            raise AttributeError(name)
        return getattr(self._base, name)

    def recv(self, buffer: torch.Tensor, peer: int, stream: Any = None) -> None:
        self._record("recv", buffer)
        self._base.recv(buffer, peer, stream)

    def all_gather(self, output: torch.Tensor, part: torch.Tensor, stream: Any = None) -> None:
        self._record("output", output)
        self._record("input", part)
        self._base.all_gather(output, part, stream)

    def split(self, color: int | None, key: int) -> Any:
        communicator = self._base.split(color, key)
        return None if communicator is None else MemoryTracer(communicator, self._memories)

    def _record(self, name: str, buffer: torch.Tensor) -> None:
        self._memories.setdefault(name, []).append((buffer.data_ptr(), buffer.nbytes))


@pytest.mark.requirement("RS-UPSTREAM-8")
def test_a_stripe_is_received_into_the_caller_s_shard_and_gathered_in_place(worlds: Worlds) -> None:
    world = worlds(5)
    move = Move((6, 5), Side([0, 1], (0,)), Side([4, 2, 3], (None,)), torch.int32)

    def body(group: Group) -> dict[str, list[Memory]]:
        memories: dict[str, list[Memory]] = {}
        group.communicator = MemoryTracer(group.communicator, memories)
        dst = move.run_rank(group)
        start = 0 if dst is None else dst.data_ptr()
        return {name: [(address - start, size) for address, size in sizes] for name, sizes in memories.items()}

    row = 5 * 4
    memories = world.run(body)
    for replica, rank in enumerate([4, 2, 3]):
        stripe = (2 * replica * row, 2 * row)
        received = [(2 * row, row), (3 * row, row)] if replica == 1 else [stripe]
        assert memories[rank] == {"recv": received, "output": [(0, 6 * row)], "input": [stripe]}


@pytest.mark.requirement("RS-UPSTREAM-9")
def test_a_tensor_without_dims_goes_to_a_representative(worlds: Worlds) -> None:
    world = worlds(4)
    Move((), Side([0, 1], (None,)), Side([3, 2], (None,)), torch.float64).run(world)
    assert total_bytes(world, "recv") == Counter({0: 0, 1: 0, 2: 0, 3: 8})
    assert {event.op for _, event in calls_of(world, "broadcast", "all_gather")} == {"broadcast"}


@pytest.mark.requirement("RS-AGREE-6")
@pytest.mark.parametrize(("variable", "of_group", "exchanges"), [
    (None, None, 1), ("always", None, 3), ("off", None, 0), ("off", "always", 3), ("always", "off", 0), ("", None, 1),
])  # fmt: skip
def test_the_mode_comes_from_the_group_or_the_environment(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, variable: str | None, of_group: str | None, exchanges: int
) -> None:
    monkeypatch.delenv("RESTRIPE_CHECK", raising=False)
    if variable is not None:
        monkeypatch.setenv("RESTRIPE_CHECK", variable)
    world = worlds(4, of_group)
    for _ in range(3):
        MOVE.run(world)
    assert [world.ops(rank).count("exchange") for rank in range(4)] == [exchanges] * 4


@pytest.mark.requirement("RS-AGREE-6")
def test_a_mode_that_does_not_exist_is_refused(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESTRIPE_CHECK", "sometimes")
    with pytest.raises(LayoutError, match=r"'first', 'always', 'off'.*'sometimes'"):
        MOVE.run(worlds(4))


@pytest.mark.requirement("RS-LAYOUT-3", "RS-ERROR-4")
def test_an_idle_rank_must_pass_shape_and_dtype(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        src, dst = MOVE.local_tensors(group.rank)
        src_ref, dst_ref = MOVE.tensor_refs(src, dst) if group.rank != 4 else (None, None)
        meshes = MOVE.src.mesh_object, MOVE.dst.mesh_object
        xferdtensor_python_impl(src_ref, meshes[0], MOVE.src.placements, dst_ref, meshes[1], MOVE.dst.placements, group)

    (text,) = set(worlds(5, "always").assert_all_raise(body, MissingTensorError))
    assert text.startswith("rank 4: no global shape is known")


@pytest.mark.requirement("RS-LAYOUT-3")
@pytest.mark.parametrize("side", [0, 1])
def test_an_idle_rank_may_pass_them_with_either_reference(worlds: Worlds, side: int) -> None:
    def body(group: Group) -> None:
        src, dst = MOVE.local_tensors(group.rank)
        references = list(MOVE.tensor_refs(src, dst))
        if group.rank == 4:
            references[1 - side] = None
        meshes = MOVE.src.mesh_object, MOVE.dst.mesh_object
        src_ref, dst_ref = references
        xferdtensor_python_impl(src_ref, meshes[0], MOVE.src.placements, dst_ref, meshes[1], MOVE.dst.placements, group)
        MOVE.assert_moved(group.rank, src, dst)

    worlds(5, "always").run(body)


@pytest.mark.requirement("RS-CACHE-5")
def test_the_drop_in_s_clear_is_restripe_s(worlds: Worlds) -> None:
    world = worlds(4)
    Move((4, 3), Side([0], (None,)), Side([2, 3], (None,))).run(world)
    world.run(clear_xferdtensor_python_caches)
    assert all(world.ops(rank)[-2:] == ["finalize", "destroy"] for rank in range(4))
