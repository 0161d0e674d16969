"""The state of a group: plans, splits, clears, what is left by groups that are gone, and when ranks agree."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
import torch

import restripe
from reshard_conformance.trace import balance, symmetry
from restripe import group as module
from restripe import planning
from restripe.errors import LayoutError
from restripe.group import Options, state, states

from .conftest import Worlds
from .moves import Move, Side
from .world import Group

POINT = Move((4, 6), Side([0, 1], (0,)), Side([2], (None,)))
REPLICAS = Side([[1, 2], [0, 3]], (0, None))
SPLIT = Move((4, 6), Side([0, 1], (0,)), REPLICAS)


class Recorder:
    """A communicator that only notes how it is released."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def finalize(self) -> None:
        self.log.append(f"finalize {self.name}")

    def destroy(self) -> None:
        self.log.append(f"destroy {self.name}")

    def abort(self) -> None:
        self.log.append(f"abort {self.name}")


class Plain:
    """A group with nothing but an identity."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weak table of the test's own: clearing everything must not reach the ranks of other tests."""
    monkeypatch.setattr(module, "_states", weakref.WeakKeyDictionary())
    monkeypatch.setattr(module, "_orphans", deque())


def clear(group: Group) -> None:
    restripe.clear_caches(group)


def used(name: str, log: list[str]) -> Plain:
    """A group that holds one communicator."""
    group = Plain()
    state(group)._made.append(Recorder(name, log))  # type: ignore[arg-type]
    return group


