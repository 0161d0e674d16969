"""Programs of every rank, run on tokens instead of bytes: what lands, what is written and how often, and what is staged."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Shard as Placed
from torch.distributed.tensor.placement_types import _StridedShard

from restripe.execution.lowering import Shard, bind, copies, merged
from restripe.execution.program import Buffer, Copy, Gather, Geometry, Round, Span, Spread, View
from restripe.layout.mesh import Layout, Mesh
from restripe.planning.plan import FanOut, RankPlan
from restripe.planning.planner import plan
from restripe.planning.rounds import rounds

from ..helpers.drawings import Drawn, drawings
from ..helpers.judge import Side, owned

NOTHING = -1
WHOLE = 2**30  # a staging budget that cuts nothing


def strides(random: Random | None, sizes: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major tensor; with a random, dims in any order and gaps between them."""
    order = list(range(len(sizes)))
    if random is not None:
        random.shuffle(order)
    found, step = [0] * len(sizes), 1
    for dim in reversed(order):
        found[dim] = step
        step *= max(1, sizes[dim])
        if random is not None:
            step += random.choice([0, 0, 1, 5])
    return tuple(found)


def geometry(random: Random | None, sizes: Sequence[int], itemsize: int) -> Geometry:
    return Geometry.of(sizes, strides(random, sizes), itemsize)


class Submission(NamedTuple):
    """One to three tensors of the same layouts, each in memory of its own kind; no random: all are row-major."""

    drawn: Drawn
    itemsizes: tuple[int, ...]
    seed: int | None
    budget: int


@st.composite
def submissions(draw: st.DrawFn) -> Submission:
    drawn = draw(drawings().filter(lambda drawn: prod(drawn.shape) <= 800))
    itemsizes = draw(st.lists(st.sampled_from([4, 1, 2, 8, 16]), min_size=1, max_size=3))
    seed = draw(st.one_of(st.none(), st.integers(0, 10**6)))
    return Submission(drawn, tuple(itemsizes), seed, draw(st.sampled_from([WHOLE, 64, 7])))


