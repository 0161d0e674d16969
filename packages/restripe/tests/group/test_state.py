"""The state of a group: plans, splits, clears, what is left by groups that are gone, and when ranks agree."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import restripe
from reshard_conformance.trace import balance, symmetry
from restripe import Item, Resharder, Work
from restripe.errors import AgreementError, AliasingError, DtypeError, LayoutError, ShapeError
from restripe.execution import lowering as binding
from restripe.execution import streams
from restripe.execution.launch import Enqueue
from restripe.group import state as module
from restripe.group.call import Options
from restripe.group.registry import state
from restripe.planning import planner

from ..conftest import Worlds
from ..helpers.moves import Move, Side
from ..helpers.posting import Posting
from ..helpers.recording import Recorder, hold, used
from ..helpers.world import Group, World

pytestmark = pytest.mark.usefixtures("alone")

POINT = Move((4, 6), Side([0, 1], (0,)), Side([2], (None,)))
REPLICAS = Side([[1, 2], [0, 3]], (0, None))
SPLIT = Move((4, 6), Side([0, 1], (0,)), REPLICAS)


def clear(group: Group) -> None:
    restripe.clear_caches(group)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of tensors of each program that is bound from now on."""
    counts: list[int] = []
    bind = binding.bind

    def counting(plans: Any, *others: Any) -> Any:
        counts.append(len(plans))
        return bind(plans, *others)

    monkeypatch.setattr("restripe.group.call.bind", counting)
    return counts


