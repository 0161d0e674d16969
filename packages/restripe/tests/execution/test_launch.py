"""What is written down once at the places of a call's memories, and enqueued again while nothing moves."""

from __future__ import annotations

import gc
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from restripe.execution import launch as addressing
from restripe.execution.launch import Addressed, Enqueue
from restripe.execution.program import Copy, Geometry, Program, Round, Span, Spread, View
from restripe.group.inputs import addresses
from restripe.transport.copy_tables import Piece

from ..helpers.posting import copying, lying_at
from .test_execution import TURN

CPU = torch.device("cpu")
STREAM = object()


class Poster:
    """A transport that takes addresses and notes what lies there; what it receives is 9."""

    device = CPU

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def posts(self, sends: Any, receives: Any) -> Enqueue:
        def post(stream: Any) -> None:
            self.calls.append(("post", [(lying_at(*at).tolist(), peer) for *at, peer in sends], len(receives), stream))
            for address, length, _ in receives:
                lying_at(address, length).fill_(9)

        return post

    def shares(self, gathers: Any, spreads: Any) -> Enqueue:
        return lambda stream: self.calls.append(("share", gathers, spreads, stream))

    def copies(self, pieces: Sequence[Piece]) -> Enqueue:
        return copying(pieces)


def addressed(
    step: Round,
    tensors: Sequence[torch.Tensor | None],
    base: Poster,
    replicas: Sequence[Poster] = (),
    aside: Any = None,
) -> Enqueue:
    """All calls of the round over three memories, as one."""
    lies = [None if one is None else Geometry.of(one.shape, one.stride(), one.element_size()) for one in tensors]
    calls = Addressed(Program([step], 3), lies, addresses(tensors), base, replicas, aside).calls()

    def enqueue(stream: Any) -> None:
        for call in calls:
            call(stream)

    return enqueue


