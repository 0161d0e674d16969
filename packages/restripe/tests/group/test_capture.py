"""Calls that a CUDA graph captures: which ones may be, and the communicators that graphs have to themselves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import restripe
from reshard_conformance.judge.trace import release_faults, symmetry_faults
from restripe import Refit, Resharder
from restripe.errors import AgreementError, CaptureError, MissingTensorError
from restripe.group.registry import state_of

from ..conftest import Worlds
from ..helpers.fake_device import FakeDevice
from ..helpers.moves import Move, Side
from ..helpers.views import conjugate, permuted
from ..helpers.world import Group, World

pytestmark = pytest.mark.usefixtures("own_registry")

SINGLE = Side([0], (None,))
LOCAL = Move((4,), SINGLE, SINGLE)
SPLIT = Move((4, 6), Side([0, 1], (0,)), Side([[1, 2], [0, 3]], (0, None)))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return FakeDevice(monkeypatch)


def run_refit(group: Group, refit: Refit, move: Move = SPLIT) -> None:
    """Run a refit of one item with new tensors."""
    src, dst = move.local_tensors(group.rank)
    refit.run({"w": src}, {"w": dst})
    move.assert_moved(group.rank, src, dst)


class Capture:
    """A context in which the device's current stream captures a graph."""

    def __init__(self, device: FakeDevice) -> None:
        self.streams = device.streams

    def __enter__(self) -> None:
        self.streams.capturing = True

    def __exit__(self, *_: object) -> None:
        self.streams.capturing = False


def assert_all_refuse(world: World, device: FakeDevice, body: Callable[[Group], object], text: str) -> None:
    """Assert that every rank refuses to be captured, each with its own rank."""
    with Capture(device):
        texts = world.assert_all_raise(body, CaptureError)
    assert [message.partition(":")[0] for message in texts] == [f"rank {rank}" for rank in range(world.size)]
    assert all(text in message for message in texts)


def used_communicators(world: World, op: str) -> list[set[str]]:
    """Return the names of the communicators that calls of this name went to, by rank."""
    return [{event.communicator for event in log if event.op == op} for log in world.events.values()]


@pytest.mark.requirement("RS-STREAM-8")
def test_a_call_without_communicators_of_its_own_is_refused(worlds: Worlds, device: FakeDevice) -> None:
    world = worlds(4)
    world.run(SPLIT.run_rank)
    assert_all_refuse(world, device, SPLIT.run_rank, "graph=True")
    world.run(SPLIT.run_rank)


@pytest.mark.requirement("RS-STREAM-8")
def test_a_cached_call_of_the_same_tensors_is_refused_as_well(worlds: Worlds, device: FakeDevice) -> None:
    world = worlds(4)
    tensors = [SPLIT.local_tensors(rank) for rank in range(4)]

    def body(group: Group) -> None:
        SPLIT.call_drop_in(group, *tensors[group.rank])

    world.run(body)
    assert world.count(body).launches_reused == 4
    assert_all_refuse(world, device, body, "graph=True")


@pytest.mark.requirement("RS-STREAM-7", "RS-STREAM-8")
@pytest.mark.parametrize("check", ["always", "first", "off"])
def test_only_a_refit_that_ran_is_captured_and_then_nothing_is_exchanged_or_split(
    worlds: Worlds, device: FakeDevice, check: str
) -> None:
    world = worlds(4)
    refits = world.run(lambda group: Resharder(group, check=check).prepare([SPLIT.item()], graph=True))  # type: ignore[arg-type]

    def run(group: Group) -> None:
        run_refit(group, refits[group.rank])

    assert_all_refuse(world, device, run, "cold")
    world.run(run)
    world.forget_events()
    with Capture(device):
        world.run(run)
    assert not any({"exchange", "split"} & set(world.ops(rank)) for rank in range(4))
    assert all(world.ops(rank) for rank in range(4))