def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that are planned from now on."""
    shapes: list[tuple[int, ...]] = []
    plan = planner.plan

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
    dtypes = iter((torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64))

    def play(*sizes: int) -> list[tuple[int, ...]]:
        """What is planned for these sizes, in a dtype that nothing is bound for yet."""
        shapes.clear()
        moves = [Move((size,), single, single, dtype) for dtype in [next(dtypes)] for size in sizes]
        world.run(lambda group: [move.play(group) for move in moves])
        return list(shapes)

    assert len(play(*range(1024))) == 1024
    assert play(0, 1023) == []
    assert play(1024) == [(1024,)]
    assert play(0, *range(2, 1025)) == []
    play(*range(1025))
    assert play(0) == [(0,)]
    assert len(state(world.groups[0])._plans) == 1024


@pytest.mark.requirement("RS-UPSTREAM-5")
def test_the_turn_moves_on_with_the_calls_and_each_holder_s_is_bound_once(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PLANS", 2)
    world = worlds(6)
    counts = counted(monkeypatch)
    moves = [Move((6, size), Side([3, 1, 2], (None,)), Side([4], (None,)), torch.int8) for size in (2, 3)]
    senders = []
    for number in range(12):
        world.forget()
        moves[number % 2].run(world)
        senders += [rank for rank in range(6) if "send" in world.ops(rank)]
    assert senders == [3, 1, 2] * 4
    assert len(counts) == 6 * len(moves) * 3  # ranks, moves, holders


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


@pytest.mark.requirement("RS-CACHE-7")
def test_communicators_are_released_last_made_first() -> None:
    log: list[str] = []
    group = used("base", log)
    hold(group, Recorder("split", log))
    restripe.clear_caches(group)
    assert log == ["finalize split", "destroy split", "finalize base", "destroy base"]


@pytest.mark.parametrize("op", ["split", "exchange", "group"])
def test_after_a_transport_s_failure_a_clear_waits_for_nobody(
    worlds: Worlds, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds(4)
    SPLIT.run(world)
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


@pytest.mark.requirement("RS-ERROR-9")
def test_of_the_faults_of_several_tensors_the_first_of_the_table_is_raised(worlds: Worlds) -> None:
    def body(group: Group, names: str) -> None:
        items = [Item(name, (4,), torch.int8, *[Side([0], (None,)).layout] * 2) for name in names]
        shared, twice = torch.zeros(8, dtype=torch.int8), torch.zeros(1, dtype=torch.int8).expand(4)
        src = {"a": shared[:4], "b": torch.zeros(4, dtype=torch.int8), "c": torch.zeros(5), "d": torch.zeros(4)}
        dst = {"a": shared[2:6], "b": twice, "c": torch.zeros(4, dtype=torch.int8), "d": torch.zeros(4)}
        refit = Resharder(group).prepare(items)
        refit.run(
            *[{name: side[name].to(torch.int8 if name == "c" else None) for name in names} for side in (src, dst)]
        )

    world = worlds(1)
    for names, kind in (("a", AliasingError), ("b", AliasingError), ("abc", ShapeError), ("abcd", DtypeError)):
        (text,) = world.refuses(lambda group: body(group, names), kind)  # noqa: B023
        assert f"'{names[-1]}'" in text


def test_a_stream_on_the_cpu_is_handed_to_the_transport_as_given(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, stream = worlds(4), object()
    seen: list[object] = []

    def noting(call: Callable[[torch.Tensor, int], None]) -> Callable[[torch.Tensor, int, object], None]:
        def noted(buffer: torch.Tensor, peer: int, stream: object) -> None:
            seen.append(stream)
            call(buffer, peer)

        return noted

    def body(group: Group) -> None:
        for op in ("send", "recv"):
            monkeypatch.setattr(group.communicator, op, noting(getattr(group.communicator, op)))
        src, dst = POINT.hand(group.rank)
        work = restripe.reshard(src, dst, group, stream=stream, **given(POINT))
        POINT.judge(group.rank, src, dst)
        assert work.is_completed()

    world.run(body)
    assert len(seen) == 4
    assert all(one is stream for one in seen)


def given(move: Move) -> dict[str, Any]:
    return {"src_layout": move.src.layout, "dst_layout": move.dst.layout, "shape": move.shape, "dtype": move.dtype}


class Streams:
    """The one stream of a device, None to the transport, with a log of what comes after the calls so far."""

    def __init__(self, *, recording: bool = False) -> None:
        self.recording = recording
        self.log: list[Any] = []

    def current(self) -> tuple[None, None, bool]:
        return None, None, self.recording

    def after(self, stream: None) -> Work:
        self.log.append("after")
        return Work(object())


def communicators(world: World, op: str) -> list[set[str]]:
    """The communicators that calls of this name went to, by rank."""
    return [{event.communicator for event in log if event.op == op} for log in world.events.values()]


@pytest.mark.requirement("RS-CACHE-5", "RS-CACHE-7")
def test_a_refit_for_a_graph_has_communicators_that_end_with_its_session_and_not_before(worlds: Worlds) -> None:
    world = worlds(4)
    item = Item("w", SPLIT.shape, SPLIT.dtype, SPLIT.src.layout, SPLIT.dst.layout)

    def run(group: Group, refit: restripe.Refit) -> None:
        src, dst = SPLIT.hand(group.rank)
        refit.run({"w": src}, {"w": dst})
        SPLIT.judge(group.rank, src, dst)

    def body(group: Group) -> restripe.Refit:
        SPLIT.play(group)
        with Resharder(group) as session, Resharder(group) as other:
            refits = [one.prepare([item], graph=True) for one in (session, other)]
            for refit in refits:
                run(group, refit)
            assert state(group).live == 1 + 2 * 2  # the shared split; a base and a split for each graph
            clear(group)
            assert state(group).live == 2 * 2
            run(group, refits[0])
            assert state(group).live == 2 * 2  # its split is there still
            other.__exit__(None, None, None)
            assert state(group).live == 2
            run(group, refits[0])
        assert state(group).live == 0
        return refits[0]

    refits = world.run(body)
    twins = [{name for name in names if name != "0"} for names in communicators(world, "split")]
    assert all(len(names) == 2 for names in twins)
    assert all(twin <= ended for twin, ended in zip(twins, communicators(world, "destroy"), strict=True))
    assert balance(world.events) == symmetry(world.events) == []
    world.forget()
    world.run(lambda group: run(group, refits[group.rank]))  # over the group's own, from now on
    assert {event.communicator.partition("/")[0] for log in world.events.values() for event in log} == {"0"}
    assert not any(twin & sent for twin, sent in zip(twins, communicators(world, "send"), strict=True))


def test_a_split_may_give_a_transport_that_takes_no_addresses(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is posted by address lies where the last call's tensors lay, whichever transport that call went over."""
    monkeypatch.setattr(Posting, "split", lambda one, color, key: one._base.split(color, key))
    move = Move((4, 6), Side([0, 2], (0,)), Side([1], (None,)))  # odd ranks' transports take addresses
    item = Item("w", move.shape, move.dtype, move.src.layout, move.dst.layout)

    def body(group: Group) -> None:
        session = Resharder(group)
        shared, own = (session.prepare([item], graph=graph) for graph in (False, True))
        first, second = (move.hand(group.rank) for _ in range(2))
        for refit, (src, dst) in ((shared, first), (own, second), (shared, second)):
            if dst is not None:
                dst.zero_()
            refit.run({"w": src}, {"w": dst})
            move.judge(group.rank, src, dst)

    worlds(3).run(body)


