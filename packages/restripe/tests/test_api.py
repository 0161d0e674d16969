"""`reshard` over simulated ranks: what it reads, and faults on one rank that all ranks raise."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial, Shard

import restripe
from reshard_conformance.judge.trace import release_faults, symmetry_faults
from restripe import Layout, Mesh, Resharder
from restripe.errors import (
    AgreementError,
    DtypeError,
    InvalidPlacementError,
    LayoutError,
    MissingTensorError,
    ReshardError,
    ShapeError,
    UnsupportedPlacementError,
)
from restripe.xferdtensor_python import xferdtensor_python_impl

from .conftest import Worlds
from .helpers.moves import Move, Side, bits
from .helpers.world import Group

ROWS, COLUMNS = Side([0, 1], (0,)), Side([2, 1], (1,))
MOVE = Move((6, 4), ROWS, COLUMNS)


def reshard(move: Move, group: Group, **changes: Any) -> torch.Tensor | None:
    """Reshard plain local tensors, where `changes` replace arguments; nothing may be written where the call is refused."""
    src, dst = move.local_tensors(group.rank)
    arguments: dict[str, Any] = {"src": src, "dst": dst, "group": group} | move.arguments | changes
    before = None if dst is None else bits(dst)
    try:
        work = restripe.reshard(**arguments)
    except ReshardError:
        assert dst is None or bits(dst) == before
        raise
    assert work.wait()
    assert work.is_completed()
    move.assert_moved(group.rank, src, dst)
    return dst


@pytest.mark.requirement("RS-LAYOUT-3")
def test_plain_local_tensors_with_layouts(worlds: Worlds) -> None:
    worlds(4).run(lambda group: reshard(MOVE, group))


def test_references_declare_shape_and_dtype(worlds: Worlds) -> None:
    def body(group: Group) -> None:
        src, dst = MOVE.local_tensors(group.rank)
        src_ref, dst_ref = MOVE.tensor_refs(src, dst)
        restripe.reshard(src_ref, dst_ref, group, src_layout=MOVE.src.layout, dst_layout=MOVE.dst.layout)
        MOVE.assert_moved(group.rank, src, dst)

    worlds(4).run(body)


Changes = dict[str, Any]


class WrapperTensor(torch.Tensor):
    """A subclass that stands for other tensors, as fake and quantized ones do: its storage has a size and no address."""

    def __new__(cls, *shape: int) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.int32, device=torch.device("cpu"))

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise NotImplementedError


def nested_tensor() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], dtype=torch.int32, layout=torch.jagged)


def reference(shape: Any, dtype: Any = None) -> SimpleNamespace:
    """Return a reference to a good local tensor that declares this shape and dtype."""
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
    (0, {"src": nested_tensor()}, MissingTensorError, "dense tensor"),
    (0, {"src": torch.nn.UninitializedParameter()}, MissingTensorError, "dense tensors"),
    (0, {"src": WrapperTensor(3, 4)}, MissingTensorError, "source 'tensor': expected a tensor with memory"),
    (2, {"dst": WrapperTensor(6, 2)}, MissingTensorError, "destination 'tensor': expected a tensor with memory"),
    (2, {"dst": reference(([6], 4))}, ShapeError, "whole numbers"),
    (2, {"dst": reference("ab")}, ShapeError, "whole numbers"),
    (2, {"dst": reference((6, 4), [1])}, DtypeError, "a torch.dtype, got [1]"),
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
    (
        3,
        {"src_layout": Layout(Mesh((2,), (1, 0)), (Shard(0),))},
        AgreementError,
        "(S(1)) as on rank 0, got Mesh(shape=(2,), ranks=(1, 0)) (S(0)) to Mesh(shape=(2,), ranks=(2, 1)) (S(1));",
    ),
    (
        3,
        {"src_layout": COLUMNS.layout, "dst_layout": ROWS.layout},
        AgreementError,
        "got Mesh(shape=(2,), ranks=(2, 1)) (S(1)) to Mesh(shape=(2,), ranks=(0, 1)) (S(0));",
    ),
]


@pytest.mark.requirement("RS-AGREE-1", "RS-AGREE-2", "RS-AGREE-3", "RS-ERROR-10", "RS-ERROR-11", "RS-ERROR-12")
@pytest.mark.parametrize("check", ["always", "first"])
@pytest.mark.parametrize(("rank", "changes", "kind", "text"), FAULTS)
def test_a_fault_on_one_rank_is_the_same_error_on_all(
    worlds: Worlds, check: str, rank: int, changes: Changes, kind: type[ReshardError], text: str
) -> None:
    world = worlds(4, check)
    if check == "always":
        world.run(lambda group: reshard(MOVE, group))
    world.forget_events()

    def body(group: Group) -> None:
        reshard(MOVE, group, **(changes if group.rank == rank else {}))

    outcomes = world.outcomes(body)
    assert len({(type(outcome), str(outcome)) for outcome in outcomes}) == 1
    assert isinstance(outcomes[0], kind)
    assert str(outcomes[0]).startswith(f"rank {rank}")
    assert text in str(outcomes[0])
    assert [world.ops(rank) for rank in range(4)] == [["exchange"]] * 4
    world.run(lambda group: reshard(replace(MOVE, seed=1), group))


@pytest.mark.requirement("RS-AGREE-2", "RS-AGREE-3")
def test_calls_in_another_order_are_refused_by_all(worlds: Worlds) -> None:
    world = worlds(4, "always")
    other = replace(MOVE, src=Side([1, 0], (0,)), dst=Side([1, 2], (1,)))
    orders = {True: (other, MOVE), False: (MOVE, other)}
    world.run(lambda group: [reshard(move, group) for move in (MOVE, other)])
    for step in range(2):
        world.assert_all_raise(lambda group: reshard(orders[group.rank == 2][step], group), AgreementError)  # noqa: B023
    world.run(lambda group: [reshard(move, group) for move in (MOVE, other)])


@pytest.mark.requirement("RS-CACHE-10", "RS-AGREE-2")
@pytest.mark.parametrize("ranks", [[0], [2], [1, 3]])
@pytest.mark.parametrize("dst", [COLUMNS, Side([[2, 1]], (0, None))])
def test_a_clear_on_some_ranks_is_an_error_on_all_until_all_clear(worlds: Worlds, ranks: list[int], dst: Side) -> None:
    world = worlds(4, "always")
    move = replace(MOVE, dst=dst)
    world.run(lambda group: reshard(move, group))

    def body(group: Group) -> None:
        if group.rank in ranks:
            restripe.clear_caches(group)
        reshard(move, group)

    texts = world.assert_all_raise(body, AgreementError)
    assert len(set(texts)) == 1
    assert "got clear" in texts[0] or "expected call clear" in texts[0]
    world.run(lambda group: reshard(replace(move, seed=2), group))
    world.run(restripe.clear_caches)
    world.run(lambda group: reshard(replace(move, seed=1), group))
    world.run(restripe.clear_caches)
    assert release_faults(world.events) == symmetry_faults(world.events) == []


@pytest.mark.requirement("RS-AGREE-4", "RS-CACHE-4")
@pytest.mark.parametrize("bounds", [{}, {"max_plans": 2, "max_tensors": 2}], ids=["as they are", "small caches"])
def test_first_agrees_once_on_each_kind_of_call_whatever_was_evicted(worlds: Worlds, bounds: dict[str, int]) -> None:
    world = worlds(3)
    world.bound_caches(**bounds)
    kinds = [
        MOVE,
        replace(MOVE, dtype=torch.int8),
        replace(MOVE, shape=(5, 4)),
        replace(MOVE, dst=Side([1, 2], (1,))),
        replace(MOVE, src=Side([0, 1], (1,))),
    ]
    for number, move in enumerate(kinds, 1):
        world.run(lambda group: [reshard(move, group), reshard(move, group)])  # noqa: B023
        assert world.exchanges() == [number] * 3
    made = world.count(lambda group: [reshard(move, group) for move in kinds])
    assert world.exchanges() == [len(kinds)] * 3
    assert (made.plans_made > 0) == (made.evictions > 0) == bool(bounds)
    world.run(restripe.clear_caches)
    world.forget_events()
    world.run(lambda group: reshard(MOVE, group))
    assert world.exchanges() == [1] * 3


@pytest.mark.requirement("RS-AGREE-4")
def test_first_raises_a_later_fault_where_it_is(worlds: Worlds) -> None:
    world = worlds(4)
    world.run(lambda group: reshard(MOVE, group))

    def body(group: Group) -> None:
        reshard(MOVE, group, **({"dst": torch.zeros(1)} if group.rank == 3 else {}))

    outcomes = world.outcomes(body)
    assert [type(outcome) for outcome in outcomes[:3] if isinstance(outcome, Exception)] == []
    assert isinstance(outcomes[3], MissingTensorError)
    assert world.exchanges() == [1] * 4


@pytest.mark.requirement("RS-AGREE-5")
def test_off_never_exchanges_and_raises_where_the_fault_is(worlds: Worlds) -> None:
    world = worlds(4, "off")
    world.run(lambda group: [reshard(MOVE, group) for _ in range(2)])
    outcomes = world.outcomes(lambda group: reshard(MOVE, group, **({"dtype": None} if group.rank == 3 else {})))
    assert isinstance(outcomes[3], MissingTensorError)
    assert not any(isinstance(outcome, Exception) for outcome in outcomes[:3])
    assert world.exchanges() == [0] * 4


@pytest.mark.requirement("RS-AGREE-1")
def test_the_mode_of_a_call_comes_before_its_group_s(worlds: Worlds) -> None:
    world = worlds(3, "off")
    world.run(lambda group: [reshard(MOVE, group, check="always") for _ in range(2)])
    assert world.exchanges() == [2] * 3


@pytest.mark.requirement("RS-ERROR-1", "RS-ERROR-9", "RS-CACHE-5")
def test_a_placement_equal_to_that_of_a_cached_call_and_of_another_class_is_refused(worlds: Worlds) -> None:
    class EqualShard(Shard):
        """A subclass that is equal to its base."""

    world = worlds(4, "always")
    placements = MOVE.src.placements

    def body(group: Group, placements: Any) -> None:
        src, dst = MOVE.local_tensors(group.rank)
        src_ref, dst_ref = MOVE.tensor_refs(src, dst)
        xferdtensor_python_impl(
            src_ref, MOVE.src.mesh_object, placements, dst_ref, MOVE.dst.mesh_object, MOVE.dst.placements, group
        )

    for _ in range(2):
        world.run(lambda group: body(group, placements))
    world.assert_all_raise(lambda group: body(group, (EqualShard(0),)), UnsupportedPlacementError)
    world.assert_all_raise(lambda group: body(group, Shard(0)), LayoutError)
    world.assert_all_raise(lambda group: body(group, ([0],)), UnsupportedPlacementError)


@pytest.mark.requirement("RS-LAYOUT-3")
def test_a_size_that_is_a_tensor_is_read_at_each_call(worlds: Worlds) -> None:
    moves = [replace(MOVE, shape=(rows, 4)) for rows in (6, 8)]
    shape = torch.tensor(0), 4
    sides = {"src_layout": ROWS.layout, "dst_layout": COLUMNS.layout}
    world = worlds(4)
    for move in moves:
        shape[0].fill_(move.shape[0])
        world.run(lambda group: reshard(move, group, shape=shape, **sides))  # noqa: B023


@pytest.mark.requirement("RS-ERROR-8", "RS-ERROR-9")
def test_a_wrong_shape_is_raised_before_shared_elements(worlds: Worlds) -> None:
    move = Move((6, 4), Side([0, 1], (0,)), Side([0, 1], (1,)))

    def body(group: Group) -> None:
        shared = torch.zeros(9, dtype=torch.int32)
        reshard(move, group, **({"src": shared, "dst": shared} if group.rank == 1 else {}))

    (text,) = set(worlds(2).assert_all_raise(body, ShapeError))
    assert text.startswith("rank 1: source 'tensor': expected a local tensor of (3, 4)")


@pytest.mark.requirement("RS-ERROR-1", "RS-LAYOUT-4")
def test_a_layout_refuses_placements_that_cannot_be_moved() -> None:
    with pytest.raises(UnsupportedPlacementError, match="Partial"):
        Layout(Mesh((2,), (0, 1)), (Partial(),))


def test_no_group_at_all_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(LayoutError, match="pass one or call init_process_group"):
        restripe.reshard(None, None)
    with pytest.raises(LayoutError, match="pass one or call init_process_group"):
        Resharder()
