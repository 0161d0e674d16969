"""Calls that find an earlier one again, calls that must not, and calls that a CUDA graph records."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import restripe
from restripe import Item, Refit, Resharder, TensorRef
from restripe.errors import CaptureError, DtypeError, MissingTensorError, ReshardError, ShapeError
from restripe.group import agreement
from restripe.group import state as module
from restripe.group.call import Bound, Check
from restripe.group.communicators import Links
from restripe.group.registry import state

from ..conftest import Worlds
from ..helpers.moves import Move, Side
from ..helpers.posting import Posting
from ..helpers.views import conjugate, permuted
from ..helpers.world import Group, World
from .test_state import SPLIT, Streams, clear, counted, given, planned

pytestmark = pytest.mark.usefixtures("alone")

ONE = Side([0], (None,))
TRIVIAL = Move((4,), ONE, ONE)
ITEM = Item("w", SPLIT.shape, SPLIT.dtype, SPLIT.src.layout, SPLIT.dst.layout)


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


@pytest.mark.requirement("RS-UPSTREAM-10", "RS-CACHE-5")
def test_a_warm_call_binds_nothing_also_with_other_tensors_of_the_same_sizes_and_strides(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = worlds(4)
    counts = counted(monkeypatch)
    for seed in range(3):  # each play makes tensors of its own
        replace(SPLIT, seed=seed).run(world)
    assert counts == [1] * 4
    turned = replace(SPLIT, source=permuted, destination=permuted)
    for seed in range(3):
        replace(turned, seed=seed).run(world)
    assert counts == [1] * 8
    replace(SPLIT, seed=3).run(world)
    assert counts == [1] * 8
    world.run(clear)
    SPLIT.run(world)
    assert counts == [1] * 12


def note(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, log: list[str]) -> None:
    """Log each call of what the owner has by a name."""
    call = getattr(owner, name)

    def noting(*arguments: Any, **more: Any) -> Any:
        log.append(name)
        return call(*arguments, **more)

    monkeypatch.setattr(owner, name, noting)


@pytest.mark.requirement("RS-UPSTREAM-10")
def test_tensors_of_one_layout_that_take_turns_are_each_looked_at_once(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a model's layers do, moved tensor by tensor; up to so many tensors, then all anew."""
    monkeypatch.setattr(module, "PLACES", 6)
    world, looked = worlds(1), list[str]()
    note(monkeypatch, module.State, "_checked", looked)
    move = Move((4,), Side([0], (None,)), Side([0], (None,)))
    layers = [move.hand(0) for _ in range(4)]

    def play(*numbers: int) -> int:
        looked.clear()

        def body(group: Group) -> None:
            for number in numbers:
                move.call(group, *layers[number])
                move.judge(0, *layers[number])

        world.run(body)
        return len(looked)

    assert play(0, 1, 2) == 3
    assert play(0, 1, 2, 2, 1, 0) == 0
    assert play(3) == 1
    assert play(3, 0) == 1


