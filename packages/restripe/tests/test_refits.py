"""`Resharder` and `Refit` over simulated ranks: several tensors in one call, prepared by all ranks together."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

import restripe
from reshard_conformance.judge.trace import release_faults, symmetry_faults
from restripe import Item, Resharder
from restripe.errors import (
    AgreementError,
    AliasingError,
    DtypeError,
    InvalidPlacementError,
    LayoutError,
    MissingTensorError,
    ReshardError,
    ShapeError,
)
from restripe.group.cache import CacheCounters
from restripe.group.registry import state_of
from restripe.planning import rounds

from .conftest import Worlds
from .helpers.moves import Move, Side
from .helpers.views import permuted
from .helpers.world import Group

MOVE = Move((6, 4), Side([0, 1], (0,)), Side([2, 1], (1,)))


BATCH = {
    "norm": Move((7,), Side([0, 1], (0,)), Side([2, 3], (None,)), torch.bfloat16),
    "empty": Move((0, 4), Side([0, 1], (0,)), Side([2, 3], (1,)), torch.float64),
    "up": Move((8, 6), Side([0, 1], (0,)), Side([3, 2], (1,)), torch.float32, source=permuted),
    "down": Move((6, 8), Side([[0, 1]], (None, 1)), Side([2, 3], (None,)), torch.int8, destination=permuted),
    "scale": Move((), Side([1], (None,)), Side([2, 3, 0], (None,)), torch.float16),
    "both": Move((4, 4), Side([0, 1, 2], (1,)), Side([[1, 2]], (0, 0)), torch.complex128),
}


def items(moves: dict[str, Move], rank: int) -> list[Item]:
    """Return the items that a rank knows, each with the sides whose meshes the rank is in."""
    listed = []
    for name, move in moves.items():
        sides = {key: side.layout for key, side in (("src", move.src), ("dst", move.dst)) if rank in side.layout.mesh}
        listed += [Item(name, move.shape, move.dtype, **sides)] if sides else []
    return listed


Pairs = dict[str, tuple[torch.Tensor | None, torch.Tensor | None]]


def make_tensors(moves: dict[str, Move], rank: int, seed: int = 0) -> Pairs:
    """Return the local source and destination of each move."""
    return {name: replace(move, seed=seed).local_tensors(rank) for name, move in moves.items()}


def sides_of(tensors: Pairs) -> list[dict[str, torch.Tensor | None]]:
    """Return the arguments of `Refit.run`."""
    return [{name: pair[side] for name, pair in tensors.items()} for side in (0, 1)]


def run_batch(moves: dict[str, Move], group: Group, calls: int = 1, **options: Any) -> restripe.Refit:
    refit = Resharder(group, **options).prepare(items(moves, group.rank))
    for _ in range(calls):
        tensors = make_tensors(moves, group.rank)
        src, dst = sides_of(tensors)
        assert refit.run({name: local for name, local in src.items() if local is not None}, dst).wait()
        for name, pair in tensors.items():
            moves[name].assert_moved(group.rank, *pair)
    return refit


@pytest.mark.requirement("RS-BATCH-1", "RS-BATCH-2")
def test_a_refit_equals_one_call_a_tensor(worlds: Worlds) -> None:
    world = worlds(5)
    refits = world.run(lambda group: run_batch(BATCH, group, calls=2))
    assert all([item.name for item in refit.items] == sorted(BATCH) for refit in refits)
    assert symmetry_faults(world.events) == []
    assert world.exchanges() == [2] * 5  # digests, then the lists themselves


@pytest.mark.requirement("RS-BATCH-2")
def test_a_refit_is_one_submission(worlds: Worlds) -> None:
    world = worlds(4)
    world.run(lambda group: run_batch(BATCH, group))
    base = [event for log in world.events.values() for event in log if event.communicator == "0"]
    assert {event.submission for event in base if event.op in {"send", "recv"}} == {0}


@pytest.mark.requirement("RS-BATCH-1", "RS-BATCH-4", "RS-TRAFFIC-4")
@pytest.mark.parametrize("budget", [1, 7, 64])
def test_a_tiny_staging_budget_cuts_rounds_and_stays_exact(worlds: Worlds, budget: int) -> None:
    world = worlds(4)
    world.run(lambda group: run_batch(BATCH, group, staging_bytes=budget))
    base = [event for log in world.events.values() for event in log if event.communicator == "0"]
    assert len({event.submission for event in base if event.op == "send"}) > 1
    assert symmetry_faults(world.events) == []


@pytest.mark.requirement("RS-BATCH-1", "RS-BATCH-4")
def test_few_operations_a_round_cut_the_pairs_and_stay_exact(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "MAX_OPERATIONS", 2)
    world = worlds(8)
    wide = Move((16, 8), Side([0, 1, 2, 3], (0,)), Side([[4, 5], [6, 7]], (1, 1)))
    world.run(lambda group: run_batch({**BATCH, "wide": wide}, group))
    counts: dict[tuple[int, object], int] = {}
    for rank, log in world.events.items():
        for event in log:
            if event.op in {"send", "recv"}:
                key = rank, event.submission
                counts[key] = counts.get(key, 0) + 1
    assert max(counts.values()) <= 2


@pytest.mark.requirement("RS-BATCH-3", "RS-ERROR-3")
def test_a_name_given_twice_is_an_error_on_every_rank(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        listed = items(BATCH, group.rank)
        Resharder(group).prepare(listed + listed[:1] if group.rank == 1 else listed)

    (text,) = set(worlds(4).assert_all_raise(body, LayoutError))
    assert text.startswith("rank 1: items ['norm'] are given more than once")


WRONG_TYPE: Any = "S(0)"
BAD_ITEMS: list[tuple[Any, type[ReshardError], str]] = [
    (Item("new", (8,), torch.int8, src=WRONG_TYPE), LayoutError, "expected a restripe.Layout or None, got 'S(0)'"),
    (Item("new", (8,), WRONG_TYPE), DtypeError, "expected dtype to be a torch.dtype, got 'S(0)'"),
    (Item(7, (8,), torch.int8), LayoutError, "a restripe.Item with a name"),  # type: ignore[arg-type]
    (("new",), LayoutError, "expected a restripe.Item with a name, got ('new',)"),
    (Item("up", (8, 6), torch.float64, dst=BATCH["up"].dst.layout), DtypeError, "rank 3: item 'up' has dtype"),
    (Item("up", (8, 7), torch.float32, dst=BATCH["up"].dst.layout), ShapeError, "rank 3: item 'up' has shape"),
    (Item("up", (8, 6), torch.float32, dst=BATCH["norm"].dst.layout), AgreementError, "rank 3: item 'up' has dst"),
    (Item("new", (8,), torch.float32, dst=BATCH["norm"].dst.layout), MissingTensorError, "no rank names its source"),
    (Item("new", (8,), torch.int8, dst=BATCH["up"].dst.layout), InvalidPlacementError, "rank 3: destination layout of"),
    (Item("new", (8,), torch.int8, src=Side([0, 9], (0,)).layout), LayoutError, "rank 3: source layout of item 'new'"),
]


@pytest.mark.requirement("RS-AGREE-2", "RS-ERROR-4", "RS-ERROR-12")
@pytest.mark.parametrize(("item", "kind", "text"), BAD_ITEMS)
def test_a_faulty_or_differing_item_on_one_rank_is_an_error_on_all(
    worlds: Worlds, item: Any, kind: type[ReshardError], text: str
) -> None:
    def body(group: Group) -> None:
        name = getattr(item, "name", None)
        listed = [other for other in items(BATCH, group.rank) if other.name != name or group.rank != 3]
        Resharder(group).prepare([*listed, item] if group.rank == 3 else listed)

    world = worlds(4)
    texts = world.assert_all_raise(body, kind)
    assert len(set(texts)) == 1
    assert text in texts[0]
    world.run(lambda group: run_batch(BATCH, group))


@pytest.mark.requirement("RS-LAYOUT-4")
def test_items_may_count_shard_dims_from_either_end(worlds: Worlds) -> None:
    def body(group: Group) -> tuple[Any, ...]:
        dims = (0, 1) if group.rank else (-2, -1)
        move = Move((4, 6), Side([0, 1], dims[:1]), Side([1, 2], dims[1:]), torch.int8)
        refit = Resharder(group).prepare([move.item()])
        src, dst = move.local_tensors(group.rank)
        restripe.reshard(src, dst, group, **move.arguments, check="always")
        move.assert_moved(group.rank, src, dst)
        return refit.items

    assert len(set(worlds(3).run(body))) == 1


@pytest.mark.requirement("RS-AGREE-2")
def test_a_prepare_that_meets_a_call_is_refused_by_both(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        if group.rank == 1:
            Resharder(group).prepare([])
        src, dst = MOVE.local_tensors(group.rank)
        restripe.reshard(src, dst, group, **MOVE.arguments, check="always")

    world = worlds(3)
    (text,) = set(world.assert_all_raise(body, AgreementError))
    assert text.startswith("rank 1 calls with another call: expected call reshard as on rank 0, got prepare")
    world.run(MOVE.run_rank)


@pytest.mark.requirement("RS-AGREE-1", "RS-ERROR-12")
@pytest.mark.parametrize(
    ("side", "tensors", "text"),
    [
        (0, {"unprepared": torch.zeros(1)}, "tensors ['unprepared'] were not prepared"),
        (1, {"unprepared": torch.zeros(1)}, "tensors ['unprepared'] were not prepared"),
        (0, {"unprepared": torch.zeros(1), 7: None}, "tensors [7, 'unprepared'] were not prepared"),
        (0, [torch.zeros(1)], "expected tensors by item name, got list"),
        (1, [torch.zeros(1)], "expected tensors by item name, got list"),
        (0, {"up": [1.0]}, "item 'up': expected a tensor"),
        (0, {"up": None}, "source 'up': rank 1 is in its mesh"),
    ],
)
def test_tensors_that_were_not_prepared_are_refused_by_all(worlds: Worlds, side: int, tensors: Any, text: str) -> None:
    def body(group: Group) -> None:
        refit = Resharder(group, check="always").prepare(items(BATCH, group.rank))
        sides: list[Any] = sides_of(make_tensors(BATCH, group.rank))
        if group.rank == 1:
            sides[side] = sides[side] | tensors if isinstance(tensors, dict) else tensors
        refit.run(*sides)

    texts = worlds(5).assert_all_raise(body, MissingTensorError)
    assert len(set(texts)) == 1
    assert texts[0].startswith("rank 1: ")
    assert text in texts[0]


PAIR = {
    "a": Move((4, 3), Side([0], (None,)), Side([1], (None,))),
    "b": Move((4, 3), Side([0], (None,)), Side([1], (None,))),
}


def run_sharing(group: Group, offsets: dict[tuple[str, str], int]) -> None:
    """Run a refit of two items from rank 0 to rank 1, whose tensors of these names and sides are in one memory."""
    refit = Resharder(group, check="always").prepare(items(PAIR, group.rank))
    memory = torch.zeros(40, dtype=torch.int32)
    sides: dict[str, dict[str, torch.Tensor]] = {"src": {}, "dst": {}}
    for name, move in PAIR.items():
        for side, local in zip(sides, move.local_tensors(group.rank), strict=True):
            if local is not None:
                start = offsets.get((name, side))
                sides[side][name] = local if start is None else memory[start : start + 12].view(4, 3).copy_(local)
    refit.run(sides["src"], sides["dst"])


@pytest.mark.requirement("RS-ERROR-8", "RS-ERROR-11", "RS-BATCH-1")
def test_destinations_of_two_items_that_share_memory_are_refused_by_all(worlds: Worlds) -> None:
    world = worlds(3)
    (text,) = set(
        world.assert_all_raise(lambda group: run_sharing(group, {("a", "dst"): 0, ("b", "dst"): 11}), AliasingError)
    )
    assert text.startswith("rank 1: destination 'a' and destination 'b' share elements")
    assert not any("send" in world.ops(rank) for rank in range(3))
    world.run(lambda group: run_sharing(group, {("a", "dst"): 0, ("b", "dst"): 12}))


@pytest.mark.requirement("RS-EXACT-11", "RS-BATCH-1")
def test_sources_of_two_items_may_share_memory(worlds: Worlds) -> None:
    world = worlds(2)
    world.run(lambda group: run_sharing(group, {("a", "src"): 0, ("b", "src"): 0}))


@pytest.mark.requirement("RS-ERROR-8", "RS-BATCH-1")
@pytest.mark.parametrize("apart", [True, False])
def test_one_item_s_destination_is_not_another_s_source(worlds: Worlds, apart: bool) -> None:
    there, back = (
        Move((4, 3), Side([0], (None,)), Side([1], (None,))),
        Move((4, 3), Side([1], (None,)), Side([0], (None,))),
    )

    def body(group: Group) -> None:
        refit = Resharder(group, check="always").prepare(items({"there": there, "back": back}, group.rank))
        out, into = there.local_tensors(0)[0], back.local_tensors(0)[1]
        assert out is not None
        assert into is not None
        if group.rank == 1:
            mine = torch.cat([out, into])
            refit.run({"back": mine[4:]}, {"there": mine[:4] if apart else mine[3:7]})
        else:
            refit.run({"there": out}, {"back": into})

    world = worlds(2)
    if apart:
        world.run(body)
        return
    (text,) = set(world.assert_all_raise(body, AliasingError))
    assert text.startswith("rank 1: destination 'there' and source 'back' share elements")


@pytest.mark.requirement("RS-BATCH-1", "RS-CACHE-5")
def test_a_later_run_sees_that_only_its_second_item_has_moved(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        refit = Resharder(group).prepare(items(PAIR, group.rank))
        tensors = make_tensors(PAIR, group.rank)
        earlier = tensors["b"]
        for _ in range(2):
            refit.run(*sides_of(tensors))
            for name, pair in tensors.items():
                PAIR[name].assert_moved(group.rank, *pair)
            tensors["b"] = PAIR["b"].local_tensors(group.rank)
            for local in earlier:
                if local is not None:
                    local.zero_()
        assert all(local is None or not local.any() for local in earlier)

    worlds(2).run(body)


@pytest.mark.requirement("RS-BATCH-1", "RS-CACHE-5")
def test_runs_with_new_tensors_launch_anew_and_with_the_same_ones_reuse_the_launch(worlds: Worlds) -> None:
    world = worlds(4)
    refits = world.run(lambda group: Resharder(group).prepare(items(BATCH, group.rank)))
    kept: dict[int, list[Pairs]] = {rank: [] for rank in range(4)}

    def run(group: Group, number: int) -> None:
        tensors = kept[group.rank][number]
        refits[group.rank].run(*sides_of(tensors))
        for name, pair in tensors.items():
            BATCH[name].assert_moved(group.rank, *pair)

    for number in range(3):
        for rank in range(4):
            kept[rank].append(make_tensors(BATCH, rank))
        made = world.count(lambda group: run(group, number))  # noqa: B023
        assert (made.launches_built, made.launches_reused) == (4, 0)
        assert (made.plans_made > 0) == (made.programs_lowered > 0) == (number == 0)
    for number in (2, 0, 1):
        assert world.count(lambda group: run(group, number)) == CacheCounters(launches_reused=4)  # noqa: B023


@pytest.mark.requirement("RS-BATCH-1", "RS-CACHE-5")
def test_a_later_run_checks_where_its_tensors_are_now(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        refit = Resharder(group).prepare(items(PAIR, group.rank))
        for seed in (0, 13, 1):
            tensors = make_tensors(PAIR, group.rank, seed)
            refit.run(*sides_of(tensors))
            for name, pair in tensors.items():
                replace(PAIR[name], seed=seed).assert_moved(group.rank, *pair)
        if group.rank == 1:
            memory = torch.zeros(8, 3, dtype=torch.int32)
            with pytest.raises(AliasingError, match="destination 'a' and destination 'b'"):
                refit.run({}, {"a": memory[:4], "b": memory[1:5]})

    worlds(2).run(body)


@pytest.mark.requirement("RS-CACHE-8")
def test_a_cached_run_keeps_no_tensor(worlds: Worlds) -> None:
    world = worlds(2)
    references: list[weakref.ref[torch.Tensor]] = []

    def body(group: Group) -> None:
        refit = Resharder(group).prepare(items(PAIR, group.rank))
        tensors = make_tensors(PAIR, group.rank)
        for _ in range(3):
            refit.run(*sides_of(tensors))
        references.extend(weakref.ref(local) for pair in tensors.values() for local in pair if local is not None)

    world.run(body)
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


@pytest.mark.requirement("RS-CACHE-5", "RS-CACHE-7")
def test_leaving_a_session_clears_its_group(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        with Resharder(group) as resharder:
            resharder.prepare(items(BATCH, group.rank)).run(*sides_of(make_tensors(BATCH, group.rank)))
            assert state_of(group).live
        assert not state_of(group).live

    world = worlds(4)
    world.run(body)
    assert all({"finalize", "destroy"} <= set(world.ops(rank)) for rank in range(4))
    assert release_faults(world.events) == []


def test_an_error_in_a_session_releases_without_waiting(worlds: Worlds) -> None:
    move = replace(MOVE, dst=Side([2, 1], (None,)))

    def body(group: Group) -> None:
        if group.rank != 1:
            move.run_rank(group)
            return
        with Resharder(group):
            move.run_rank(group)
            raise KeyError("the caller's")

    world = worlds(3)
    outcomes = world.outcomes(body)
    assert [type(outcome) for outcome in outcomes] == [type(None), KeyError, type(None)]
    assert "abort" in world.ops(1)
    assert "finalize" not in world.ops(1)