@dataclass
class Rank:
    """One rank's program and its memories: a token an element, and how often each element was written."""

    plans: list[RankPlan]
    geometries: list[tuple[Geometry | None, Geometry | None]]
    program: list[Round]
    values: dict[int, torch.Tensor] = field(default_factory=dict)
    counts: dict[int, torch.Tensor] = field(default_factory=dict)
    itemsizes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, lies in enumerate(side for pair in self.geometries for side in pair):
            if lies is not None:
                self.begin(Buffer(number, lies.extent // lies.itemsize, lies.itemsize))

    def begin(self, buffer: Buffer) -> None:
        assert buffer.memory not in self.values
        self.values[buffer.memory] = torch.full((buffer.elements,), NOTHING)
        self.counts[buffer.memory] = torch.zeros(buffer.elements, dtype=torch.int64)
        self.itemsizes[buffer.memory] = buffer.itemsize

    def end(self, memory: int) -> None:
        del self.values[memory], self.counts[memory]

    def read(self, piece: View | Span) -> torch.Tensor:
        """The tokens of a piece, all of which something has been written to."""
        found = self._part(self.values, piece).clone()
        assert not (found == NOTHING).any()
        return found

    def write(self, piece: View | Span, tokens: torch.Tensor) -> None:
        self._part(self.values, piece).copy_(tokens)
        self._part(self.counts, piece).add_(1)

    def copy(self, copies: Sequence[Copy]) -> None:
        for into, out in copies:
            assert into.sizes == out.sizes
            self.write(into, self.read(out))

    def _part(self, memories: dict[int, torch.Tensor], piece: View | Span) -> torch.Tensor:
        memory = memories[piece.memory]
        if isinstance(piece, View):
            last = sum((size - 1) * step for size, step in zip(piece.sizes, piece.strides, strict=True))
            assert 0 <= piece.offset <= piece.offset + last < len(memory)
            return memory.as_strided(piece.sizes, piece.strides, piece.offset)
        (first, odd), (count, left) = (divmod(n, self.itemsizes[piece.memory]) for n in (piece.offset, piece.length))
        assert odd == left == 0
        assert 0 <= first < first + count <= len(memory)
        return memory[first : first + count]


def bound(given: Submission) -> list[Rank]:
    """Every rank of the world with its program."""
    drawn, (src, dst) = given.drawn, given.drawn.layouts()
    found = []
    for rank in range(drawn.world):
        random = None if given.seed is None else Random(given.seed + rank)
        plans = [plan(src, dst, drawn.shape, rank, drawn.turn + n) for n in range(len(given.itemsizes))]
        places = [
            tuple(
                None if box is None else geometry(random, [hi - lo for lo, hi in box], size)
                for box in boxes(drawn, rank)
            )
            for size in given.itemsizes
        ]
        lies: list[tuple[Geometry | None, Geometry | None]] = [(out, into) for out, into in places]
        program = bind(plans, rounds(plans, given.itemsizes, given.budget), lies, range(len(plans)))
        found.append(Rank(plans, lies, program.rounds))
    return found


def boxes(drawn: Drawn, rank: int) -> Iterator[tuple[tuple[int, int], ...] | None]:
    """What the rank owns of source and destination, by the judge's cutting."""
    for side in (drawn.src, drawn.dst):
        coordinate = side.coordinates().get(rank)
        yield None if coordinate is None else owned(side, coordinate, drawn.shape)


def tokens(drawn: Drawn, side: Side, rank: int, itemsize: int) -> torch.Tensor:
    """The numbers of the elements that the rank owns; both halves of an element of 16 bytes have one."""
    whole = torch.arange(prod(drawn.shape)).reshape(drawn.shape)
    for dim, (lo, hi) in enumerate(owned(side, side.coordinates()[rank], drawn.shape)):
        whole = whole.narrow(dim, lo, hi - lo)
    return torch.stack([2 * whole, 2 * whole + 1], dim=-1) if itemsize == 16 else whole


def local(rank: Rank, number: int, memories: dict[int, torch.Tensor]) -> torch.Tensor:
    """A local tensor, as its geometry says."""
    lies = rank.geometries[number // 2][number % 2]
    assert lies is not None
    return memories[number].as_strided(lies.sizes, lies.strides)


def run(given: Submission, world: list[Rank]) -> None:
    """All programs, round by round, the way that execution runs them."""
    for place, rank in enumerate(world):
        for n, (out, _) in enumerate(rank.geometries):
            if out is not None and out.extent:
                local(rank, 2 * n, rank.values).copy_(tokens(given.drawn, given.drawn.src, place, given.itemsizes[n]))
    (length,) = {len(rank.program) for rank in world}
    for number in range(length):
        play([rank.program[number] for rank in world], world)


def play(steps: list[Round], world: list[Rank]) -> None:
    wire: dict[tuple[int, int], deque[torch.Tensor]] = defaultdict(deque)
    for place, (step, rank) in enumerate(zip(steps, world, strict=True)):
        for buffer in step.buffers:
            rank.begin(buffer)
        rank.copy(step.packs)
        for span, peer in step.sends:
            wire[place, peer].append(rank.read(span))
    for place, (step, rank) in enumerate(zip(steps, world, strict=True)):
        for span, peer in step.receives:
            rank.write(span, wire[peer, place].popleft())
        rank.copy(step.unpacks)
        rank.copy(step.stays)
    assert not any(wire.values())
    fan_out(steps, world)
    for step, rank in zip(steps, world, strict=True):
        rank.copy(step.finishes)
        for memory in step.drops:
            rank.end(memory)


def fan_out(steps: list[Round], world: list[Rank]) -> None:
    """Each rank takes from the others' memories what it does not bring itself."""
    brought: dict[tuple[int, int, int], torch.Tensor] = {}
    for place, step in enumerate(steps):
        for one in step.rebuilds:
            fan = rebuilt(world[place], one.split)
            if isinstance(one, Gather) or one.root == fan.index:
                brought[place, one.split, fan.index] = world[place].read(one.stripe)
    for rank, step in zip(world, steps, strict=True):
        for one in step.rebuilds:
            fan = rebuilt(rank, one.split)
            for index, part in parts(one, len(fan.members)):
                if index != fan.index or part != one.stripe:
                    rank.write(part, brought[fan.members[index], one.split, index])


def rebuilt(rank: Rank, tensor: int) -> FanOut:
    found = rank.plans[tensor].fan_out
    assert found is not None
    return found


def parts(one: Gather | Spread, members: int) -> Iterator[tuple[int, Span]]:
    """What a fan-out brings from which member, and where to."""
    if isinstance(one, Spread):
        yield one.root, one.stripe
        return
    size = one.whole.length // members
    for index in range(members):
        yield index, one.whole._replace(offset=one.whole.offset + index * size, length=size)


PROPERTIES = settings(
    max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much]
)
UNEVEN = Submission(
    Drawn(4, (5, 3), Side((2,), (1, 0), (0,)), Side((2,), (2, 3), (None,))), (16, 2), seed=3, budget=7
)  # stripes of broken shards, in slices


@pytest.mark.requirement("RS-EXACT-1", "RS-EXACT-5", "RS-EXACT-7", "RS-BATCH-1")
@PROPERTIES
@given(submissions())
@example(UNEVEN)
def test_every_element_of_a_destination_is_written_once_with_its_value_and_nothing_else_is(given: Submission) -> None:
    world = bound(given)
    run(given, world)
    for place, rank in enumerate(world):
        for n, (out, into) in enumerate(rank.geometries):
            if out is not None:
                assert not rank.counts[2 * n].any()
            if into is not None and into.extent:
                counts = local(rank, 2 * n + 1, rank.counts)
                assert (counts == 1).all()
                assert rank.counts[2 * n + 1].sum() == counts.numel()
                wanted = tokens(given.drawn, given.drawn.dst, place, given.itemsizes[n])
                assert torch.equal(local(rank, 2 * n + 1, rank.values), wanted)


def target(one: Gather | Spread) -> Span:
    """What a fan-out writes."""
    return one.whole if isinstance(one, Gather) else one.stripe


def used(step: Round) -> set[int]:
    """The memories that a round reads or writes."""
    copies = [view.memory for copy in (*step.stays, *step.packs, *step.unpacks, *step.finishes) for view in copy]
    return {
        *copies,
        *(span.memory for span, _ in (*step.sends, *step.receives)),
        *(target(one).memory for one in step.rebuilds),
    }


@pytest.mark.requirement("RS-TRAFFIC-3", "RS-TRAFFIC-4")
@PROPERTIES
@given(submissions())
@example(UNEVEN)
def test_buffers_are_dropped_in_the_round_that_needs_them_last(given: Submission) -> None:
    for rank in bound(given):
        begun = {buffer.memory: at for at, step in enumerate(rank.program) for buffer in step.buffers}
        ended = [(memory, at) for at, step in enumerate(rank.program) for memory in step.drops]
        assert sorted(memory for memory, _ in ended) == sorted(begun)
        for memory, end in ended:
            at = [number for number, step in enumerate(rank.program) if memory in used(step)]
            assert begun[memory] <= at[0] <= at[-1] == end
            stands_in = any(target(one).memory == memory for step in rank.program for one in step.rebuilds)
            assert stands_in or begun[memory] == end


@pytest.mark.requirement("RS-TRAFFIC-3", "RS-TRAFFIC-4")
@PROPERTIES
@given(submissions())
def test_row_major_tensors_stage_no_more_than_their_plans_say(given: Submission) -> None:
    given = given._replace(seed=None)
    for rank in bound(given):
        limits = [p.staging * size for p, size in zip(rank.plans, given.itemsizes, strict=True)]
        parts = rounds(rank.plans, given.itemsizes, given.budget)
        for step, turn in zip(rank.program, parts, strict=True):
            staged = sum(buffer.elements * buffer.itemsize for buffer in step.buffers)
            assert staged <= sum(limits[tensor] for tensor in {part.tensor for part in turn})


@PROPERTIES
@given(submissions())
def test_nothing_but_staging_is_copied_before_the_messages_are_on_their_way(given: Submission) -> None:
    for rank in bound(given):
        packed = {into.memory for step in rank.program for into, _ in step.packs}
        assert all(memory >= 2 * len(rank.plans) for memory in packed)


@pytest.mark.requirement("RS-UPSTREAM-8")
def test_a_stripe_that_the_source_holds_is_gathered_from_there() -> None:
    both = Side((2,), (0, 1), (0,)), Side((2,), (0, 1), (None,))
    for rank in bound(Submission(Drawn(2, (6, 4), *both), (4,), seed=None, budget=WHOLE)):
        (step,) = rank.program
        (gather,) = step.rebuilds
        assert isinstance(gather, Gather)
        assert (gather.stripe.memory, gather.whole.memory) == (0, 1)
        assert step.stays == step.packs == step.unpacks == []


def test_what_stays_on_a_rank_is_told_from_what_crosses() -> None:
    sides = Side((2,), (0, 1), (0,)), Side((2,), (0, 1), (1,))
    for place, rank in enumerate(bound(Submission(Drawn(2, (6, 4), *sides), (4,), seed=None, budget=WHOLE))):
        (step,) = rank.program
        assert step.stays == [(View(1, 6 * place, (3, 2), (2, 1)), View(0, 2 * place, (3, 2), (4, 1)))]
        assert [into.memory for into, _ in step.packs] == [2]


@pytest.mark.requirement("RS-TRAFFIC-3")
def test_a_plan_that_stages_nothing_takes_no_buffer() -> None:
    rows = Submission(Drawn(4, (12, 3), Side((2,), (0, 1), (0,)), Side((2,), (2, 3), (0,))), (4,), None, WHOLE)
    (step,) = bound(rows)[0].program
    assert not step.buffers
    assert not step.packs
    assert step.sends == [(Span(0, 0, 6 * 3 * 4), 2)]


def test_spans_of_one_length_cross_in_the_order_of_both_ends() -> None:
    drawn = Drawn(5, (7, 6), Side((3,), (4, 0, 2), (1,)), Side((2,), (1, 3), (0,)))
    world = bound(Submission(drawn, (8, 2), 5, 64))
    for one, other in product(range(5), repeat=2):
        sent = [[span.length for span, peer in step.sends if peer == other] for step in world[one].program]
        received = [[span.length for span, peer in step.receives if peer == one] for step in world[other].program]
        assert sent == received


@st.composite
def pairs(draw: st.DrawFn) -> list[Copy]:
    """Copies in runs: pieces alike at even distances, and now and then one that is not; targets never meet."""
    found: list[Copy] = []
    place = 0
    for _ in range(draw(st.integers(1, 5))):
        sizes = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
        into, out = strides(None, sizes), tuple(draw(st.integers(0, 4)) for _ in sizes)
        memory, start, step = draw(st.integers(0, 1)), draw(st.integers(0, 9)), draw(st.integers(-1, 4))
        for number in range(draw(st.integers(1, 4))):
            start = max(0, start + step) if number else start
            found.append((View(9, place, sizes, into), View(memory, start, sizes, out)))
            place += prod(sizes) + draw(st.sampled_from([0, 0, 0, 1]))
    return found


def elements(copies: Sequence[Copy]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Which element of which memory is copied to which."""
    return [
        ((into.memory, to), (out.memory, of))
        for into, out in copies
        for to, of in zip(offsets(into), offsets(out), strict=True)
    ]


def offsets(view: View) -> list[int]:
    """Where the elements of a view lie, in row-major order."""
    steps = [
        range(0, size * step, step) if step else [0] * size for size, step in zip(view.sizes, view.strides, strict=True)
    ]
    return [view.offset + sum(at) for at in product(*steps)]


@pytest.mark.requirement("RS-EXACT-1")
@settings(max_examples=500, deadline=None, derandomize=True)
@given(pairs())
def test_merged_copies_bring_the_same_elements_to_the_same_places(copies: list[Copy]) -> None:
    found = merged(copies)
    assert len(found) <= len(copies)
    assert sorted(elements(found)) == sorted(elements(copies))
    assert len({to for to, _ in elements(found)}) == len(elements(found))  # so their order is free


def test_a_run_of_pieces_alike_at_even_distances_is_one_copy() -> None:
    columns = [(View(8, 6 * n, (3, 2), (2, 1)), View(0, 2 * n, (3, 2), (8, 1))) for n in range(4)]
    assert merged(columns) == [(View(8, 0, (4, 3, 2), (6, 2, 1)), View(0, 0, (4, 3, 2), (2, 8, 1)))]
    late = (View(8, 25, (3, 2), (2, 1)), View(0, 8, (3, 2), (8, 1)))  # as far from the run as no other
    assert merged([*columns, late]) == [*merged(columns), late]
    assert merged([]) == []


@pytest.mark.parametrize("change", [{"memory": 1}, {"sizes": (2, 3)}, {"strides": (9, 1)}])
@pytest.mark.parametrize("side", [0, 1])
def test_pieces_that_differ_in_anything_but_where_they_lie_stay_apart(change: dict[str, Any], side: int) -> None:
    first = (View(8, 0, (3, 2), (2, 1)), View(0, 0, (3, 2), (8, 1)))
    second = [view._replace(offset=60) for view in first]
    assert len(merged([first, (second[0], second[1])])) == 1
    second[side] = second[side]._replace(**change)
    assert merged([first, (second[0], second[1])]) == [first, tuple(second)]


@pytest.mark.parametrize(
    ("sizes", "lies", "contiguous", "extent"),
    [
        ((2, 3), (3, 1), True, 24),
        ((2, 3), (4, 1), False, 28),
        ((1, 3), (99, 1), True, 12),
        ((3, 1), (1, 7), True, 12),
        ((), (), True, 4),
        ((0, 3), (3, 1), True, 0),
        ((3,), (0,), False, 4),
    ],
)
def test_a_geometry_knows_its_extent_and_whether_it_is_contiguous(
    sizes: tuple[int, ...], lies: tuple[int, ...], contiguous: bool, extent: int
) -> None:
    for itemsize in (4, 16):
        found = Geometry.of(sizes, lies, itemsize)
        assert found.contiguous == contiguous
        assert found.extent == extent * itemsize // 4
    assert Geometry.of(sizes, lies, 16) == ((*sizes, 2), (*(2 * step for step in lies), 1), 8)


OWNED = (((10, 12), (20, 22)), ((3, 9),))
MINE = Shard(3, Geometry.of((4, 6), (6, 1), 4), OWNED)


def test_a_part_is_a_span_where_it_is_adjacent_in_memory() -> None:
    assert MINE.span((((11, 12), (20, 21)), ((3, 9),))) == Span(3, 6 * 4, 12 * 4)
    assert MINE.span((((20, 21),), ((4, 8),))) == Span(3, 13 * 4, 4 * 4)
    assert MINE.span((((11, 12), (20, 21)), ((3, 8),))) is None
    assert MINE.span((((10, 11), (20, 21)), ((3, 9),))) is None
    assert MINE._replace(offset=100).span(OWNED) == Span(3, 400, 24 * 4)
    wide = MINE._replace(geometry=Geometry.of((4, 6), (6, 1), 16))
    assert wide.span((((20, 22),), ((3, 9),))) == Span(3, 2 * 6 * 16, 2 * 6 * 16)
    assert wide.span((((20, 22),), ((8, 9),))) is None


def test_a_part_in_several_runs_is_copied_in_few_views() -> None:
    other = Shard(1, Geometry.of((30, 9), (1, 30), 4), (((0, 30),), ((0, 9),)))
    part = (((10, 11), (20, 21)), ((3, 5), (7, 9)))
    assert list(copies(MINE, other, part)) == [
        (View(3, 0, (2, 1, 2, 2), (12, 6, 4, 1)), View(1, 100, (2, 1, 2, 2), (10, 1, 120, 30)))
    ]
    wide = [each._replace(geometry=Geometry.of((4, 6), (6, 1), 16)) for each in (MINE, MINE._replace(memory=4))]
    assert list(copies(wide[0], wide[1], (((20, 22),), ((8, 9),)))) == [
        (View(3, 34, (2, 1, 2), (12, 2, 1)), View(4, 34, (2, 1, 2), (12, 2, 1)))
    ]


def test_the_region_of_a_tensor_without_dims_is_one_view() -> None:
    one = Shard(1, Geometry.of((), (), 4), ())
    assert list(copies(one, one, ())) == [(View(1, 0, (), ()), View(1, 0, (), ()))]
    assert one.span(()) == Span(1, 0, 4)


def test_thousands_of_runs_are_one_copy() -> None:
    """Of 8192 runs of two elements, those of one peer lie adjacent at the source, and evenly at the destination."""
    src = Layout(Mesh((4,), (0, 1, 2, 3)), (_StridedShard(0, split_factor=8192),))
    dst = Layout(Mesh((4,), (4, 5, 6, 7)), (Placed(0),))
    sends, receives = (bound_alone(src, dst, rank) for rank in (1, 6))
    assert not sends.packs
    assert sends.sends == [(Span(0, 4096 * 4 * n, 4096 * 4), 4 + n) for n in range(4)]
    assert receives.unpacks == [(View(1, 0, (4, 2048, 2), (2, 8, 1)), View(2, 0, (4, 2048, 2), (4096, 2, 1)))]


def bound_alone(src: Layout, dst: Layout, rank: int) -> Round:
    """The one round of a rank with row-major tensors of 65536 elements in all, of 4 bytes."""
    planned = plan(src, dst, (65536,), rank)
    lies = [
        None if region is None else Geometry.of((16384,), (1,), 4) for region in (planned.source, planned.destination)
    ]
    (step,) = bind([planned], rounds([planned], [4], WHOLE), [(lies[0], lies[1])], [0]).rounds
    return step