@pytest.mark.requirement("RS-STREAM-8")
def test_a_captured_call_of_other_tensors_or_after_a_clear_is_cold(worlds: Worlds, device: FakeDevice) -> None:
    world = worlds(4)
    refits = world.run(lambda group: Resharder(group).prepare([SPLIT.item()], graph=True))

    def run(group: Group, move: Move = SPLIT) -> None:
        run_refit(group, refits[group.rank], move)

    world.run(run)
    transposed = replace(SPLIT, destination=permuted)
    assert_all_refuse(world, device, lambda group: run(group, transposed), "strides")
    lazy = replace(SPLIT, dtype=torch.complex64, source=conjugate)
    with Capture(device):
        outcomes = world.outcomes(lambda group: run(group, lazy))
    assert {type(outcome) for outcome in outcomes} == {CaptureError}
    world.run(restripe.clear_caches)
    assert_all_refuse(world, device, run, "cold")
    world.run(run)
    with Capture(device):
        world.run(run)


@pytest.mark.requirement("RS-STREAM-8")
def test_a_faulty_call_that_is_captured_exchanges_nothing(worlds: Worlds, device: FakeDevice) -> None:
    """A graph cannot hold an exchange."""
    world = worlds(4)
    refits = world.run(lambda group: Resharder(group, check="always").prepare([SPLIT.item()], graph=True))
    world.run(lambda group: run_refit(group, refits[group.rank]))
    world.forget_events()
    with Capture(device):
        world.assert_all_raise(
            lambda group: refits[group.rank].run({"unprepared": torch.zeros(1)}, {}), MissingTensorError
        )
    assert world.exchanges() == [0] * 4


@pytest.mark.parametrize("bounds", [{"max_plans": 2}, {"max_tensors": 2}], ids=str)
def test_a_refit_that_just_ran_is_captured_whatever_was_evicted(
    worlds: Worlds, device: FakeDevice, bounds: dict[str, int]
) -> None:
    world = worlds(1)
    world.bound_caches(**bounds)

    def body(group: Group) -> None:
        refit = Resharder(group).prepare([LOCAL.item()], graph=True)
        src, dst = LOCAL.local_tensors(0)
        memory = torch.zeros(40, dtype=LOCAL.dtype)

        def run(source: torch.Tensor | None = src) -> None:
            refit.run({"w": source}, {"w": dst})

        run()
        for size in (5, 6, 7):
            replace(LOCAL, shape=(size,)).run_rank(group)
            run(memory[: 4 * size : size])
        run()
        with Capture(device):
            run()

    made = world.count(body)
    assert made.evictions


def test_communicators_that_were_never_used_are_cold_though_others_ran(worlds: Worlds, device: FakeDevice) -> None:
    world = worlds(1)

    def prepare(group: Group) -> list[Refit]:
        session = Resharder(group)
        return [session.prepare([LOCAL.item()], graph=graph) for graph in (False, True)]

    ((shared, own),) = world.run(prepare)
    world.run(lambda group: run_refit(group, shared, LOCAL))
    assert_all_refuse(world, device, lambda group: run_refit(group, own, LOCAL), "cold")


@pytest.mark.requirement("RS-CACHE-5")
def test_a_refit_with_communicators_of_its_own_agrees_again_after_a_clear(worlds: Worlds) -> None:
    world = worlds(4)
    refits = world.run(lambda group: Resharder(group).prepare([SPLIT.item()], graph=True))
    tensors = [SPLIT.local_tensors(rank) for rank in range(4)]

    def run(group: Group) -> None:
        src, dst = tensors[group.rank]
        refits[group.rank].run({"w": src}, {"w": dst})

    world.run(run)
    world.run(restripe.clear_caches)
    world.forget_events()
    world.run(run)
    assert world.exchanges() == [1] * 4


@pytest.mark.requirement("RS-STREAM-7")
@pytest.mark.parametrize("addresses", [False, True], ids=["tensors or addresses", "addresses"])
def test_the_same_tensors_go_over_the_communicators_of_each_refit(worlds: Worlds, *, addresses: bool) -> None:
    world = worlds(4)
    if addresses:
        world.take_addresses()

    def body(group: Group) -> None:
        session = Resharder(group)
        shared, own = (session.prepare([SPLIT.item()], graph=graph) for graph in (False, True))
        src, dst = SPLIT.local_tensors(group.rank)
        for refit in (shared, own, shared, own):
            refit.run({"w": src}, {"w": dst})
            SPLIT.assert_moved(group.rank, src, dst)

    world.run(body)
    for log in world.events.values():
        names = [event.communicator for event in log if event.op in {"send", "recv"}]
        quarter = len(names) // 4
        assert names[:quarter] == names[2 * quarter : 3 * quarter]
        assert names[quarter : 2 * quarter] == names[3 * quarter :]
        assert not set(names[:quarter]) & set(names[quarter : 2 * quarter])


