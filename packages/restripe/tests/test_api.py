"""reshard, Resharder and Refit over simulated ranks: what they read, what they prepare, and that ranks agree."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial, Shard

import restripe
from reshard_conformance.trace import balance, symmetry
from restripe import Item, Layout, Mesh, Resharder
from restripe.errors import (
    AgreementError,
    AliasingError,
    DtypeError,
    InvalidPlacementError,
    LayoutError,
    MissingTensorError,
    ReshardError,
    ShapeError,
    UnsupportedPlacementError,
)
from restripe.group.registry import state
from restripe.xferdtensor_python import xferdtensor_python_impl

from .conftest import Worlds
from .helpers.moves import Move, Side, bits
from .helpers.views import permuted
from .helpers.world import Group, World

ROWS, COLUMNS = Side([0, 1], (0,)), Side([2, 1], (1,))
MOVE = Move((6, 4), ROWS, COLUMNS)


def call(move: Move, group: Group, **changes: Any) -> torch.Tensor | None:
    """reshard with plain local tensors; `changes` replace arguments."""
    src, dst = move.hand(group.rank)
    given: dict[str, Any] = {
        "src": src,
        "dst": dst,
        "group": group,
        "src_layout": move.src.layout,
        "dst_layout": move.dst.layout,
        "shape": move.shape,
        "dtype": move.dtype,
    } | changes
    before = None if dst is None else bits(dst)
    try:
        work = restripe.reshard(**given)
    except ReshardError:
        assert dst is None or bits(dst) == before
        raise
    assert work.wait()
    assert work.is_completed()
    move.judge(group.rank, src, dst)
    return dst


@pytest.mark.requirement("RS-LAYOUT-3")
def test_plain_local_tensors_with_layouts(worlds: Worlds) -> None:
    worlds(4).run(lambda group: call(MOVE, group))


def test_references_tell_shape_and_dtype(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        src, dst = MOVE.hand(group.rank)
        out, into = MOVE.references(src, dst)
        restripe.reshard(out, into, group, src_layout=MOVE.src.layout, dst_layout=MOVE.dst.layout)
        MOVE.judge(group.rank, src, dst)

    worlds(4).run(body)


Changes = dict[str, Any]


class Elsewhere(torch.Tensor):
    """A subclass that stands for tensors elsewhere, as fake and quantized ones do: its storage has a size and no address."""

    def __new__(cls, *shape: int) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.int32, device=torch.device("cpu"))

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise NotImplementedError


def ragged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], dtype=torch.int32, layout=torch.jagged)


def told(shape: Any, dtype: Any = None) -> SimpleNamespace:
    return SimpleNamespace(shape=shape, dtype=dtype, _local_tensor=torch.zeros(6, 2, dtype=torch.int32))


FAULTS: list[tuple[int, Changes, type[ReshardError], str]] = [
    (1, {"src": None}, MissingTensorError, "source 'tensor': rank 1 is in its mesh and must pass a tensor of (3, 4)"),
    (3, {"dst": torch.zeros(6, 2)}, MissingTensorError, "destination 'tensor': rank 3 is not in its mesh"),
    (3, {"shape": None}, MissingTensorError, "must pass shape="),
    (3, {"dtype": None}, MissingTensorError, "must pass dtype="),
    (2, {"src_layout": None}, MissingTensorError, "pass src_layout="),
    (0, {"dst_layout": None}, MissingTensorError, "pass dst_layout="),
    (0, {"src": [1, 2]}, MissingTensorError, "got list"),
    (0, {"src": SimpleNamespace(shape=None, dtype=None, _local_tensor=None)}, MissingTensorError, "SimpleNamespace"),
    (0, {"src": SimpleNamespace(shape=(6, 4), dtype=None, _local_tensor=[1])}, MissingTensorError, "to list"),
    (0, {"src": torch.zeros(3, 4, dtype=torch.int32).to_sparse()}, MissingTensorError, "dense tensors"),
    (0, {"src": ragged()}, MissingTensorError, "dense tensor"),
    (0, {"src": torch.nn.UninitializedParameter()}, MissingTensorError, "dense tensors"),
    (0, {"src": Elsewhere(3, 4)}, MissingTensorError, "source 'tensor': expected a tensor with memory"),
    (2, {"dst": Elsewhere(6, 2)}, MissingTensorError, "destination 'tensor': expected a tensor with memory"),
    (2, {"dst": told(([6], 4))}, ShapeError, "whole numbers"),
    (2, {"dst": told("ab")}, ShapeError, "whole numbers"),
    (2, {"dst": told((6, 4), [1])}, DtypeError, "a torch.dtype, got [1]"),
    (3, {"shape": 5}, ShapeError, "whole numbers, got 5"),
    (0, {"shape": "ab"}, ShapeError, "whole numbers, got 'ab'"),
    (0, {"shape": (None, 4)}, ShapeError, "whole numbers"),
    (0, {"shape": ([6], 4)}, ShapeError, "whole numbers"),
    (0, {"dtype": "float32"}, DtypeError, "a torch.dtype, got 'float32'"),
    (3, {"dtype": [1]}, DtypeError, "a torch.dtype, got [1]"),
    (0, {"src_layout": (Shard(0),)}, LayoutError, "expected src_layout to be a restripe.Layout"),
    (3, {"dst_layout": "S(0)"}, LayoutError, "expected dst_layout to be a restripe.Layout"),
    (0, {"src": torch.zeros(3, 4, dtype=torch.int32, device="meta")}, ReshardError, "expected a tensor on cpu"),
    (0, {"src": torch.zeros(3, 4, dtype=torch.int64)}, DtypeError, "expected torch.int32, got torch.int64"),
    (2, {"dst": torch.zeros(2, 6, dtype=torch.int32)}, ShapeError, "expected a local tensor of (6, 2)"),
    (2, {"shape": (-6, 4)}, ShapeError, "0 or more"),
    (2, {"dst": torch.zeros(6, dtype=torch.int32).expand(2, 6).t()}, ReshardError, "own elements share memory"),
    (3, {"dst_layout": Layout(Mesh((2,), (1, 9)), (Shard(1),))}, LayoutError, "destination layout: ranks (9)"),
    (3, {"dst_layout": Layout(Mesh((2,), (1, 2)), (Shard(2),))}, InvalidPlacementError, "destination layout: Shard"),
    # faults that no rank can see alone
    (3, {"dtype": torch.int64}, DtypeError, "expected dtype torch.int32 as on rank 0, got torch.int64"),
    (3, {"shape": (6, 5)}, ShapeError, "expected shape (6, 4) as on rank 0, got (6, 5)"),
    (3, {"src_layout": Layout(Mesh((2,), (1, 0)), (Shard(0),))}, AgreementError, "another layouts"),
    (3, {"src_layout": COLUMNS.layout, "dst_layout": ROWS.layout}, AgreementError, "another layouts"),
]


@pytest.mark.requirement("RS-AGREE-1", "RS-AGREE-2", "RS-AGREE-3", "RS-ERROR-10", "RS-ERROR-11", "RS-ERROR-12")
@pytest.mark.parametrize("check", ["always", "first"])
@pytest.mark.parametrize(("rank", "changes", "kind", "text"), FAULTS)
def test_a_fault_on_one_rank_is_the_same_error_on_all(
    worlds: Worlds, check: str, rank: int, changes: Changes, kind: type[ReshardError], text: str
) -> None:
    world = worlds(4, check)
    if check == "always":
        world.run(lambda group: call(MOVE, group))
    world.forget()

    def body(group: Group) -> None:
        call(MOVE, group, **(changes if group.rank == rank else {}))

    outcomes = world.outcomes(body)
    assert len({(type(outcome), str(outcome)) for outcome in outcomes}) == 1
    assert isinstance(outcomes[0], kind)
    assert str(outcomes[0]).startswith(f"rank {rank}")
    assert text in str(outcomes[0])
    assert [world.ops(place) for place in range(4)] == [["exchange"]] * 4
    world.run(lambda group: call(replace(MOVE, seed=1), group))


@pytest.mark.requirement("RS-AGREE-2", "RS-AGREE-3")
def test_calls_in_another_order_are_refused_by_all(worlds: Worlds) -> None:
    world = worlds(4, "always")
    other = replace(MOVE, src=Side([1, 0], (0,)), dst=Side([1, 2], (1,)))
    orders = {True: (other, MOVE), False: (MOVE, other)}
    world.run(lambda group: [call(move, group) for move in (MOVE, other)])
    for step in range(2):
        world.refuses(lambda group: call(orders[group.rank == 2][step], group), AgreementError)  # noqa: B023
    world.run(lambda group: [call(move, group) for move in (MOVE, other)])


@pytest.mark.requirement("RS-CACHE-10", "RS-AGREE-2")
@pytest.mark.parametrize("ranks", [[0], [2], [1, 3]])
@pytest.mark.parametrize("dst", [COLUMNS, Side([[2, 1]], (0, None))])
def test_a_clear_on_some_ranks_is_an_error_on_all_until_all_clear(worlds: Worlds, ranks: list[int], dst: Side) -> None:
    world = worlds(4, "always")
    move = replace(MOVE, dst=dst)
    world.run(lambda group: call(move, group))

    def body(group: Group) -> None:
        if group.rank in ranks:
            restripe.clear_caches(group)
        call(move, group)

    texts = world.refuses(body, AgreementError)
    assert len(set(texts)) == 1
    assert "got clear" in texts[0] or "expected call clear" in texts[0]
    world.run(lambda group: call(replace(move, seed=2), group))
    world.run(restripe.clear_caches)
    world.run(lambda group: call(replace(move, seed=1), group))
    world.run(restripe.clear_caches)
    assert balance(world.events) == symmetry(world.events) == []


def exchanges(world: World, rank: int = 0) -> int:
    return world.ops(rank).count("exchange")


@pytest.mark.requirement("RS-AGREE-4", "RS-CACHE-4")
def test_first_agrees_once_on_each_kind_of_call(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("restripe.group.state.PLANS", 2)
    world = worlds(3)
    kinds = [
        MOVE,
        replace(MOVE, dtype=torch.int8),
        replace(MOVE, shape=(5, 4)),
        replace(MOVE, dst=Side([1, 2], (1,))),
        replace(MOVE, src=Side([0, 1], (1,))),
    ]
    for number, move in enumerate(kinds):
        world.run(lambda group: [call(move, group), call(move, group)])  # noqa: B023
        assert exchanges(world) == number + 1
    world.run(lambda group: [call(move, group) for move in kinds])
    assert exchanges(world) == len(kinds)
    assert all(len(state(group)._plans) == 2 for group in world.groups)
    world.run(restripe.clear_caches)
    world.forget()
    world.run(lambda group: call(MOVE, group))
    assert [exchanges(world, rank) for rank in range(3)] == [1] * 3


@pytest.mark.requirement("RS-AGREE-4")
def test_first_raises_a_later_fault_where_it_is(worlds: Worlds) -> None:
    world = worlds(4)
    world.run(lambda group: call(MOVE, group))

    def body(group: Group) -> None:
        call(MOVE, group, **({"dst": torch.zeros(1)} if group.rank == 3 else {}))

    outcomes = world.outcomes(body)
    assert [type(outcome) for outcome in outcomes[:3] if isinstance(outcome, Exception)] == []
    assert isinstance(outcomes[3], MissingTensorError)
    assert exchanges(world) == 1


@pytest.mark.requirement("RS-AGREE-5")
def test_off_never_exchanges_and_raises_where_the_fault_is(worlds: Worlds) -> None:
    world = worlds(4, "off")
    world.run(lambda group: [call(MOVE, group) for _ in range(2)])
    outcomes = world.outcomes(lambda group: call(MOVE, group, **({"dtype": None} if group.rank == 3 else {})))
    assert isinstance(outcomes[3], MissingTensorError)
    assert not any(isinstance(outcome, Exception) for outcome in outcomes[:3])
    assert [exchanges(world, rank) for rank in range(4)] == [0] * 4


@pytest.mark.requirement("RS-AGREE-1")
def test_the_call_s_own_mode_comes_before_the_group_s(worlds: Worlds) -> None:
    world = worlds(3, "off")
    world.run(lambda group: [call(MOVE, group, check="always") for _ in range(2)])
    assert exchanges(world) == 2
    with pytest.raises(LayoutError, match="'often'"):
        world.run(lambda group: call(MOVE, group, check="often"))


BATCH = {
    "norm": Move((7,), Side([0, 1], (0,)), Side([2, 3], (None,)), torch.bfloat16),
    "empty": Move((0, 4), Side([0, 1], (0,)), Side([2, 3], (1,)), torch.float64),
    "up": Move((8, 6), Side([0, 1], (0,)), Side([3, 2], (1,)), torch.float32, source=permuted),
    "down": Move((6, 8), Side([[0, 1]], (None, 1)), Side([2, 3], (None,)), torch.int8, destination=permuted),
    "scale": Move((), Side([1], (None,)), Side([2, 3, 0], (None,)), torch.float16),
    "both": Move((4, 4), Side([0, 1, 2], (1,)), Side([[1, 2]], (0, 0)), torch.complex128),
}


def items(moves: dict[str, Move], rank: int) -> list[Item]:
    """What a rank knows: the sides whose meshes it is in."""
    found = []
    for name, move in moves.items():
        sides = {key: side.layout for key, side in (("src", move.src), ("dst", move.dst)) if rank in side.layout.mesh}
        found += [Item(name, move.shape, move.dtype, **sides)] if sides else []
    return found


def run_batch(moves: dict[str, Move], group: Group, calls: int = 1, **options: Any) -> restripe.Refit:
    refit = Resharder(group, **options).prepare(items(moves, group.rank))
    for _ in range(calls):
        held = {name: move.hand(group.rank) for name, move in moves.items()}
        src = {name: pair[0] for name, pair in held.items() if pair[0] is not None}
        dst = {name: pair[1] for name, pair in held.items()}
        assert refit.run(src, dst).wait()
        for name, pair in held.items():
            moves[name].judge(group.rank, *pair)
    return refit


@pytest.mark.requirement("RS-BATCH-1", "RS-BATCH-2")
def test_a_refit_equals_one_call_a_tensor(worlds: Worlds) -> None:
    world = worlds(5)
    refits = world.run(lambda group: run_batch(BATCH, group, calls=2))
    assert all([item.name for item in refit.items] == sorted(BATCH) for refit in refits)
    assert symmetry(world.events) == []
    assert [exchanges(world, rank) for rank in range(5)] == [2] * 5  # digests, then the lists themselves


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
    assert symmetry(world.events) == []


@pytest.mark.requirement("RS-BATCH-1", "RS-BATCH-4")
def test_few_operations_a_round_cut_the_pairs_and_stay_exact(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("restripe.planning.rounds"), "OPERATIONS", 2)
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
        known = items(BATCH, group.rank)
        Resharder(group).prepare(known + known[:1] if group.rank == 1 else known)

    (text,) = set(worlds(4).refuses(body, LayoutError))
    assert text.startswith("rank 1: items ['norm'] are given more than once")


WRONG: Any = "S(0)"  # what a type checker would refuse
BAD_ITEMS: list[tuple[Any, type[ReshardError], str]] = [
    (Item("new", (8,), torch.int8, src=WRONG), LayoutError, "expected a restripe.Layout or None, got 'S(0)'"),
    (Item("new", (8,), WRONG), DtypeError, "expected dtype to be a torch.dtype, got 'S(0)'"),
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
def test_what_ranks_say_differently_of_an_item_is_an_error_on_all(
    worlds: Worlds, item: Any, kind: type[ReshardError], text: str
) -> None:
    def body(group: Group) -> None:
        named = getattr(item, "name", None)
        known = [one for one in items(BATCH, group.rank) if one.name != named or group.rank != 3]
        Resharder(group).prepare([*known, item] if group.rank == 3 else known)

    world = worlds(4)
    texts = world.refuses(body, kind)
    assert len(set(texts)) == 1
    assert text in texts[0]
    world.run(lambda group: run_batch(BATCH, group))


@pytest.mark.requirement("RS-LAYOUT-4")
def test_items_may_count_shard_dims_from_either_end(worlds: Worlds) -> None:
    def body(group: Group) -> tuple[Any, ...]:
        dims = (0, 1) if group.rank else (-2, -1)
        src, dst = Side([0, 1], dims[:1]), Side([1, 2], dims[1:])
        refit = Resharder(group).prepare([Item("w", (4, 6), torch.int8, src.layout, dst.layout)])
        call(Move((4, 6), src, dst), group, check="always")
        return refit.items

    assert len(set(worlds(3).run(body))) == 1


@pytest.mark.requirement("RS-AGREE-2")
def test_a_prepare_that_meets_a_call_is_refused_by_both(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        if group.rank == 1:
            Resharder(group).prepare([])
        call(MOVE, group, check="always")

    world = worlds(3)
    (text,) = set(world.refuses(body, AgreementError))
    assert text.startswith("rank 1 calls with another call: expected call reshard as on rank 0, got prepare")
    world.run(lambda group: call(MOVE, group))


@pytest.mark.requirement("RS-AGREE-1", "RS-ERROR-12")
@pytest.mark.parametrize(
    ("side", "given", "text"),
    [
        (0, {"stranger": torch.zeros(1)}, "tensors ['stranger'] were not prepared"),
        (1, {"stranger": torch.zeros(1)}, "tensors ['stranger'] were not prepared"),
        (0, {"stranger": torch.zeros(1), 7: None}, "tensors [7, 'stranger'] were not prepared"),
        (0, [torch.zeros(1)], "expected tensors by item name, got list"),
        (1, [torch.zeros(1)], "expected tensors by item name, got list"),
        (0, {"up": [1.0]}, "item 'up': expected a tensor"),
        (0, {"up": None}, "source 'up': rank 1 is in its mesh"),
    ],
)
def test_tensors_that_were_not_prepared_are_refused_by_all(worlds: Worlds, side: int, given: Any, text: str) -> None:
    def body(group: Group) -> None:
        refit = Resharder(group, check="always").prepare(items(BATCH, group.rank))
        held = {name: move.hand(group.rank) for name, move in BATCH.items()}
        sides: list[Any] = [{name: pair[n] for name, pair in held.items()} for n in range(2)]
        if group.rank == 1:
            sides[side] = sides[side] | given if isinstance(given, dict) else given
        refit.run(*sides)

    texts = worlds(5).refuses(body, MissingTensorError)
    assert len(set(texts)) == 1
    assert texts[0].startswith("rank 1: ")
    assert text in texts[0]


PAIR = {
    "a": Move((4, 3), Side([0], (None,)), Side([1], (None,))),
    "b": Move((4, 3), Side([0], (None,)), Side([1], (None,))),
}


def run_sharing(group: Group, where: dict[tuple[str, str], int]) -> None:
    """A refit of two items from rank 0 to rank 1, where `where` places its tensors of some sides in one memory."""
    refit = Resharder(group, check="always").prepare(items(PAIR, group.rank))
    memory = torch.zeros(40, dtype=torch.int32)
    sides: dict[str, dict[str, torch.Tensor]] = {"src": {}, "dst": {}}
    for name, move in PAIR.items():
        for side, local in zip(sides, move.hand(group.rank), strict=True):
            if local is not None:
                start = where.get((name, side))
                sides[side][name] = local if start is None else memory[start : start + 12].view(4, 3).copy_(local)
    refit.run(sides["src"], sides["dst"])


@pytest.mark.requirement("RS-ERROR-8", "RS-ERROR-11", "RS-BATCH-1")
def test_destinations_of_two_items_that_share_memory_are_refused_by_all(worlds: Worlds) -> None:
    world = worlds(3)
    (text,) = set(world.refuses(lambda group: run_sharing(group, {("a", "dst"): 0, ("b", "dst"): 11}), AliasingError))
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
        out, into = there.hand(0)[0], back.hand(0)[1]
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
    (text,) = set(world.refuses(body, AliasingError))
    assert text.startswith("rank 1: destination 'there' and source 'back' share elements")


@pytest.mark.requirement("RS-BATCH-1", "RS-CACHE-5")
def test_a_warm_refit_sees_that_only_its_second_item_has_moved(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        refit = Resharder(group).prepare(items(PAIR, group.rank))
        held = {name: move.hand(group.rank) for name, move in PAIR.items()}
        gone = held["b"]
        for _ in range(2):
            refit.run(*({name: pair[side] for name, pair in held.items()} for side in (0, 1)))
            for name, pair in held.items():
                PAIR[name].judge(group.rank, *pair)
            held["b"] = PAIR["b"].hand(group.rank)
            for one in gone:
                if one is not None:
                    one.zero_()
        assert all(one is None or not one.any() for one in gone)

    worlds(2).run(body)


@pytest.mark.requirement("RS-BATCH-1", "RS-CACHE-5")
def test_a_warm_refit_reads_where_its_tensors_lie_now(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        refit = Resharder(group).prepare(items(PAIR, group.rank))
        for start in (0, 13, 1):
            held = {name: replace(move, seed=start).hand(group.rank) for name, move in PAIR.items()}
            src, dst = ({name: pair[side] for name, pair in held.items()} for side in (0, 1))
            refit.run(src, dst)
            for name, pair in held.items():
                replace(PAIR[name], seed=start).judge(group.rank, *pair)
        if group.rank == 1:  # where they lie is looked at in every call
            into = torch.zeros(8, 3, dtype=torch.int32)
            with pytest.raises(AliasingError, match="destination 'a' and destination 'b'"):
                refit.run({}, {"a": into[:4], "b": into[1:5]})

    worlds(2).run(body)


@pytest.mark.requirement("RS-ERROR-1", "RS-ERROR-9", "RS-CACHE-5")
def test_a_warm_call_with_a_placement_that_only_looks_alike_is_refused(worlds: Worlds) -> None:
    class Fancy(Shard):
        """A subclass that says that it equals what it extends."""

    world = worlds(4, "always")
    placements = MOVE.src.placements

    def body(group: Group, placements: Any) -> None:
        src, dst = MOVE.hand(group.rank)
        out, into = MOVE.references(src, dst)
        xferdtensor_python_impl(
            out, MOVE.src.reference, placements, into, MOVE.dst.reference, MOVE.dst.placements, group
        )

    for _ in range(2):
        world.run(lambda group: body(group, placements))
    world.refuses(lambda group: body(group, (Fancy(0),)), UnsupportedPlacementError)
    world.refuses(lambda group: body(group, Shard(0)), LayoutError)
    world.refuses(lambda group: body(group, ([0],)), UnsupportedPlacementError)


@pytest.mark.requirement("RS-LAYOUT-3")
def test_a_size_that_is_a_tensor_is_read_at_each_call(worlds: Worlds) -> None:
    moves = [replace(MOVE, shape=(rows, 4)) for rows in (6, 8)]
    shape = torch.tensor(0), 4
    sides = {"src_layout": ROWS.layout, "dst_layout": COLUMNS.layout}
    world = worlds(4)
    for move in moves:
        shape[0].fill_(move.shape[0])
        world.run(lambda group: call(move, group, shape=shape, **sides))  # noqa: B023


@pytest.mark.requirement("RS-ERROR-8", "RS-ERROR-9")
def test_a_wrong_shape_is_told_before_shared_elements(worlds: Worlds) -> None:
    move = Move((6, 4), Side([0, 1], (0,)), Side([0, 1], (1,)))

    def body(group: Group) -> None:
        shared = torch.zeros(9, dtype=torch.int32)
        call(move, group, **({"src": shared, "dst": shared} if group.rank == 1 else {}))

    (text,) = set(worlds(2).refuses(body, ShapeError))
    assert text.startswith("rank 1: source 'tensor': expected a local tensor of (3, 4)")


@pytest.mark.requirement("RS-CACHE-5", "RS-CACHE-7")
def test_leaving_a_session_clears_its_group(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        with Resharder(group) as resharder:
            resharder.prepare(items(BATCH, group.rank)).run(
                {name: move.hand(group.rank)[0] for name, move in BATCH.items()},
                {name: move.hand(group.rank)[1] for name, move in BATCH.items()},
            )
            assert state(group).live
        assert not state(group).live

    world = worlds(4)
    world.run(body)
    assert all({"finalize", "destroy"} <= set(world.ops(rank)) for rank in range(4))
    assert balance(world.events) == []


def test_an_error_in_a_session_releases_without_waiting(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        with Resharder(group):
            call(replace(MOVE, dst=Side([2, 1], (None,))), group)
            if group.rank == 1:
                raise KeyError("ours")

    world = worlds(3)
    outcomes: list[object] = list(world.outcomes(lambda group: body(group) if group.rank == 1 else call_only(group)))
    assert isinstance(outcomes[1], KeyError)
    assert "abort" in world.ops(1)
    assert "finalize" not in world.ops(1)


def call_only(group: Group) -> None:
    call(replace(MOVE, dst=Side([2, 1], (None,))), group)


@pytest.mark.requirement("RS-ERROR-1", "RS-LAYOUT-4")
def test_a_layout_refuses_what_cannot_be_moved_at_birth() -> None:
    with pytest.raises(UnsupportedPlacementError, match="Partial"):
        Layout(Mesh((2,), (0, 1)), (Partial(),))


def test_no_group_at_all_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(LayoutError, match="pass one or call init_process_group"):
        restripe.reshard(None, None)
    with pytest.raises(LayoutError, match="pass one or call init_process_group"):
        Resharder()
