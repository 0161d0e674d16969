"""Programs of every rank, run on tokens: what arrives, which bytes are written and how often, and what is staged."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from torch.distributed.tensor import Shard
from torch.distributed.tensor.placement_types import _StridedShard

from restripe.execution.coalesce import coalesce_copies, collapse_dims
from restripe.execution.lowering import lower
from restripe.execution.program import AllGather, Geometry, Round, Span, StridedCopy
from restripe.layout.mesh import Layout, Mesh
from restripe.planning.planner import plan
from restripe.planning.rounds import rounds

from ..helpers.drawings import Drawn
from ..helpers.judge import Side
from ..helpers.program_model import (
    UNBOUNDED,
    Submission,
    expected_tokens,
    lowered_ranks,
    replicated_span,
    run_programs,
    submissions,
    used_memories,
)

PROPERTIES = settings(
    max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much]
)
FEWER = settings(PROPERTIES, max_examples=100)
UNEVEN = Submission(
    Drawn(4, (5, 3), Side((2,), (1, 0), (0,)), Side((2,), (2, 3), (None,))), (16, 2), seed=3, budget=7
)  # stripes of strided shards, in slices


@pytest.mark.requirement("RS-EXACT-1", "RS-EXACT-5", "RS-EXACT-7", "RS-BATCH-1")
@PROPERTIES
@given(submissions())
@example(UNEVEN)
def test_every_byte_of_a_destination_is_written_once_with_its_value_and_no_other_is(submission: Submission) -> None:
    world = lowered_ranks(submission)
    run_programs(submission, world)
    for number, rank in enumerate(world):
        assert all(memory < rank.callers for memory in rank.values)  # buffers are freed
        for tensor, (source, destination) in enumerate(rank.geometries):
            if source is not None:
                assert not rank.writes[2 * tensor].any()
            if destination is not None and destination.extent:
                writes = rank.local(2 * tensor + 1, rank.writes)
                assert (writes == 1).all()
                assert rank.writes[2 * tensor + 1].sum() == writes.numel()
                wanted = expected_tokens(submission.drawn, submission.drawn.dst, number, destination.itemsize)
                assert torch.equal(rank.local(2 * tensor + 1, rank.values), wanted)


@pytest.mark.requirement("RS-TRAFFIC-3", "RS-TRAFFIC-4")
@PROPERTIES
@given(submissions())
@example(UNEVEN)
def test_buffers_are_freed_in_the_round_that_uses_them_last(submission: Submission) -> None:
    for rank in lowered_ranks(submission):
        steps = rank.program.rounds
        allocated = {buffer.memory: number for number, step in enumerate(steps) for buffer in step.buffers}
        freed = [(memory, number) for number, step in enumerate(steps) for memory in step.frees]
        assert sorted(memory for memory, _ in freed) == sorted(allocated)
        assert rank.program.allocates == bool(allocated)
        for memory, end in freed:
            used = [number for number, step in enumerate(steps) if memory in used_memories(step)]
            assert allocated[memory] <= used[0] <= used[-1] == end
            replicated = any(replicated_span(one).memory == memory for step in steps for one in step.replications)
            assert replicated or allocated[memory] == end


@pytest.mark.requirement("RS-TRAFFIC-3", "RS-TRAFFIC-4")
@PROPERTIES
@given(submissions())
def test_row_major_tensors_stage_no_more_than_their_plans_say(submission: Submission) -> None:
    submission = submission._replace(seed=None)
    for rank in lowered_ranks(submission):
        limits = [plan.staging * size for plan, size in zip(rank.plans, submission.itemsizes, strict=True)]
        schedule = rounds(rank.plans, submission.itemsizes, submission.budget)
        for step, parts in zip(rank.program.rounds, schedule, strict=True):
            staged = sum(buffer.length for buffer in step.buffers)
            assert staged <= sum(limits[tensor] for tensor in {part.tensor for part in parts})


@FEWER
@given(submissions())
def test_packs_write_to_staging_alone_and_unpacks_read_from_it_alone(submission: Submission) -> None:
    for rank in lowered_ranks(submission):
        for step in rank.program.rounds:
            assert all(copy.into >= rank.callers > copy.out_of for copy in step.packs)
            assert all(copy.out_of >= rank.callers for copy in step.unpacks)
            assert all(copy.out_of < rank.callers for copy in step.local_copies)


@FEWER
@given(submissions())
def test_staged_elements_are_aligned_to_their_size(submission: Submission) -> None:
    """A copy of elements at odd addresses takes one launch of a narrower unit."""
    for rank in lowered_ranks(submission):
        for step in rank.program.rounds:
            for copy in step.packs:
                itemsize = submission.itemsizes[copy.out_of // 2]
                assert copy.into_offset % itemsize == 0
                assert all(stride % itemsize == 0 for stride in copy.into_strides[:-1])


@FEWER
@given(submissions())
def test_copies_are_coalesced_and_have_no_dim_that_they_could_do_without(submission: Submission) -> None:
    for rank in lowered_ranks(submission):
        for step in rank.program.rounds:
            for copies in (step.packs, step.unpacks, step.local_copies, step.copy_back):
                assert [collapse_dims(copy) for copy in copies] == copies
                assert len(coalesce_copies(copies)) == len(copies)


@FEWER
@given(submissions())
@example(Submission(Drawn(5, (7, 6), Side((3,), (4, 0, 2), (1,)), Side((2,), (1, 3), (0,))), (8, 2), 5, 64))
def test_messages_cross_in_the_order_of_both_ends(submission: Submission) -> None:
    world = lowered_ranks(submission)
    for number, rank in enumerate(world):
        for peer, other in enumerate(world):
            for step, peer_step in zip(rank.program.rounds, other.program.rounds, strict=True):
                sent = [span.length for span, receiver in step.sends if receiver == peer]
                assert sent == [span.length for span, sender in peer_step.receives if sender == number]


@FEWER
@given(submissions())
def test_collectives_come_in_the_order_of_their_splits(submission: Submission) -> None:
    """Tensor n goes over split n in the model, so that reversed splits must reverse them."""
    for rank in lowered_ranks(submission):
        last = len(rank.plans) - 1
        schedule = rounds(rank.plans, submission.itemsizes, submission.budget)
        splits = [last - n for n in range(last + 1)]
        for step in lower(rank.plans, schedule, rank.geometries, splits).rounds:
            assert sorted(one.split for one in step.replications) == [one.split for one in step.replications]


@pytest.mark.requirement("RS-UPSTREAM-8")
def test_an_all_gather_reads_a_stripe_that_the_source_holds_from_there() -> None:
    both = Side((2,), (0, 1), (0,)), Side((2,), (0, 1), (None,))
    for rank in lowered_ranks(Submission(Drawn(2, (6, 4), *both), (4,))):
        (step,) = rank.program.rounds
        (gather,) = step.replications
        assert isinstance(gather, AllGather)
        assert (gather.stripe.memory, gather.whole.memory) == (0, 1)
        assert step.local_copies == step.packs == step.unpacks == []


def test_local_copies_are_told_from_messages() -> None:
    sides = Side((2,), (0, 1), (0,)), Side((2,), (0, 1), (1,))
    for number, rank in enumerate(lowered_ranks(Submission(Drawn(2, (6, 4), *sides), (4,)))):
        (step,) = rank.program.rounds
        assert step.local_copies == [StridedCopy(1, 0, 24 * number, 8 * number, (3, 8), (8, 1), (16, 1))]
        assert step.packs == [StridedCopy(2, 0, 0, 8 * (1 - number), (3, 8), (8, 1), (16, 1))]
        assert step.sends == [(Span(2, 0, 24), 1 - number)]


@pytest.mark.requirement("RS-TRAFFIC-3")
def test_a_plan_that_stages_nothing_takes_no_buffer() -> None:
    rows = Submission(Drawn(4, (12, 3), Side((2,), (0, 1), (0,)), Side((2,), (2, 3), (0,))), (4,))
    program = lowered_ranks(rows)[0].program
    (step,) = program.rounds
    assert not program.allocates
    assert not step.packs
    assert step.sends == [(Span(0, 0, 6 * 3 * 4), 2)]


def test_thousands_of_intervals_are_one_copy() -> None:
    """Of 8192 intervals of two elements, those of one peer adjoin at the source, and lie evenly at the destination."""
    src = Layout(Mesh((4,), (0, 1, 2, 3)), (_StridedShard(0, split_factor=8192),))
    dst = Layout(Mesh((4,), (4, 5, 6, 7)), (Shard(0),))
    sender, receiver = (lowered_alone(src, dst, rank) for rank in (1, 6))
    assert not sender.packs
    assert sender.sends == [(Span(0, 4096 * 4 * n, 4096 * 4), 4 + n) for n in range(4)]
    (unpack,) = receiver.unpacks
    assert unpack == StridedCopy(1, 2, 0, 0, (2048, 4, 8), (32, 8, 1), (8, 16384, 1))


def lowered_alone(src: Layout, dst: Layout, rank: int) -> Round:
    """Return the one round of a rank with row-major tensors of 65536 elements in all, of 4 bytes."""
    rank_plan = plan(src, dst, (65536,), rank)
    source, destination = (
        None if region is None else Geometry((16384,), (1,), 4) for region in (rank_plan.source, rank_plan.destination)
    )
    (step,) = lower([rank_plan], rounds([rank_plan], [4], UNBOUNDED), [(source, destination)], [0]).rounds
    return step
