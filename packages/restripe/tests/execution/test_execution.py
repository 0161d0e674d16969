"""Moves of every kind of tensor: each odd view on both sides, in every dtype and mode, under every shape of plan.

Even ranks of the worlds go over the address adapter, odd ones over a transport that takes addresses.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.distributed import _functional_collectives

from restripe.planning.plan import Reason
from restripe.planning.planner import plan

from ..conftest import Worlds
from ..helpers.moves import Maker, Move, Side, bits, contiguous, poison_like
from ..helpers.views import LAZY, VIEWS, guarded, permuted, strided
from ..helpers.world import Group

MOVES = {
    Reason.POINT: Move((6, 4), Side([0, 1], (0,)), Side([3, 2], (1,))),
    Reason.STRIPED: Move((6, 3), Side([0, 1], (0,)), Side([2, 3], (None,))),
    Reason.RAGGED: Move((5, 3), Side([1, 0], (0,)), Side([2, 3], (None,))),
    Reason.STAGING: Move((4, 6), Side([0, 1, 2], (1,)), Side([[1, 3], [0, 2]], (None, 1))),
    Reason.LOCAL: Move((5, 3), Side([0, 1, 3], (None,)), Side([3, 1], (0,))),
}
THIN = [  # dims of size 1, shards of one element, and empty ones
    Move((5, 1), Side([0, 1], (0,)), Side([2, 3], (0,))),
    Move((4, 1), Side([0], (None,)), Side([2, 3], (None,))),
    Move((1, 6), Side([0, 1], (1,)), Side([1, 2, 3], (0,))),
    Move((2, 3, 1), Side([0, 1, 2, 3], (0,)), Side([[0, 1], [2, 3]], (1, None))),
]
INEXACT = ("neg complex64", "conj and neg")  # torch itself does not keep a complex NaN's bits when it negates
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.bool),
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.complex32, torch.complex64, torch.complex128),
]


def play_guarded(move: Move, group: Group) -> None:
    src, dst = move.local_tensors(group.rank)
    source = None if src is None else bits(src)
    with guarded(dst), guarded(src):
        move.call_drop_in(group, src, dst)
    move.assert_moved(group.rank, src, dst)
    assert src is None or bits(src) == source


def test_the_moves_take_the_kinds_of_plan_that_they_stand_for() -> None:
    for reason, move in MOVES.items():
        assert plan(move.src.layout, move.dst.layout, move.shape, 0).reason is reason


@pytest.mark.requirement("RS-EXACT-1", "RS-EXACT-4", "RS-EXACT-5", "RS-EXACT-7", "RS-EXACT-9", "RS-EXACT-10")
@pytest.mark.parametrize("reason", MOVES)
@pytest.mark.parametrize("source", ["contiguous", *VIEWS])
@pytest.mark.parametrize("destination", ["contiguous", *VIEWS])
def test_odd_views_on_both_sides(worlds: Worlds, reason: Reason, source: str, destination: str) -> None:
    makers: dict[str, Maker] = {"contiguous": contiguous, **VIEWS}
    move = replace(MOVES[reason], dtype=torch.float32, source=makers[source], destination=makers[destination])
    worlds(4).run(lambda group: play_guarded(move, group))


@pytest.mark.requirement("RS-EXACT-7", "RS-LAYOUT-7", "RS-LAYOUT-8")
@pytest.mark.parametrize("move", THIN)
@pytest.mark.parametrize("view", ["column", "sliced", "permuted"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float32, torch.complex128])
def test_dims_of_size_one_with_odd_strides(worlds: Worlds, move: Move, view: str, dtype: torch.dtype) -> None:
    move = replace(move, dtype=dtype, source=VIEWS[view], destination=VIEWS[view])
    worlds(4).run(lambda group: play_guarded(move, group))


@pytest.mark.requirement("RS-EXACT-8")
@pytest.mark.parametrize("reason", MOVES)
@pytest.mark.parametrize("kind", LAZY)
@pytest.mark.parametrize("sides", ["source", "destination", "both"])
def test_conjugate_and_negative_views(worlds: Worlds, reason: Reason, kind: str, sides: str) -> None:
    dtype, lazy = LAZY[kind]
    move = replace(
        MOVES[reason],
        dtype=dtype,
        source=lazy if sides != "destination" else contiguous,
        destination=lazy if sides != "source" else contiguous,
    )
    move.global_tensor = torch.nan_to_num(move.global_tensor) if kind in INEXACT else move.global_tensor
    worlds(4).run(lambda group: play_guarded(move, group))


@pytest.mark.requirement("RS-EXACT-2", "RS-EXACT-3", "RS-EXACT-6")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reason", MOVES)
def test_every_dtype_bit_for_bit(worlds: Worlds, dtype: torch.dtype, reason: Reason) -> None:
    move = replace(MOVES[reason], dtype=dtype)
    worlds(4).run(move.run_rank)


@pytest.mark.requirement("RS-EXACT-3")
@pytest.mark.parametrize("view", [contiguous, permuted, strided])
@pytest.mark.parametrize("reason", MOVES)
def test_nan_payloads_and_negative_zeros_pass(worlds: Worlds, reason: Reason, view: Maker) -> None:
    words = [0x7FA00001, -0x5FFFFF, 0x7FC0BEEF, -0x80000000, 0x00000001, 0x7F800000]
    move = replace(MOVES[reason], dtype=torch.float32, source=view, destination=view)
    pattern = torch.tensor(words, dtype=torch.int32).view(torch.float32)
    move.global_tensor = pattern.repeat(move.global_tensor.numel())[: move.global_tensor.numel()].reshape(move.shape)
    worlds(4).run(move.run_rank)


@pytest.mark.requirement("RS-LAYOUT-8")
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex128])
@pytest.mark.parametrize("src", [[0], [0, 1], [2, 3]])
@pytest.mark.parametrize("view", ["sliced", "contiguous"])
def test_tensors_of_no_dims(worlds: Worlds, dtype: torch.dtype, src: list[int], view: str) -> None:
    maker = sliced_scalar if view == "sliced" else contiguous
    move = Move((), Side(src, (None,)), Side([[1, 2]], (None, None)), dtype, maker, maker)
    worlds(4).run(lambda group: play_guarded(move, group))


def sliced_scalar(tensor: torch.Tensor) -> torch.Tensor:
    memory = torch.cat([poison_like(tensor).reshape(1), tensor.reshape(1), poison_like(tensor).reshape(1)])
    return memory[1]


@pytest.mark.requirement("RS-EXACT-10")
@pytest.mark.parametrize("side", ["source", "destination"])
def test_pending_collectives_are_waited_for(worlds: Worlds, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    def wait(elem: torch.Tensor) -> torch.Tensor:
        waited.append(elem.data_ptr())
        return elem

    monkeypatch.setattr(_functional_collectives, "wait_tensor", wait)
    move = replace(MOVES[Reason.POINT])
    setattr(move, side, VIEWS["pending"])

    def body(group: Group) -> None:
        src, dst = move.local_tensors(group.rank)
        tensor = src if side == "source" else dst
        move.call_drop_in(group, src, dst)
        assert tensor is None or tensor.elem.data_ptr() in waited  # type: ignore[attr-defined]

    worlds(4).run(body)


@pytest.mark.requirement("RS-EXACT-9")
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("view", ["contiguous", "permuted", "parameter", "inference"])
@pytest.mark.parametrize("reason", MOVES)
def test_calls_under_any_grad_mode(worlds: Worlds, mode: type, view: str, reason: Reason) -> None:
    makers: dict[str, Maker] = {"contiguous": contiguous, **VIEWS}
    move = replace(MOVES[reason], dtype=torch.float32, source=makers[view], destination=makers[view])

    def body(group: Group) -> None:
        src, dst = move.local_tensors(group.rank)
        with mode():
            move.call_drop_in(group, src, dst)
        move.assert_moved(group.rank, src, dst)

    worlds(4).run(body)


@pytest.mark.requirement("RS-EXACT-9")
def test_a_destination_that_requires_grad_stays_a_leaf_without_history(worlds: Worlds) -> None:
    move = replace(MOVES[Reason.STRIPED], dtype=torch.float32, destination=VIEWS["parameter"])

    def body(group: Group) -> None:
        dst = move.run_rank(group)
        if dst is not None:
            assert dst.is_leaf
            assert dst.requires_grad
            assert dst.grad_fn is None

    worlds(4).run(body)


@pytest.mark.requirement("RS-EXACT-11")
@pytest.mark.parametrize("dtype", [torch.int8, torch.float32, torch.complex128])
def test_views_that_interleave_in_one_storage(worlds: Worlds, dtype: torch.dtype) -> None:
    move = Move((4, 4), Side([0, 1], (0,)), Side([1, 0], (0,)), dtype)

    def body(group: Group) -> None:
        src, dst = move.local_tensors(group.rank)
        assert src is not None
        assert dst is not None
        memory = torch.stack([src, dst], dim=-1)
        move.call_drop_in(group, memory[..., 0], memory[..., 1])
        move.assert_moved(group.rank, memory[..., 0], memory[..., 1])

    worlds(2).run(body)


@pytest.mark.requirement("RS-EXACT-12")
@pytest.mark.parametrize("reason", MOVES)
def test_each_call_moves_the_values_that_its_source_then_holds(worlds: Worlds, reason: Reason) -> None:
    world = worlds(4)
    for seed in (1, 2, 3):
        replace(MOVES[reason], seed=seed).run(world)


@pytest.mark.requirement("RS-LAYOUT-2", "RS-LAYOUT-3", "RS-LAYOUT-5", "RS-LAYOUT-6", "RS-LAYOUT-7")
@pytest.mark.parametrize(
    "move",
    [
        Move((10,), Side([0, 1, 2, 3], (0,)), Side([4], (None,))),
        Move((5,), Side([3, 1, 0, 2], (0,)), Side([[4, 2], [0, 1]], (0, 0))),
        Move((9, 2), Side([[[0, 1], [2, 3]]], (0, 0, 0)), Side([4, 0], (1,))),
        Move((0, 7), Side([0, 1], (1,)), Side([2, 3], (0,))),
        Move((3, 0, 2), Side([0, 1], (0,)), Side([[0, 1], [2, 3]], (None, 2))),
        Move((7, 3), Side([[0, 1], [2, 3]], (None, -1)), Side([2, 4], (-2,))),
        Move((2, 3, 1, 5, 2), Side([1, 2, 3], (3,)), Side([[0, 4]], (4, 1))),
    ],
    ids=lambda move: str(move.shape),
)
def test_layouts_of_many_kinds(worlds: Worlds, move: Move) -> None:
    move.run(worlds(5))