@pytest.mark.requirement("RS-UPSTREAM-10")
def test_calls_that_were_made_before_are_found_again_without_a_look_at_each_tensor(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever tensors take turns, plain or by reference, whichever holder sends, and in any mode of autograd once it is known."""
    world, looked = worlds(3), list[str]()
    note(monkeypatch, module, "looks", looked)
    note(monkeypatch, module.State, "_checked", looked)
    move = Move((4,), Side([0, 1], (None,)), Side([2], (None,)))
    layers = [[move.hand(rank) for _ in range(2)] for rank in range(3)]

    def plainly(group: Group, src: torch.Tensor | None, dst: torch.Tensor | None) -> None:
        restripe.reshard(src, dst, group, **given(move))

    def play(mode: Any) -> set[str]:
        looked.clear()

        def body(group: Group) -> None:
            with mode():
                for _ in range(2):
                    for layer in layers[group.rank]:
                        for way in (move.call, plainly):
                            way(group, *layer)
                            way(group, *layer)
                            move.judge(group.rank, *layer)

        world.run(body)
        return set(looked)

    assert play(torch.enable_grad) == {"looks", "_checked"}
    assert play(torch.enable_grad) == set()
    assert play(torch.inference_mode) == {"looks"}
    assert play(torch.inference_mode) == set()


def posting(world: World) -> World:
    """The world with transports that take addresses."""
    for group in world.groups:
        group.communicator = Posting(group.communicator)
    return world


@pytest.mark.parametrize(
    "modes", [(torch.inference_mode, torch.enable_grad), (torch.enable_grad, torch.inference_mode)]
)
@pytest.mark.parametrize("dst", [Side([0, 1], (0,)), Side([2, 3], (1,))])
def test_what_is_written_down_in_one_mode_of_autograd_is_enqueued_in_another(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, modes: Sequence[type], dst: Side
) -> None:
    world, written = posting(worlds(4)), list[str]()
    note(monkeypatch, Bound, "calls", written)
    move = Move((4, 6), Side([0, 1], (0,)), dst)
    hands = [move.hand(rank) for rank in range(4)]

    def play(group: Group, mode: type) -> None:
        with mode():
            move.call(group, *hands[group.rank])
            move.judge(group.rank, *hands[group.rank])

    for mode in (*modes, *modes):
        world.run(partial(play, mode=mode))
        assert len(written) == 4


@pytest.mark.requirement("RS-UPSTREAM-7")
def test_warm_calls_take_holders_in_turn(worlds: Worlds) -> None:
    world, move = worlds(3), Move((4,), Side([0, 1], (None,)), Side([2], (None,)))
    hands = [move.hand(rank) for rank in range(3)]
    for _ in range(6):
        world.run(lambda group: move.call(group, *hands[group.rank]))
    assert [event.peer for event in world.events[2] if event.op == "recv"] == [0, 1] * 3


def test_lazy_views_are_moved_by_their_values_again_and_again(worlds: Worlds) -> None:
    world = posting(worlds(4))
    move = replace(SPLIT, dtype=torch.complex64, source=conjugate)
    hands = [move.hand(rank) for rank in range(4)]

    def body(group: Group) -> None:
        src, dst = hands[group.rank]
        for _ in range(2):
            if dst is not None:
                dst.zero_()
            move.call(group, src, dst)
            move.judge(group.rank, src, dst)

    world.run(body)


def test_a_missing_tensor_is_no_empty_one(worlds: Worlds) -> None:
    world, move = posting(worlds(2)), Move((1, 4), Side([0, 1], (0,)), Side([0], (None,)))

    def body(group: Group) -> None:
        src, dst = move.hand(group.rank)
        for one in (src, None if group.rank else src):
            restripe.reshard(one, dst, group, **given(move))

    assert [type(outcome) for outcome in world.outcomes(body)] == [type(None), MissingTensorError]


def test_a_refit_of_nothing_runs_as_often_as_wanted(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        refit = Resharder(group).prepare([])
        for _ in range(2):
            assert refit.run({}, {}).is_completed()

    worlds(2).run(body)


def test_a_call_that_fails_once_the_ranks_have_agreed_leaves_them_out_of_step(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise MemoryError

    def body(group: Group) -> None:
        with pytest.raises(MemoryError):
            TRIVIAL.play(group)
        assert state(group).torn

    monkeypatch.setattr(module, "guard", fail)
    worlds(1).run(body)


def captured(group: Group, links: Links | None, call: Any) -> None:
    """What a call does while the device's current stream records a graph."""
    links = state(group).links(group) if links is None else links
    links.streams = Streams(recording=True)  # type: ignore[assignment]
    try:
        call()
    finally:
        links.streams = None


def test_a_warm_call_of_the_same_tensors_is_not_recorded_either(worlds: Worlds) -> None:
    move = Move((4,), Side([0], (None,)), Side([0], (None,)))

    def body(group: Group) -> None:
        src, dst = move.hand(0)
        move.call(group, src, dst)
        with pytest.raises(CaptureError, match="graph=True"):
            captured(group, None, lambda: move.call(group, src, dst))

    worlds(1).run(body)


@pytest.mark.parametrize(
    ("modes", "exchanges"), [(("first", "first"), 1), (("always", "always"), 2), (("off", "first"), 1)]
)
def test_a_warm_call_of_the_same_tensors_is_agreed_on_as_its_check_says(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, *, modes: tuple[Check, Check], exchanges: int
) -> None:
    move, told, compare = Move((4,), Side([0], (None,)), Side([0], (None,))), list[Any](), agreement.compare

    def counting(records: Any) -> Any:
        told.append(records)
        return compare(records)

    def body(group: Group) -> None:
        src, dst = move.hand(0)
        for mode in modes:
            restripe.reshard(src, dst, group, **given(move), check=mode)

    monkeypatch.setattr(agreement, "compare", counting)
    worlds(1).run(body)
    assert len(told) == exchanges


def test_a_call_without_communicators_of_its_own_is_not_recorded(worlds: Worlds) -> None:
    world = worlds(4)
    SPLIT.run(world)
    texts = world.refuses(lambda group: captured(group, None, lambda: SPLIT.play(group)), CaptureError)
    assert [text.partition(":")[0] for text in texts] == [f"rank {rank}" for rank in range(4)]
    assert all("graph=True" in text for text in texts)
    SPLIT.run(world)


def test_only_a_warm_refit_is_recorded_and_then_exchanges_nothing(worlds: Worlds) -> None:
    world = worlds(4)
    item = Item("w", SPLIT.shape, SPLIT.dtype, SPLIT.src.layout, SPLIT.dst.layout)
    refits = world.run(lambda group: Resharder(group, check="always").prepare([item], graph=True))

    def run(group: Group, move: Move = SPLIT) -> None:
        src, dst = move.hand(group.rank)
        refits[group.rank].run({"w": src}, {"w": dst})
        move.judge(group.rank, src, dst)

    def recorded(group: Group, move: Move = SPLIT) -> None:
        captured(group, refits[group.rank]._own, lambda: run(group, move))

    assert all("cold" in text for text in world.refuses(recorded, CaptureError))
    world.run(run)
    world.forget()
    world.run(recorded)
    assert not any({"exchange", "split"} & set(world.ops(rank)) for rank in range(4))

    def stray(group: Group) -> None:
        captured(group, refits[group.rank]._own, lambda: refits[group.rank].run({"stranger": torch.zeros(1)}, {}))

    world.refuses(stray, MissingTensorError)
    assert not any("exchange" in world.ops(rank) for rank in range(4))  # which a graph cannot hold
    turned = replace(SPLIT, destination=permuted)
    assert all("strides" in text for text in world.refuses(lambda group: recorded(group, turned), CaptureError))
    lazy = replace(SPLIT, dtype=torch.complex64, source=conjugate)
    outcomes = world.outcomes(lambda group: recorded(group, lazy))
    assert {type(outcome) for outcome in outcomes} <= {CaptureError}
    world.run(clear)
    assert all("cold" in text for text in world.refuses(recorded, CaptureError))
    world.run(run)
    world.run(recorded)


@pytest.mark.requirement("RS-CACHE-5")
def test_a_refit_with_communicators_of_its_own_agrees_anew_after_a_clear(worlds: Worlds) -> None:
    world = worlds(4)
    refits = world.run(lambda group: Resharder(group).prepare([ITEM], graph=True))
    hands = [SPLIT.hand(rank) for rank in range(4)]

    def run(group: Group) -> None:
        src, dst = hands[group.rank]
        refits[group.rank].run({"w": src}, {"w": dst})

    world.run(run)
    world.run(clear)
    world.forget()
    world.run(run)
    assert all("exchange" in world.ops(rank) for rank in range(4))


@pytest.mark.requirement("RS-CACHE-8")
def test_a_refit_keeps_no_communicator_after_a_clear(worlds: Worlds) -> None:
    world, refits = worlds(4), dict[int, Refit]()

    def body(group: Group) -> None:
        refits[group.rank] = Resharder(group).prepare([ITEM])
        src, dst = SPLIT.hand(group.rank)
        refits[group.rank].run({"w": src}, {"w": dst})

    world.run(body)
    made = [weakref.ref(one) for group in world.groups for one in state(group).links(group)._replicas.values()]
    world.run(clear)
    made += [weakref.ref(group.communicator) for group in world.groups]
    for group, other in zip(world.groups, world.communicators(), strict=True):
        group.communicator = other
    gc.collect()
    assert [mark() for mark in made] == [None] * 8


def test_the_same_tensors_go_over_the_communicators_of_each_refit(worlds: Worlds) -> None:
    world = worlds(4)
    for group in world.groups:
        group.communicator = Posting(group.communicator)

    def body(group: Group) -> None:
        session = Resharder(group)
        shared, own = (session.prepare([ITEM], graph=graph) for graph in (False, True))
        src, dst = SPLIT.hand(group.rank)
        for refit in (shared, own, shared):
            refit.run({"w": src}, {"w": dst})

    world.run(body)
    for log in world.events.values():
        used = [event.communicator for event in log if event.op in {"send", "recv"}]
        third = len(used) // 3
        assert used[:third] == used[2 * third :]
        assert not set(used[:third]) & set(used[third : 2 * third])


@pytest.mark.requirement("RS-UPSTREAM-10")
@pytest.mark.parametrize("check", ["first", "off"])
def test_what_is_told_of_a_tensor_may_have_changed(worlds: Worlds, check: Check) -> None:
    def body(group: Group) -> None:
        src, dst = torch.zeros(6), torch.zeros(6)
        for size in (6, 7):
            one, other = (
                TensorRef(torch.Size((told,)), src.dtype, src.device, local) for told, local in ((6, src), (size, dst))
            )
            restripe.reshard(one, other, group, src_layout=ONE.layout, dst_layout=ONE.layout, shape=(6,), check=check)

    worlds(1).refuses(body, ShapeError)


@pytest.mark.requirement("RS-UPSTREAM-10")
@pytest.mark.parametrize(
    ("other", "error"),
    [
        (lambda one: one.view(2, 3), ShapeError),
        (lambda one: one.view(torch.int32), DtypeError),
        (lambda one: one[:5], ShapeError),
    ],
)
def test_another_view_at_the_same_address_is_looked_at(
    worlds: Worlds, other: Callable[[torch.Tensor], torch.Tensor], error: type[ReshardError]
) -> None:
    def body(group: Group) -> None:
        src, dst = torch.zeros(6), torch.zeros(6)
        for into in (dst, other(dst)):
            restripe.reshard(
                src, into, group, src_layout=ONE.layout, dst_layout=ONE.layout, shape=(6,), dtype=src.dtype
            )

    worlds(1).refuses(body, error)


@pytest.mark.parametrize(("table", "most"), [("PLANS", 2), ("WAYS", 2), ("PLACES", 2)])
def test_a_refit_that_was_just_run_is_recorded_whatever_was_forgotten(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, table: str, most: int
) -> None:
    monkeypatch.setattr(module, table, most)

    def body(group: Group) -> None:
        refit = Resharder(group).prepare([Item("w", (4,), torch.int8, ONE.layout, ONE.layout)], graph=True)
        src, dst, room = (torch.zeros(size, dtype=torch.int8) for size in (4, 4, 40))

        def run(one: torch.Tensor = src) -> None:
            refit.run({"w": one}, {"w": dst})

        run()
        for size in (5, 6, 7):
            replace(TRIVIAL, shape=(size,)).play(group)
            run(room[: 4 * size : size])
        run()
        captured(group, refit._own, run)

    worlds(1).run(body)


def test_communicators_that_were_never_used_are_cold_whatever_ran_over_others(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        session, item = Resharder(group), Item("w", TRIVIAL.shape, TRIVIAL.dtype, ONE.layout, ONE.layout)
        shared, own = (session.prepare([item], graph=graph) for graph in (False, True))
        src, dst = TRIVIAL.hand(0)
        shared.run({"w": src}, {"w": dst})
        captured(group, own._own, lambda: own.run({"w": src}, {"w": dst}))

    (text,) = worlds(1).refuses(body, CaptureError)
    assert "cold" in text
