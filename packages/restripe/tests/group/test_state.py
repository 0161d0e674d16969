"""The state of a group: splits into replica groups, clears, faults of several tensors, and the end of sessions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import restripe
from reshard_conformance.judge.trace import release_faults, symmetry_faults
from restripe import Item, Refit, Resharder
from restripe.errors import AgreementError, AliasingError, DtypeError, ReshardError, ShapeError
from restripe.group import state as module
from restripe.group.registry import state_of

from ..conftest import Worlds
from ..helpers.address_transport import AddressTracer
from ..helpers.moves import Move, Side
from ..helpers.recording import RecordingCommunicator, give_communicator, group_owning
from ..helpers.world import Group

pytestmark = pytest.mark.usefixtures("own_registry")

REPLICAS = Side([[1, 2], [0, 3]], (0, None))
SPLIT = Move((4, 6), Side([0, 1], (0,)), REPLICAS)
SINGLE = Side([0], (None,))
LOCAL = Move((4,), SINGLE, SINGLE)


def fail(*_: object) -> None:
    raise OSError("the connection is lost")


@pytest.mark.requirement("RS-UPSTREAM-11")
def test_one_split_makes_all_replica_groups_and_one_leftover(worlds: Worlds) -> None:
    world = worlds(6)
    SPLIT.run(world)
    splits = {rank: [event.made for event in log if event.op == "split"] for rank, log in world.events.items()}
    assert splits == {1: ["0/0.0"], 2: ["0/0.0"], 0: ["0/0.1"], 3: ["0/0.1"], 4: ["0/0.2"], 5: ["0/0.2"]}
    collectives = [event for log in world.events.values() for event in log if event.op in {"all_gather", "broadcast"}]
    assert sorted((event.communicator, event.rank) for event in collectives) == [
        ("0/0.0", 0),
        ("0/0.0", 1),
        ("0/0.1", 0),
        ("0/0.1", 1),
    ]
    world.run(restripe.clear_caches)
    assert [log[-1].op for log in world.events.values()] == ["destroy"] * 6
    assert release_faults(world.events) == []
    assert symmetry_faults(world.events) == []


@pytest.mark.requirement("RS-UPSTREAM-11")
def test_ranks_stand_in_replica_order_in_their_communicator(worlds: Worlds) -> None:
    world = worlds(4)
    Move((4,), Side([0], (None,)), Side([[3, 0], [1, 2]], (None, 0)), torch.int8).run(world)
    ranks = {rank: [event.rank for event in log if event.op == "all_gather"] for rank, log in world.events.items()}
    assert ranks == {3: [0], 1: [1], 0: [0], 2: [1]}


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
        assert [state_of(group).live for group in world.groups] == [1] * 5
        world.run(restripe.clear_caches)
        world.run(restripe.clear_caches)
        assert [state_of(group).live for group in world.groups] == [0] * 5
    assert [world.ops(rank).count("split") for rank in range(5)] == [2] * 5
    assert [world.ops(rank).count("destroy") for rank in range(5)] == [2] * 5
    assert symmetry_faults(world.events) == release_faults(world.events) == []


@pytest.mark.requirement("RS-CACHE-5")
def test_clearing_a_group_that_was_never_used_makes_no_call(worlds: Worlds) -> None:
    world = worlds(3)
    world.run(restripe.clear_caches)
    assert [world.ops(rank) for rank in range(3)] == [[]] * 3


@pytest.mark.requirement("RS-CACHE-1", "RS-CACHE-5")
def test_a_clear_of_one_group_leaves_the_caches_of_another(worlds: Worlds) -> None:
    world = worlds(4)
    others = world.make_groups()
    SPLIT.run(world)
    world.run(lambda group: SPLIT.run_rank(others[group.rank]))
    world.run(restripe.clear_caches)
    world.forget_events()
    world.run(lambda group: SPLIT.run_rank(others[group.rank]))
    assert not any({"split", "exchange"} & set(world.ops(rank)) for rank in range(4))


@pytest.mark.requirement("RS-CACHE-5", "RS-CACHE-9")
def test_a_group_with_another_communicator_starts_over_and_a_clear_releases_both(worlds: Worlds) -> None:
    world = worlds(4)
    SPLIT.run(world)
    for group, communicator in zip(world.groups, world.make_communicators(), strict=True):
        group.communicator = communicator
    world.forget_events()
    SPLIT.run(world)
    assert all(
        [op for op in world.ops(rank) if op in {"exchange", "split"}] == ["exchange", "split"] for rank in range(4)
    )
    assert {event.communicator.partition("/")[0] for log in world.events.values() for event in log} == {"1"}
    world.run(restripe.clear_caches)
    destroyed = [[event.communicator for event in log if event.op == "destroy"] for log in world.events.values()]
    assert [sorted(name.partition("/")[0] for name in names) for names in destroyed] == [["0", "1"]] * 4


@pytest.mark.requirement("RS-CACHE-7")
def test_a_clear_releases_communicators_last_made_first() -> None:
    log: list[str] = []
    group = group_owning("base", log)
    give_communicator(group, RecordingCommunicator("split", log))
    restripe.clear_caches(group)
    assert log == ["finalize split", "destroy split", "finalize base", "destroy base"]


@pytest.mark.requirement("RS-CACHE-5")
def test_a_clear_that_fails_halfway_leaves_nothing_live() -> None:
    class UnfinalizableCommunicator(RecordingCommunicator):
        def finalize(self) -> None:
            raise OSError(f"the peer of {self.name} is gone")

    log: list[str] = []
    group = group_owning("first", log)
    give_communicator(group, UnfinalizableCommunicator("second", log))
    give_communicator(group, RecordingCommunicator("third", log))
    with pytest.raises(OSError, match="peer of second"):
        restripe.clear_caches(group)
    assert log == ["finalize third", "destroy third", "abort second", "abort first"]
    assert state_of(group).live == 0


@pytest.mark.requirement("RS-CACHE-8")
def test_a_cleared_state_keeps_nothing_of_its_group(worlds: Worlds) -> None:
    world = worlds(2)
    Move((4,), Side([0], (None,)), Side([1], (None,))).run(world)
    world.run(restripe.clear_caches)
    references = [weakref.ref(group.communicator) for group in world.groups]
    for group, communicator in zip(world.groups, world.make_communicators(), strict=True):
        group.communicator = communicator
    gc.collect()
    assert [reference() for reference in references] == [None, None]


@pytest.mark.requirement("RS-CACHE-8")
def test_a_refit_keeps_no_communicator_after_a_clear(worlds: Worlds) -> None:
    world, refits = worlds(4), dict[int, Refit]()
    replicas: list[weakref.ref[object]] = []

    def body(group: Group) -> None:
        refits[group.rank] = Resharder(group).prepare([SPLIT.item()])
        src, dst = SPLIT.local_tensors(group.rank)
        refits[group.rank].run({"w": src}, {"w": dst})
        replicas.append(weakref.ref(state_of(group).communicators(group).replicas(REPLICAS.layout)))

    world.run(body)
    world.run(restripe.clear_caches)
    references = [*replicas, *(weakref.ref(group.communicator) for group in world.groups)]
    for group, communicator in zip(world.groups, world.make_communicators(), strict=True):
        group.communicator = communicator
    gc.collect()
    assert [reference() for reference in references] == [None] * 8


@pytest.mark.parametrize("op", ["split", "exchange", "group"])
def test_after_a_failure_of_the_transport_a_clear_waits_for_nobody(
    worlds: Worlds, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds(4)
    SPLIT.run(world)
    for group in world.groups:
        monkeypatch.setattr(group.communicator, op, fail)
    other = replace(SPLIT, dst=Side([[2, 0], [3, 1]], (None, 0)), dtype=torch.int8)
    world.assert_all_raise(other.run_rank, OSError)
    world.forget_events()
    world.run(restripe.clear_caches)
    assert [set(world.ops(rank)) for rank in range(4)] == [{"abort"}] * 4


@pytest.mark.parametrize("name", ["bind_call", "CachedCall"])
def test_after_a_failure_since_the_ranks_agreed_a_clear_waits_for_nobody(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Such as memory that is not there: other ranks may have gone on."""
    world = worlds(2)
    SPLIT_OF_TWO.run(world)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, fail)
        world.assert_all_raise(replace(SPLIT_OF_TWO, dtype=torch.int8).run_rank, OSError)
    world.forget_events()
    world.run(restripe.clear_caches)
    assert [set(world.ops(rank)) for rank in range(2)] == [{"abort"}] * 2