def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that are planned from now on."""
    shapes: list[tuple[int, ...]] = []
    plan = planning.plan

    def counting(src: Any, dst: Any, shape: tuple[int, ...], rank: int, turn: int = 0) -> Any:
        shapes.append(shape)
        return plan(src, dst, shape, rank, turn)

    monkeypatch.setattr(module, "plan", counting)
    return shapes


@pytest.mark.requirement("RS-UPSTREAM-10")
def test_the_1024_plans_used_last_are_kept(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds(1)
    shapes = planned(monkeypatch)
    single = Side([0], (None,))
    moves = [Move((size,), single, single, torch.int8) for size in range(1025)]

    def play(*numbers: int) -> list[tuple[int, ...]]:
        shapes.clear()
        world.run(lambda group: [moves[number].play(group) for number in numbers])
        return list(shapes)

    assert len(play(*range(1024))) == 1024
    assert play(0, 1023) == []
    assert play(1024) == [(1024,)]
    assert play(0) == []
    assert play(1) == [(1,)]
    assert play(2) == [(2,)]
    assert len(state(world.groups[0])._plans) == 1024


@pytest.mark.requirement("RS-UPSTREAM-10", "RS-CACHE-5")
def test_a_warm_call_plans_nothing_until_a_clear(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    world = worlds(4)
    shapes = planned(monkeypatch)
    SPLIT.run(world)
    assert len(shapes) == 4
    for dtype in (torch.int32, torch.int8):
        for _ in range(3):
            replace(SPLIT, dtype=dtype, src=Side([1], (None,))).run(world)
    assert len(shapes) == 8
    world.run(clear)
    SPLIT.run(world)
    assert len(shapes) == 12


@pytest.mark.requirement("RS-UPSTREAM-11")
def test_one_split_makes_all_replica_groups_and_one_leftover(worlds: Worlds) -> None:
    world = worlds(6)
    SPLIT.run(world)
    splits = {rank: [event.made for event in log if event.op == "split"] for rank, log in world.events.items()}
    assert splits == {1: ["0/0.0"], 2: ["0/0.0"], 0: ["0/0.1"], 3: ["0/0.1"], 4: ["0/0.2"], 5: ["0/0.2"]}
    gathers = [event for log in world.events.values() for event in log if event.op in {"all_gather", "broadcast"}]
    assert sorted((event.communicator, event.rank) for event in gathers) == [
        ("0/0.0", 0),
        ("0/0.0", 1),
        ("0/0.1", 0),
        ("0/0.1", 1),
    ]
    world.run(clear)
    assert [log[-1].op for log in world.events.values()] == ["destroy"] * 6
    assert balance(world.events) == []
    assert symmetry(world.events) == []


@pytest.mark.requirement("RS-UPSTREAM-11")
def test_members_stand_in_replica_order_in_their_communicator(worlds: Worlds) -> None:
    world = worlds(4)
    Move((4,), Side([0], (None,)), Side([[3, 0], [1, 2]], (None, 0)), torch.int8).run(world)
    places = {rank: [e.rank for e in log if e.op == "all_gather"] for rank, log in world.events.items()}
    assert places == {3: [0], 1: [1], 0: [0], 2: [1]}


@pytest.mark.requirement("RS-UPSTREAM-11")
def test_layouts_with_the_same_replica_groups_share_the_split(worlds: Worlds) -> None:
    world = worlds(4)
    for dst in (REPLICAS, Side(REPLICAS.mesh, (1, None)), Side(REPLICAS.mesh, (-1, None))):
        Move((4, 6), Side([0], (None,)), dst).run(world)
    assert [world.ops(rank).count("split") for rank in range(4)] == [1] * 4
    Move((4, 6), Side([0], (None,)), Side(REPLICAS.mesh, (None, None))).run(world)
    assert [world.ops(rank).count("split") for rank in range(4)] == [2] * 4


@pytest.mark.requirement("RS-UPSTREAM-12", "RS-CACHE-4")
@pytest.mark.parametrize("shape", [(4, 6), (5, 7), (0, 6), (3, 0), (1, 1)])
@pytest.mark.parametrize(
    ("src", "dst", "splits"),
    [
        (Side([0, 1], (0,)), REPLICAS, 1),
        (Side([4], (1,)), REPLICAS, 1),
        (Side([0, 1], (0,)), Side([[1, 2], [0, 3]], (0, 1)), 0),
        (Side([0, 1, 2, 3], (None,)), REPLICAS, 0),
        (REPLICAS, REPLICAS, 0),
        (Side([0], (0,)), Side([[1], [2]], (0, None)), 0),
    ],
)
def test_meshes_and_placements_alone_decide_about_a_split(
    worlds: Worlds, shape: tuple[int, ...], src: Side, dst: Side, splits: int
) -> None:
    world = worlds(6)
    Move(shape, src, dst).run(world)
    assert [world.ops(rank).count("split") for rank in range(6)] == [splits] * 6


@pytest.mark.requirement("RS-CACHE-2", "RS-CACHE-3", "RS-CACHE-5", "RS-CACHE-7")
def test_a_clear_drops_all_and_the_next_call_splits_again(worlds: Worlds) -> None:
    world = worlds(5)
    for _ in range(2):
        SPLIT.run(world)
        assert [state(group).live for group in world.groups] == [1] * 5
        world.run(clear)
        world.run(clear)
        assert [state(group).live for group in world.groups] == [0] * 5
    assert [world.ops(rank).count("split") for rank in range(5)] == [2] * 5
    assert [world.ops(rank).count("destroy") for rank in range(5)] == [2] * 5
    assert symmetry(world.events) == balance(world.events) == []


@pytest.mark.requirement("RS-CACHE-5")
def test_clearing_a_group_that_was_never_used_makes_no_call(worlds: Worlds) -> None:
    world = worlds(3)
    world.run(clear)
    assert [world.ops(rank) for rank in range(3)] == [[]] * 3


@pytest.mark.requirement("RS-CACHE-1", "RS-CACHE-5")
def test_one_group_s_clear_leaves_another_s_caches(worlds: Worlds) -> None:
    world = worlds(4)
    others = world.make()
    SPLIT.run(world)
    world.run(lambda group: SPLIT.play(others[group.rank]))
    world.run(clear)
    world.forget()
    world.run(lambda group: SPLIT.play(others[group.rank]))
    assert not any({"split", "exchange"} & set(world.ops(rank)) for rank in range(4))


@pytest.mark.requirement("RS-CACHE-5", "RS-CACHE-9")
def test_a_group_with_another_communicator_starts_over_and_releases_both(worlds: Worlds) -> None:
    world = worlds(4)
    SPLIT.run(world)
    for group, communicator in zip(world.groups, world.communicators(), strict=True):
        group.communicator = communicator
    world.forget()
    SPLIT.run(world)
    assert all(
        [op for op in world.ops(rank) if op in {"exchange", "split"}] == ["exchange", "split"] for rank in range(4)
    )
    assert {event.communicator.partition("/")[0] for log in world.events.values() for event in log} == {"1"}
    world.run(clear)
    destroyed = [[event.communicator for event in log if event.op == "destroy"] for log in world.events.values()]
    assert [sorted(name.partition("/")[0] for name in names) for names in destroyed] == [["0", "1"]] * 4


@pytest.mark.requirement("RS-CACHE-6")
def test_clearing_everything_goes_in_order_of_creation() -> None:
    log: list[str] = []
    groups = [used(name, log) for name in "bac"]
    state(groups[0])
    restripe.clear_caches()
    assert log == [f"{verb} {name}" for name in "bac" for verb in ("finalize", "destroy")]
    restripe.clear_caches()
    assert len(log) == 6


@pytest.mark.requirement("RS-CACHE-7")
def test_communicators_are_released_last_made_first() -> None:
    log: list[str] = []
    group = used("base", log)
    state(group)._made.append(Recorder("split", log))  # type: ignore[arg-type]
    restripe.clear_caches(group)
    assert log == ["finalize split", "destroy split", "finalize base", "destroy base"]


@pytest.mark.requirement("RS-CACHE-8")
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_collected_group_only_queues_its_release(elsewhere: bool) -> None:
    log: list[str] = []
    held = [used("a", log)]
    if elsewhere:
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
    held.clear()
    gc.collect()
    assert log == []
    assert states() == []
    assert log == ["abort a"]


@pytest.mark.requirement("RS-CACHE-8")
def test_two_threads_may_release_what_is_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Emptied(deque[Any]):
        """Another thread takes the last entry between the look and the grasp."""

        def __bool__(self) -> bool:
            return True

    monkeypatch.setattr(module, "_orphans", Emptied())
    assert states() == []


@pytest.mark.requirement("RS-CACHE-9")
def test_a_new_group_under_an_old_id_is_a_new_group() -> None:
    ids, numbers = set(), set()
    for _ in range(50):
        group = Plain()
        ids.add(id(group))
        found = state(group)
        assert not found.live
        found._made.append(Recorder("x", []))  # type: ignore[arg-type]
        numbers.add(found.number)
    assert len(ids) < 50, "no id came twice, so this run showed nothing"
    assert len(numbers) == 50


@pytest.mark.parametrize("stranger", [3, "group", (1, 2)])
def test_what_cannot_be_a_group_is_refused(stranger: object) -> None:
    with pytest.raises(LayoutError, match=r"expected a torch process group or an object with a \.communicator"):
        restripe.Resharder(stranger, check="off").prepare([])


@pytest.mark.parametrize("op", ["split", "exchange", "group"])
def test_after_a_transport_s_failure_a_clear_waits_for_nobody(
    worlds: Worlds, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds(4)
    SPLIT.run(world)

    def broken(*_: object) -> None:
        raise OSError("the wire is cut")

    for group in world.groups:
        monkeypatch.setattr(group.communicator, op, broken)
    world.refuses(replace(SPLIT, dst=Side([[2, 0], [3, 1]], (None, 0)), dtype=torch.int8).play, OSError)
    world.forget()
    world.run(clear)
    assert [set(world.ops(rank)) for rank in range(4)] == [{"abort"}] * 4


@pytest.mark.parametrize(("options", "text"), [({"check": "often"}, "often"), ({"staging_bytes": 0}, "got 0")])
def test_options_refuse_bad_values_at_birth(options: dict[str, Any], text: str) -> None:
    with pytest.raises(LayoutError, match=text):
        Options(**options)
