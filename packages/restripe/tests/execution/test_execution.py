"""Programs on tensors, and what arrives, whatever the memory: every odd view on both sides, under every shape of plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributed import _functional_collectives

from restripe.execution.by_tensor import execute
from restripe.execution.program import Buffer, Gather, Program, Round, Span, Spread, View
from restripe.planning.plan import Reason
from restripe.planning.planner import plan

from ..conftest import Worlds
from ..helpers.moves import Maker, Move, Side, bits, contiguous, poisoned
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
    src, dst = move.hand(group.rank)
    source = None if src is None else bits(src)
    with guarded(dst), guarded(src):
        move.call(group, src, dst)
    move.judge(group.rank, src, dst)
    assert src is None or bits(src) == source


def test_the_moves_take_the_shapes_of_plan_that_they_stand_for() -> None:
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
    move.whole = torch.nan_to_num(move.whole) if kind in INEXACT else move.whole
    worlds(4).run(lambda group: play_guarded(move, group))


@pytest.mark.requirement("RS-EXACT-2", "RS-EXACT-3", "RS-EXACT-6")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reason", MOVES)
def test_every_dtype_bit_for_bit(worlds: Worlds, dtype: torch.dtype, reason: Reason) -> None:
    move = replace(MOVES[reason], dtype=dtype)
    worlds(4).run(move.play)


@pytest.mark.requirement("RS-EXACT-3")
@pytest.mark.parametrize("view", [contiguous, permuted, strided])
@pytest.mark.parametrize("reason", MOVES)
def test_nan_payloads_and_negative_zeros_pass(worlds: Worlds, reason: Reason, view: Maker) -> None:
    words = [0x7FA00001, -0x5FFFFF, 0x7FC0BEEF, -0x80000000, 0x00000001, 0x7F800000]
    move = replace(MOVES[reason], dtype=torch.float32, source=view, destination=view)
    pattern = torch.tensor(words, dtype=torch.int32).view(torch.float32)
    move.whole = pattern.repeat(move.whole.numel())[: move.whole.numel()].reshape(move.shape)
    worlds(4).run(move.play)


@pytest.mark.requirement("RS-LAYOUT-8")
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex128])
@pytest.mark.parametrize("src", [[0], [0, 1], [2, 3]])
@pytest.mark.parametrize("view", ["sliced", "contiguous"])
def test_tensors_of_no_dims(worlds: Worlds, dtype: torch.dtype, src: list[int], view: str) -> None:
    maker = sliced_scalar if view == "sliced" else contiguous
    move = Move((), Side(src, (None,)), Side([[1, 2]], (None, None)), dtype, maker, maker)
    worlds(4).run(lambda group: play_guarded(move, group))


def sliced_scalar(tensor: torch.Tensor) -> torch.Tensor:
    memory = torch.cat([poisoned(tensor).reshape(1), tensor.reshape(1), poisoned(tensor).reshape(1)])
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
        src, dst = move.hand(group.rank)
        tensor = src if side == "source" else dst
        move.call(group, src, dst)
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
        src, dst = move.hand(group.rank)
        with mode():
            move.call(group, src, dst)
        move.judge(group.rank, src, dst)

    worlds(4).run(body)


@pytest.mark.requirement("RS-EXACT-9")
def test_a_destination_that_requires_grad_stays_a_leaf_without_history(worlds: Worlds) -> None:
    move = replace(MOVES[Reason.STRIPED], dtype=torch.float32, destination=VIEWS["parameter"])

    def body(group: Group) -> None:
        dst = move.play(group)
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
        src, dst = move.hand(group.rank)
        assert src is not None
        assert dst is not None
        memory = torch.stack([src, dst], dim=-1)
        move.call(group, memory[..., 0], memory[..., 1])
        move.judge(group.rank, memory[..., 0], memory[..., 1])

    worlds(2).run(body)


@pytest.mark.requirement("RS-EXACT-12")
@pytest.mark.parametrize("reason", MOVES)
def test_each_call_moves_what_its_source_holds_then(worlds: Worlds, reason: Reason) -> None:
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


class Wire:
    """A transport that notes its calls; what it receives is 9, and it gathers and broadcasts what is there."""

    rank, size, device = 0, 2, torch.device("cpu")

    def __init__(self, **more: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.__dict__ |= more

    @contextmanager
    def group(self) -> Iterator[None]:
        self.calls.append(("group",))
        yield
        self.calls.append(("end",))

    def send(self, buffer: Any, peer: int, stream: Any = None) -> None:
        self.calls.append(("send", self._told(buffer), peer, stream))

    def recv(self, buffer: Any, peer: int, stream: Any = None) -> None:
        self.calls.append(("recv", self._told(buffer), peer, stream))
        buffer.fill_(9)

    def all_gather(self, output: Any, part: Any, stream: Any = None) -> None:
        self.calls.append(("all_gather", self._told(output), self._told(part), stream))

    def broadcast(self, buffer: Any, root: int, stream: Any = None) -> None:
        self.calls.append(("broadcast", self._told(buffer), root, stream))

    def _told(self, buffer: Any) -> Any:
        assert buffer.dtype == torch.uint8
        assert not buffer.is_inference()
        return buffer.tolist()


def wire(**more: Any) -> Any:
    return Wire(**more)


def run(step: Round, tensors: list[torch.Tensor | None], base: Any, replicas: list[Any], stream: Any = None) -> None:
    execute(Program([step], 3), tensors, base, replicas, stream)


TURN = Round(  # 3 columns of 2 rows are packed from memory 0, and 2 are unpacked to memory 1
    buffers=[Buffer(2, 5, 1)],
    packs=[(View(2, 0, (3,), (1,)), View(0, 1, (3,), (2,)))],
    sends=[(Span(2, 0, 3), 1)],
    receives=[(Span(2, 3, 2), 1)],
    unpacks=[(View(1, 2, (2,), (2,)), View(2, 3, (2,), (1,)))],
    rebuilds=[Gather(0, Span(1, 0, 4), Span(1, 2, 2))],
    drops=[2],
)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_a_round_packs_exchanges_unpacks_and_rebuilds(mode: type) -> None:
    src, dst = torch.arange(6, dtype=torch.int8), torch.zeros(6, dtype=torch.int8)
    base, replicas, stream = wire(), wire(), object()
    with mode():
        run(TURN, [src, dst], base, [replicas], stream)
    assert base.calls == [("group",), ("send", [1, 3, 5], 1, stream), ("recv", base.calls[2][1], 1, stream), ("end",)]
    assert dst.tolist() == [0, 0, 9, 0, 9, 0]
    assert replicas.calls == [("group",), ("all_gather", [0, 0, 9, 0], [9, 0], stream), ("end",)]


def test_a_round_without_messages_submits_none_and_every_stripe_is_broadcast_by_its_member() -> None:
    src, dst = torch.arange(4, dtype=torch.int16), torch.zeros(5, dtype=torch.int16)
    base, replicas = wire(), wire()
    step = Round(
        packs=[(View(1, 0, (2,), (2,)), View(0, 0, (2,), (1,))), (View(1, 1, (), ()), View(0, 3, (), ()))],
        rebuilds=[Spread(0, 0, Span(1, 0, 4)), Spread(0, 2, Span(1, 4, 2))],
        finishes=[(View(1, 4, (), ()), View(0, 2, (), ()))],
    )
    run(step, [src, dst], base, [replicas])
    assert base.calls == []
    stripes = [("broadcast", [0, 0, 3, 0], 0, None), ("broadcast", [1, 0], 2, None)]
    assert replicas.calls == [("group",), *stripes, ("end",)]
    assert dst.tolist() == [0, 3, 1, 0, 2]


def test_what_stays_is_copied_too() -> None:
    src, dst = torch.arange(6, dtype=torch.int8), torch.zeros(6, dtype=torch.int8)
    run(replace(TURN, stays=[(View(1, 0, (2,), (1,)), View(0, 4, (2,), (1,)))]), [src, dst], wire(), [wire()])
    assert dst.tolist() == [4, 5, 9, 0, 9, 0]


def test_the_fan_outs_of_one_split_go_in_one_group() -> None:
    dst = torch.zeros(8, dtype=torch.int8)
    splits = wire(), wire()
    rebuilds: list[Gather | Spread] = [Gather(at // 2, Span(1, 2 * at, 2), Span(1, 2 * at + 1, 1)) for at in range(4)]
    run(Round(rebuilds=rebuilds), [None, dst], wire(), list(splits))
    assert [[name for name, *_ in one.calls] for one in splits] == [["group", "all_gather", "all_gather", "end"]] * 2


def test_a_program_that_reaches_for_what_a_rank_has_not_is_refused() -> None:
    with pytest.raises(IndexError, match="memory 0 is not this rank's"):
        run(TURN, [None, torch.zeros(4, dtype=torch.int8)], wire(), [])