@pytest.mark.requirement("RS-CACHE-5", "RS-CACHE-7")
def test_communicators_for_a_graph_end_with_their_session_and_not_before(worlds: Worlds) -> None:
    world = worlds(4)

    def body(group: Group) -> Refit:
        SPLIT.run_rank(group)
        with Resharder(group) as session, Resharder(group) as other:
            refits = [one.prepare([SPLIT.item()], graph=True) for one in (session, other)]
            for refit in refits:
                run_refit(group, refit)
            assert state_of(group).live == 1 + 2 * 2  # the shared split; a base and a split for each graph
            restripe.clear_caches(group)
            assert state_of(group).live == 2 * 2
            run_refit(group, refits[0])
            assert state_of(group).live == 2 * 2  # its split was kept
            other.__exit__(None, None, None)
            assert state_of(group).live == 2
            run_refit(group, refits[0])
        assert state_of(group).live == 0
        return refits[0]

    refits = world.run(body)
    for_graphs = [{name for name in names if name != "0"} for names in used_communicators(world, "split")]
    assert all(len(names) == 2 for names in for_graphs)
    destroyed = used_communicators(world, "destroy")
    assert all(names <= ended for names, ended in zip(for_graphs, destroyed, strict=True))
    assert release_faults(world.events) == symmetry_faults(world.events) == []
    world.forget_events()
    world.run(lambda group: run_refit(group, refits[group.rank]))  # over the group's own, from now on
    assert {event.communicator.partition("/")[0] for log in world.events.values() for event in log} == {"0"}
    assert not any(names & sent for names, sent in zip(for_graphs, used_communicators(world, "send"), strict=True))


@pytest.mark.requirement("RS-CACHE-8")
def test_a_refit_for_a_graph_keeps_no_communicator_of_its_ended_session(worlds: Worlds) -> None:
    world = worlds(1)
    references: list[weakref.ref[object]] = []

    def body(group: Group) -> Refit:
        with Resharder(group) as session:
            refit = session.prepare([LOCAL.item()], graph=True)
            run_refit(group, refit, LOCAL)
            references.extend(weakref.ref(communicators) for communicators in state_of(group)._for_graphs)
        run_refit(group, refit, LOCAL)
        return refit

    refits = world.run(body)
    gc.collect()
    assert [reference() for reference in references] == [None]
    assert len(refits) == 1


def test_an_error_in_a_session_aborts_its_own_graphs_and_no_others(worlds: Worlds) -> None:
    world = worlds(2)
    item = Move((4,), Side([0], (None,)), Side([1], (None,))).item()

    def body(group: Group) -> None:
        kept = Resharder(group)
        kept.prepare([item], graph=True)
        with pytest.raises(KeyError), Resharder(group) as session:  # noqa: PT012  (the session must have begun)
            session.prepare([item], graph=True)
            raise KeyError
        assert state_of(group).live == 1
        state_of(group).abort()
        assert state_of(group).live == 0

    world.run(body)
    assert [[op for op in world.ops(rank) if op in {"abort", "finalize"}] for rank in range(2)] == [["abort"] * 2] * 2


@pytest.mark.requirement("RS-AGREE-2", "RS-AGREE-3")
def test_a_graph_on_some_ranks_only_is_an_error_on_all(worlds: Worlds) -> None:
    world = worlds(3)
    texts = world.assert_all_raise(lambda group: Resharder(group).prepare([], graph=group.rank == 1), AgreementError)
    assert set(texts) == {texts[0]}
    assert texts[0].startswith("rank 1 calls with another graph: expected graph False as on rank 0, got True")
    assert not any("split" in world.ops(rank) for rank in range(3))
