"""Programs of all ranks of a world, run on tokens: each byte of a memory holds the number of the byte that it should be."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import NamedTuple

import torch
from hypothesis import strategies as st

from restripe.execution.lowering import TensorGeometry, lower
from restripe.execution.program import AllGather, Broadcast, Buffer, Geometry, Program, Round, Span, StridedCopy
from restripe.planning.plan import FanOut, RankPlan
from restripe.planning.planner import plan
from restripe.planning.rounds import rounds

from .drawings import Drawn, drawings
from .judge import Box, Side, owned

NOTHING = -1
UNBOUNDED = 2**30  # a staging budget that cuts no message
Sizes = tuple[int, ...]


class Submission(NamedTuple):
    """Tensors of the same layouts, each in memory of its own kind; all are row-major where there is no seed."""

    drawn: Drawn
    itemsizes: tuple[int, ...]
    seed: int | None = None
    budget: int = UNBOUNDED


@st.composite
def submissions(draw: st.DrawFn) -> Submission:
    """One to three tensors."""
    drawn = draw(drawings().filter(lambda drawn: prod(drawn.shape) <= 800))
    itemsizes = draw(st.lists(st.sampled_from([4, 1, 2, 8, 16]), min_size=1, max_size=3))
    seed = draw(st.one_of(st.none(), st.integers(0, 10**6)))
    return Submission(drawn, tuple(itemsizes), seed, draw(st.sampled_from([UNBOUNDED, 64, 7])))


def random_strides(random: Random | None, sizes: Sequence[int]) -> Sizes:
    """Return the strides of a row-major tensor; with a random, of dims in any order with gaps between them."""
    order = list(range(len(sizes)))
    if random is not None:
        random.shuffle(order)
    strides, step = [0] * len(sizes), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(1, sizes[dim])
        if random is not None:
            step += random.choice([0, 0, 1, 5])
    return tuple(strides)


@dataclass
class RankModel:
    """One rank's program and its memories: a token a byte, and how often each byte was written."""

    plans: list[RankPlan]
    geometries: list[TensorGeometry]
    program: Program
    values: dict[int, torch.Tensor] = field(default_factory=dict)
    writes: dict[int, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for memory, geometry in enumerate(side for pair in self.geometries for side in pair):
            if geometry is not None:
                self.allocate(Buffer(memory, geometry.extent))

    @property
    def callers(self) -> int:
        """The number of memories that are the caller's."""
        return 2 * len(self.plans)

    def allocate(self, buffer: Buffer) -> None:
        assert buffer.memory not in self.values
        assert buffer.memory < self.program.memories
        self.values[buffer.memory] = torch.full((buffer.length,), NOTHING)
        self.writes[buffer.memory] = torch.zeros(buffer.length, dtype=torch.int64)

    def free(self, memory: int) -> None:
        assert memory >= self.callers
        del self.values[memory], self.writes[memory]

    def copy(self, copies: Sequence[StridedCopy]) -> None:
        """Make copies, all of whose bytes something has been written to before."""
        for copy in copies:
            tokens = _strided(self.values[copy.out_of], copy.out_offset, copy.sizes, copy.out_strides).clone()
            assert not (tokens == NOTHING).any()
            into = copy.into_offset, copy.sizes, copy.into_strides
            _strided(self.values[copy.into], *into).copy_(tokens)
            _strided(self.writes[copy.into], *into).add_(1)

    def read(self, span: Span) -> torch.Tensor:
        """Return the tokens of a span, all of which something has been written to before."""
        tokens = _span(self.values, span).clone()
        assert not (tokens == NOTHING).any()
        return tokens

    def write(self, span: Span, tokens: torch.Tensor) -> None:
        _span(self.values, span).copy_(tokens)
        _span(self.writes, span).add_(1)

    def local(self, memory: int, of: dict[int, torch.Tensor]) -> torch.Tensor:
        """Return the bytes of a local tensor, one dim more than the tensor has."""
        geometry = self.geometries[memory // 2][memory % 2]
        assert geometry is not None
        strides = (*(stride * geometry.itemsize for stride in geometry.strides), 1)
        return of[memory].as_strided((*geometry.sizes, geometry.itemsize), strides)

    def fan_out(self, tensor: int) -> FanOut:
        fan_out = self.plans[tensor].fan_out
        assert fan_out is not None
        return fan_out


def _strided(memory: torch.Tensor, offset: int, sizes: Sizes, strides: Sizes) -> torch.Tensor:
    last = sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
    assert 0 <= offset <= offset + last < len(memory)
    assert strides[-1] == 1
    return memory.as_strided(sizes, strides, offset)


def _span(memories: dict[int, torch.Tensor], span: Span) -> torch.Tensor:
    memory = memories[span.memory]
    assert 0 <= span.offset < span.offset + span.length <= len(memory)
    return memory[span.offset : span.offset + span.length]


def lowered_ranks(submission: Submission) -> list[RankModel]:
    """Return every rank of the world with its program; tensor n goes over replica split n."""
    drawn, (src, dst) = submission.drawn, submission.drawn.layouts()
    ranks = []
    for rank in range(drawn.world):
        random = None if submission.seed is None else Random(submission.seed + rank)
        plans = [plan(src, dst, drawn.shape, rank, drawn.rotation + n) for n in range(len(submission.itemsizes))]
        geometries = []
        for itemsize in submission.itemsizes:
            source, destination = (_geometry(random, box, itemsize) for box in owned_boxes(drawn, rank))
            geometries.append((source, destination))
        schedule = rounds(plans, submission.itemsizes, submission.budget)
        ranks.append(RankModel(plans, geometries, lower(plans, schedule, geometries, range(len(plans)))))
    return ranks


def _geometry(random: Random | None, box: Box | None, itemsize: int) -> Geometry | None:
    if box is None:
        return None
    sizes = tuple(hi - lo for lo, hi in box)
    return Geometry(sizes, random_strides(random, sizes), itemsize)


def owned_boxes(drawn: Drawn, rank: int) -> Iterator[Box | None]:
    """Yield the boxes that the rank owns of source and destination, by the judge's cutting."""
    for side in (drawn.src, drawn.dst):
        coordinate = side.coordinates().get(rank)
        yield None if coordinate is None else owned(side, coordinate, drawn.shape)


def expected_tokens(drawn: Drawn, side: Side, rank: int, itemsize: int) -> torch.Tensor:
    """Return the numbers of the bytes that the rank owns, the bytes of an element in the last dim."""
    whole = torch.arange(prod(drawn.shape) * itemsize).reshape(*drawn.shape, itemsize)
    for dim, (lo, hi) in enumerate(owned(side, side.coordinates()[rank], drawn.shape)):
        whole = whole.narrow(dim, lo, hi - lo)
    return whole


def run_programs(submission: Submission, world: list[RankModel]) -> None:
    """Fill the sources, and run all programs in step, round by round."""
    for number, rank in enumerate(world):
        for tensor, (source, _) in enumerate(rank.geometries):
            if source is not None and source.extent:
                tokens = expected_tokens(submission.drawn, submission.drawn.src, number, source.itemsize)
                rank.local(2 * tensor, rank.values).copy_(tokens)
    (length,) = {len(rank.program.rounds) for rank in world}
    for number in range(length):
        _run_round([rank.program.rounds[number] for rank in world], world)


def _run_round(steps: list[Round], world: list[RankModel]) -> None:
    in_flight: dict[tuple[int, int], deque[torch.Tensor]] = defaultdict(deque)
    for number, (step, rank) in enumerate(zip(steps, world, strict=True)):
        for buffer in step.buffers:
            rank.allocate(buffer)
        rank.copy(step.packs)
        for span, peer in step.sends:
            in_flight[number, peer].append(rank.read(span))
    for number, (step, rank) in enumerate(zip(steps, world, strict=True)):
        for span, peer in step.receives:
            rank.write(span, in_flight[peer, number].popleft())
        rank.copy(step.unpacks)
        rank.copy(step.local_copies)
    assert not any(in_flight.values())
    _replicate(steps, world)
    for step, rank in zip(steps, world, strict=True):
        rank.copy(step.copy_back)
        for memory in step.frees:
            rank.free(memory)


def _replicate(steps: list[Round], world: list[RankModel]) -> None:
    """Bring each member's stripes to the other members of its replica group."""
    contributed: dict[tuple[int, int, int], torch.Tensor] = {}
    for number, step in enumerate(steps):
        for collective in step.replications:
            index = world[number].fan_out(collective.split).index
            if isinstance(collective, AllGather) or collective.root == index:
                contributed[number, collective.split, index] = world[number].read(collective.stripe)
    for rank, step in zip(world, steps, strict=True):
        for collective in step.replications:
            fan_out = rank.fan_out(collective.split)
            for index, span in _replicated_spans(collective, len(fan_out.members)):
                if index != fan_out.index or span != collective.stripe:
                    rank.write(span, contributed[fan_out.members[index], collective.split, index])


def _replicated_spans(collective: AllGather | Broadcast, members: int) -> Iterator[tuple[int, Span]]:
    """Yield the members that contribute to a collective, each with the span that it writes everywhere."""
    if isinstance(collective, Broadcast):
        yield collective.root, collective.stripe
        return
    length = collective.whole.length // members
    for index in range(members):
        yield index, collective.whole._replace(offset=collective.whole.offset + index * length, length=length)


def replicated_span(collective: AllGather | Broadcast) -> Span:
    """Return the span that a collective writes."""
    return collective.whole if isinstance(collective, AllGather) else collective.stripe


def used_memories(step: Round) -> set[int]:
    """Return the memories that a round reads or writes."""
    copies = [*step.local_copies, *step.packs, *step.unpacks, *step.copy_back]
    return {
        *(memory for copy in copies for memory in (copy.into, copy.out_of)),
        *(span.memory for span, _ in (*step.sends, *step.receives)),
        *(span.memory for one in step.replications for span in (replicated_span(one), one.stripe)),
    }