@pytest.mark.requirement("RS-STREAM-1")
def test_what_stays_goes_to_the_second_stream_where_there_is_one(worlds: Worlds) -> None:
    world, begun = worlds(2), list[int]()

    class Second:
        least = 0

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def begin(self, stream: object) -> None:
            begun.append(self.rank)

        def run(self, work: Enqueue, stream: object) -> None:
            work(stream)

    def body(group: Group) -> None:
        group.communicator = Posting(group.communicator)
        state(group).links(group).aside = Second(group.rank)  # type: ignore[assignment]
        Move((4, 6), Side([0, 1], (0,)), Side([0, 1], (1,))).play(group)

    world.run(body)
    assert sorted(begun) == [0, 1]


def test_an_error_in_a_session_aborts_its_own_graphs_and_no_other_s(worlds: Worlds) -> None:
    world = worlds(2)
    item = Item("w", (4,), torch.int8, Side([0], (None,)).layout, Side([1], (None,)).layout)

    def body(group: Group) -> None:
        keeping = Resharder(group)
        keeping.prepare([item], graph=True)
        with pytest.raises(KeyError), Resharder(group) as session:  # noqa: PT012  (the session must have begun)
            session.prepare([item], graph=True)
            raise KeyError
        assert state(group).live == 1
        state(group).abort()
        assert state(group).live == 0

    world.run(body)
    assert [[op for op in world.ops(rank) if op in {"abort", "finalize"}] for rank in range(2)] == [["abort"] * 2] * 2


@pytest.mark.requirement("RS-CACHE-5")
def test_a_clear_that_fails_halfway_leaves_nothing_behind() -> None:
    class Torn(Recorder):
        def finalize(self) -> None:
            raise OSError(f"the peer of {self.name} is gone")

    log: list[str] = []
    group = used("first", log)
    hold(group, Torn("second", log))
    hold(group, Recorder("third", log))
    with pytest.raises(OSError, match="peer of second"):
        restripe.clear_caches(group)
    assert log == ["finalize third", "destroy third", "abort second", "abort first"]
    assert state(group).live == 0


@pytest.mark.requirement("RS-AGREE-2", "RS-AGREE-3")
def test_a_graph_on_some_ranks_only_is_an_error_on_all(worlds: Worlds) -> None:
    world = worlds(3)
    texts = world.refuses(lambda group: Resharder(group).prepare([], graph=group.rank == 1), AgreementError)
    assert set(texts) == {texts[0]}
    assert texts[0].startswith("rank 1 calls with another graph: expected graph False as on rank 0, got True")
    assert not any("split" in world.ops(rank) for rank in range(3))


@pytest.mark.requirement("RS-CACHE-8")
def test_a_cleared_state_holds_nothing_of_its_group(worlds: Worlds) -> None:
    world = worlds(2)
    Move((4,), Side([0], (None,)), Side([1], (None,))).run(world)
    world.run(clear)
    marks = [weakref.ref(group.communicator) for group in world.groups]
    for group, communicator in zip(world.groups, world.communicators(), strict=True):
        group.communicator = communicator
    gc.collect()
    assert [mark() for mark in marks] == [None, None]


@pytest.mark.requirement("RS-CACHE-10", "RS-AGREE-2")
def test_leaving_a_session_on_one_rank_only_is_an_error_on_all_also_after_a_clear(worlds: Worlds) -> None:
    world = worlds(3)
    move = Move((4,), Side([0], (None,)), Side([1], (None,)), torch.int8)
    item = Item("w", move.shape, move.dtype, move.src.layout, move.dst.layout)
    sessions = [Resharder(group, check="always") for group in world.groups]

    def begin(group: Group) -> restripe.Refit:
        refit = sessions[group.rank].prepare([item], graph=True)
        clear(group)
        return refit

    refits = world.run(begin)

    def body(group: Group) -> None:
        if group.rank == 1:
            sessions[1].__exit__(None, None, None)
        src, dst = move.hand(group.rank)
        refits[group.rank].run({"w": src}, {"w": dst})

    texts = world.refuses(body, AgreementError)
    assert len(set(texts)) == 1
    world.run(lambda group: sessions[group.rank].__exit__(None, None, None))
    assert balance(world.events) == symmetry(world.events) == []