SPLIT_OF_TWO = Move((4,), Side([0], (0,)), Side([0, 1], (None,)))


@pytest.mark.requirement("RS-ERROR-9", "RS-ERROR-8")
@pytest.mark.parametrize(
    ("names", "kind"), [("a", AliasingError), ("b", AliasingError), ("abc", ShapeError), ("abcd", DtypeError)]
)
def test_of_the_faults_of_several_tensors_the_first_of_the_table_is_raised(
    worlds: Worlds, names: str, kind: type[ReshardError]
) -> None:
    shared, repeated = torch.zeros(8, dtype=torch.int8), torch.zeros(1, dtype=torch.int8).expand(4)
    good = torch.zeros(4, dtype=torch.int8)
    src = {"a": shared[:4], "b": good, "c": torch.zeros(5, dtype=torch.int8), "d": torch.zeros(4)}
    dst = {"a": shared[2:6], "b": repeated, "c": torch.zeros(4, dtype=torch.int8), "d": torch.zeros(4)}

    def body(group: Group) -> None:
        refit = Resharder(group).prepare([Item(name, (4,), torch.int8, SINGLE.layout, SINGLE.layout) for name in names])
        refit.run(*({name: side[name] for name in names} for side in (src, dst)))

    (text,) = worlds(1).assert_all_raise(body, kind)
    assert f"'{names[-1]}'" in text