@pytest.fixture
def writings(monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    """The rounds that are written down from now on."""
    found: list[Round] = []
    write = Addressed._write

    def counting(self: Addressed, step: Round) -> Any:
        found.append(step)
        return write(self, step)

    monkeypatch.setattr(Addressed, "_write", counting)
    return found


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_a_round_packs_posts_unpacks_and_shares_in_any_mode_and_then_in_another(mode: type) -> None:
    src, dst = torch.arange(6, dtype=torch.int8), torch.zeros(6, dtype=torch.int8)
    base, replicas = Poster(), Poster()
    with mode():
        turn = addressed(TURN, [src, dst], base, [replicas])
        turn(STREAM)
    assert dst.tolist() == [0, 0, 9, 0, 9, 0]
    dst.zero_()
    src += 1
    turn(STREAM)
    assert base.calls == [("post", [([n + 1, n + 3, n + 5], 1)], 1, STREAM) for n in (0, 1)]
    assert dst.tolist() == [0, 0, 9, 0, 9, 0]
    assert replicas.calls == [("share", [(dst.data_ptr(), dst.data_ptr() + 2, 2)], [], STREAM)] * 2


class Second:
    """A second stream that notes what was posted when it begins and when it runs."""

    def __init__(self, least: int, base: Poster) -> None:
        self.least, self.base = least, base
        self.posted: list[int] = []

    def begin(self, stream: Any) -> None:
        assert stream is STREAM
        self.posted.append(len(self.base.calls))

    def run(self, work: Enqueue, stream: Any) -> None:
        self.begin(stream)
        work(stream)


@pytest.mark.parametrize(
    ("step", "least", "posted"), [(TURN, 1, [0, 1]), (TURN, 2, []), (Round(rebuilds=TURN.rebuilds), 0, [])]
)
def test_what_stays_is_copied_beside_what_crosses_where_that_pays(step: Round, least: int, posted: list[int]) -> None:
    stays = [(View(1, 0, (2,), (1,)), View(0, 4, (2,), (1,)))]
    src, base = torch.arange(6, dtype=torch.int8), Poster()
    second = Second(least, base)
    for aside in (second, None):
        dst = torch.zeros(6, dtype=torch.int8)
        addressed(replace(step, stays=stays), [src, dst], base, [Poster()], aside)(STREAM)
        assert dst[:2].tolist() == [4, 5]
        assert second.posted == posted


@pytest.mark.parametrize("packs", [True, False])
def test_little_that_stays_is_copied_with_what_is_packed_and_else_with_what_is_unpacked(*, packs: bool) -> None:
    src, dst, log = torch.arange(6, dtype=torch.int8), torch.zeros(6, dtype=torch.int8), list[Any]()
    stays: list[Copy] = [(View(1, at, (1,), (1,)), View(0, 4 + at, (1,), (1,))) for at in range(2)]
    step = TURN if packs else replace(TURN, packs=[], sends=[(Span(0, 0, 3), 1)])

    class Noting(Poster):
        def posts(self, sends: Any, receives: Any) -> Enqueue:
            return lambda _: log.append("post")

        def copies(self, pieces: Sequence[Piece]) -> Enqueue:
            return lambda _: log.append(len(pieces))

    addressed(replace(step, stays=stays), [src, dst], Noting(), [Noting()])(STREAM)
    assert log == ([3, "post", 1] if packs else ["post", 3])


@pytest.mark.parametrize(("least", "posted"), [(15, [0, 1]), (16, [])])
def test_how_much_stays_is_told_in_bytes(least: int, posted: list[int]) -> None:
    src, dst, base = torch.arange(6, dtype=torch.int64), torch.zeros(6, dtype=torch.int64), Poster()
    step = Round(sends=[(Span(0, 0, 8), 1)], stays=[(View(1, 0, (2,), (1,)), View(0, 4, (2,), (1,)))])
    second = Second(least, base)
    addressed(step, [src, dst], base, [], second)(STREAM)
    assert dst.tolist() == [4, 5, 0, 0, 0, 0]
    assert second.posted == posted


def test_a_round_that_is_written_down_again_is_the_same() -> None:
    src, dst, base = torch.arange(6, dtype=torch.int8), torch.zeros(6, dtype=torch.int8), Poster()
    step = Round(
        unpacks=[(View(1, 2, (2,), (2,)), View(0, 3, (2,), (1,)))],
        stays=[(View(1, 0, (2,), (1,)), View(0, 4, (2,), (1,)))],
    )
    before = replace(step, unpacks=list(step.unpacks), stays=list(step.stays))
    for _ in range(2):
        addressed(step, [src, dst], base)(STREAM)
        assert step == before


@pytest.mark.parametrize("packs", [True, False])
def test_what_stays_begins_before_anything_is_posted_and_is_there_before_replicas_share(*, packs: bool) -> None:
    src, dst, log = torch.arange(6, dtype=torch.int8), torch.zeros(6, dtype=torch.int8), list[str]()
    stays = [(View(1, at, (1,), (1,)), View(0, 4 + at, (1,), (1,))) for at in range(2)]
    step = TURN if packs else replace(TURN, packs=[], sends=[(Span(0, 0, 3), 1)])

    class Noting(Poster):
        def posts(self, sends: Any, receives: Any) -> Enqueue:
            return lambda _: log.append("post")

        def shares(self, gathers: Any, spreads: Any) -> Enqueue:
            return lambda _: log.append("share")

    class Aside:
        least = 1  # of the two bytes that stay

        def begin(self, stream: Any) -> None:
            log.append("begin")

        def run(self, work: Enqueue, stream: Any) -> None:
            log.append("run")

    addressed(replace(step, stays=stays), [src, dst], Noting(), [Noting()], Aside())(STREAM)
    assert log == ["begin", "post", "run", "share"]


def test_messages_and_broadcasts_are_given_by_address_and_length() -> None:
    src, dst = torch.arange(9, dtype=torch.int16)[3:], torch.zeros(6, dtype=torch.int16)
    step = Round(sends=[(Span(0, 2, 4), 1)], rebuilds=[Spread(0, 1, Span(1, 4, 8)), Spread(1, 0, Span(1, 0, 2))])
    base, replicas = Poster(), [Poster(), Poster()]
    addressed(step, [src, dst], base, replicas)(STREAM)
    assert base.calls == [("post", [([4, 0, 5, 0], 1)], 0, STREAM)]
    assert replicas[0].calls == [("share", [], [(dst.data_ptr() + 4, 8, 1)], STREAM)]
    assert replicas[1].calls == [("share", [], [(dst.data_ptr(), 2, 0)], STREAM)]


def test_nothing_is_posted_where_there_is_nothing() -> None:
    base = Poster()
    addressed(Round(), [None, None], base)(STREAM)
    assert base.calls == []


def test_a_round_is_written_down_anew_only_where_a_buffer_has_moved(
    writings: list[Round], monkeypatch: pytest.MonkeyPatch
) -> None:
    src, dst = torch.arange(6, dtype=torch.int8), torch.zeros(6, dtype=torch.int8)
    turn, room = addressed(TURN, [src, dst], Poster(), [Poster()]), torch.zeros(2, 5, dtype=torch.uint8)
    buffers = [room[0], room[0], room[1], room[1]]
    monkeypatch.setattr(addressing, "allocate", lambda *_: buffers.pop(0))
    for times in (1, 1, 2, 2):
        turn(STREAM)
        assert len(writings) == times


def test_what_is_written_down_holds_no_memory() -> None:
    memory = array("b", range(6))
    gone, src, dst = weakref.ref(memory), torch.frombuffer(memory, dtype=torch.int8), torch.zeros(6, dtype=torch.int8)
    turn = addressed(TURN, [src, dst], Poster(), [Poster()])
    turn(STREAM)
    del memory, src
    gc.collect()
    assert gone() is None