def test_on_a_device_a_call_follows_the_others_holds_its_tensors_and_gives_a_handle(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors are held also where a transport fails halfway, since it may read them still; an exchange follows too."""
    streams = Streams()
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, _: streams.log.append(tensor.numel()))
    world = worlds(1)
    move = Move((4,), Side([0], (None,)), Side([0], (None,)))

    def body(group: Group) -> None:
        state(group).links(group).streams = streams  # type: ignore[assignment]
        src, dst = move.hand(0)
        works = [restripe.reshard(src, dst, group, **given(move)) for _ in range(2)]
        assert all(work.stream is not None for work in works)
        assert works[0] is not works[1]
        move.judge(0, src, dst)

    call = ["after", 4, 4]
    world.run(body)
    assert streams.log == ["after", *call, *call]
    streams.log.clear()
    monkeypatch.setattr("restripe.group.call.execute", broken)
    with pytest.raises(OSError, match="cut"):
        world.run(body)
    assert streams.log == call


class Device(streams.Streams):
    """A device's streams, of which one is current; it notes what is enqueued there."""

    def __init__(self) -> None:
        super().__init__(0)
        self.ours = Noting()

    def current(self) -> tuple[int, Any, bool]:
        return 7, self.ours, False


class Noting:
    """A stream: its marks in order with what is copied."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.log: list[object] = []

    def record_event(self) -> object:
        self.log.append(object())
        return self.log[-1]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Whose streams a group's calls are enqueued on: see `on_device`."""
    found = Device()
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)

    def copies(_: Posting, pieces: Any) -> Enqueue:
        return found.ours.log.append

    monkeypatch.setattr(Posting, "copies", copies)
    return found


def on_device(group: Group, device: Device) -> None:
    group.communicator = Posting(group.communicator)
    state(group).links(group).streams = device


LOCAL = Move((4,), Side([0], (None,)), Side([0], (None,)), torch.complex64)


@pytest.mark.parametrize("lazy", [True, False])
def test_a_call_is_enqueued_on_the_handle_of_the_current_stream(worlds: Worlds, device: Device, *, lazy: bool) -> None:
    def body(group: Group) -> None:
        on_device(group, device)
        src, dst = LOCAL.hand(0)
        assert src is not None
        for _ in range(2):
            work = restripe.reshard(src.conj() if lazy else src, dst, group, **given(LOCAL))
            assert work.stream is device.ours

    worlds(1).run(body)
    assert device.ours.log == [7, 7]


def test_a_handle_stands_after_its_own_call_whoever_asks_others_meanwhile(worlds: Worlds, device: Device) -> None:
    """A watcher on another thread asks the handle of a call while the next one is enqueued."""
    works: list[Work] = []

    def watched(_: Posting, pieces: Any) -> Enqueue:
        def call(handle: int) -> None:
            for work in works:
                assert work.event
            device.ours.log.append("copy")

        return call

    def body(group: Group) -> None:
        on_device(group, device)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Posting, "copies", watched)
            src, dst = LOCAL.hand(0)
            for _ in range(2):
                works.append(restripe.reshard(src, dst, group, **given(LOCAL)))  # noqa: PERF401 - a call sees those before

    worlds(1).run(body)
    events = [work.event for work in works]
    assert device.ours.log == ["copy", events[0], "copy", events[1]]


def test_an_exchange_of_records_comes_after_the_calls_so_far_on_the_current_stream(
    worlds: Worlds, device: Device
) -> None:
    def body(group: Group) -> None:
        on_device(group, device)
        Resharder(group).prepare([])

    worlds(1).run(body)
    assert device._end is not None
    assert device._end.stream is device.ours


@pytest.mark.requirement("RS-AGREE-6")
def test_a_group_s_way_to_check_may_change_between_calls(worlds: Worlds) -> None:
    world = worlds(2)
    for check, exchanges in (("first", 1), ("first", 0), ("always", 1), ("always", 1), ("off", 0)):
        for group in world.groups:
            group.check = check
        world.forget()
        world.run(lambda group: Move((4,), Side([0], (None,)), Side([1], (None,))).play(group))
        assert [world.ops(rank).count("exchange") for rank in range(2)] == [exchanges] * 2


def test_a_transport_without_copies_is_given_tensors(worlds: Worlds) -> None:
    class Older(Posting):
        @property
        def copies(self) -> Any:
            raise AttributeError

    def body(group: Group) -> None:
        group.communicator = Older(group.communicator)
        Move((4, 6), Side([0, 1], (0,)), Side([0, 1], (1,))).play(group)

    worlds(2).run(body)


def broken(*_: object) -> None:
    raise OSError("the wire is cut")