def test_a_refit_of_no_items_runs_as_often_as_wanted(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        refit = Resharder(group).prepare([])
        for _ in range(2):
            assert refit.run({}, {}).is_completed()

    worlds(2).run(body)


def test_a_split_may_give_a_transport_that_takes_no_addresses(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refit with communicators of its own then goes over another kind of transport than the group's other calls."""
    monkeypatch.setattr(AddressTracer, "split", lambda communicator, color, key: communicator.base.split(color, key))
    move = Move((4, 6), Side([0, 2], (0,)), Side([1], (None,)))  # the transports of odd ranks take addresses

    def body(group: Group) -> None:
        session = Resharder(group)
        shared, own = (session.prepare([move.item()], graph=graph) for graph in (False, True))
        tensors = [move.local_tensors(group.rank) for _ in range(2)]
        for refit, (src, dst) in ((shared, tensors[0]), (own, tensors[1]), (shared, tensors[1])):
            if dst is not None:
                dst.zero_()
            refit.run({"w": src}, {"w": dst})
            move.assert_moved(group.rank, src, dst)

    worlds(3).run(body)


@pytest.mark.parametrize("method", ["copies", "p2p", "collectives"])
def test_a_transport_without_one_of_the_methods_by_address_is_given_tensors(worlds: Worlds, method: str) -> None:
    class PartialTransport(AddressTracer):
        def __getattribute__(self, name: str) -> object:
            if name == method:
                raise AttributeError(name)
            return super().__getattribute__(name)

    def body(group: Group) -> None:
        group.communicator = PartialTransport(getattr(group.communicator, "base", group.communicator))
        Move((4, 6), Side([0, 1], (0,)), Side([0, 1], (1,))).run_rank(group)

    worlds(2).run(body)


@pytest.mark.requirement("RS-CACHE-10", "RS-AGREE-2")
def test_leaving_a_session_on_one_rank_only_is_an_error_on_all_also_after_a_clear(worlds: Worlds) -> None:
    world = worlds(3)
    move = Move((4,), Side([0], (None,)), Side([1], (None,)), torch.int8)
    sessions = [Resharder(group, check="always") for group in world.groups]

    def prepare_and_clear(group: Group) -> Refit:
        refit = sessions[group.rank].prepare([move.item()], graph=True)
        restripe.clear_caches(group)
        return refit

    refits = world.run(prepare_and_clear)

    def body(group: Group) -> None:
        if group.rank == 1:
            sessions[1].__exit__(None, None, None)
        src, dst = move.local_tensors(group.rank)
        refits[group.rank].run({"w": src}, {"w": dst})

    texts = world.assert_all_raise(body, AgreementError)
    assert len(set(texts)) == 1
    world.run(lambda group: sessions[group.rank].__exit__(None, None, None))
    assert release_faults(world.events) == symmetry_faults(world.events) == []


@pytest.mark.requirement("RS-AGREE-4", "RS-AGREE-5")
@pytest.mark.parametrize(
    ("modes", "exchanges"),
    [
        (("first", "first"), 1),
        (("always", "always"), 2),
        (("off", "off"), 0),
        (("off", "first"), 1),
        (("first", "off"), 1),
        (("first", "always"), 2),
        (("first", "always", "first"), 2),
    ],
)
def test_a_cached_call_is_agreed_on_as_its_check_says(worlds: Worlds, modes: tuple[str, ...], exchanges: int) -> None:
    world = worlds(1)
    src, dst = LOCAL.local_tensors(0)
    for mode in modes:
        world.run(lambda group: restripe.reshard(src, dst, group, **LOCAL.arguments, check=mode))  # type: ignore[arg-type]  # noqa: B023
    assert world.exchanges() == [exchanges]


@pytest.mark.parametrize("tensors", [SPLIT, replace(SPLIT, dtype=torch.int8)], ids=["agreed on", "new"])
def test_a_call_is_counted_once_whether_it_is_refused_or_not(
    worlds: Worlds, tensors: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds(4, "always")
    SPLIT.run(world)
    calls: list[Callable[[Group], object]] = [
        tensors.run_rank,
        lambda group: tensors.call_drop_in(group, None, None),
        lambda group: restripe.reshard(None, None, group, **(tensors.arguments | {"dtype": "int8"})),
        lambda group: restripe.reshard(None, None, group, **tensors.arguments, check="often"),  # type: ignore[arg-type]
        lambda group: Resharder(group).prepare([]),
        lambda group: Resharder(group, staging_bytes=0).prepare([]),
    ]
    for number, call in enumerate(calls, 2):
        world.outcomes(call)
        assert [state_of(group).calls for group in world.groups] == [number] * 4
