"""Every way of being wrong that a step can show, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from reshard_conformance.cases import Batch, Case, Clear, Destroy, Fault, Side
from reshard_conformance.contract import UNSUPPORTED, Claims, Item, Level, Profile
from reshard_conformance.playing import Outcome, RankReport, judge
from reshard_conformance.trace import Event
from reshard_conformance.worlds.sim import SimWorld
from reshard_golden import GoldenError, reshard

CASE = Case(2, (4, 6), "int32", Side((0,), ("S(0)",), "sliced"), Side((0, 1), ("S(1)",), "sliced"))
REFUSED = replace(CASE, src=Side((0, 0), ("R",)), expect="error:layout")
FAULTY = replace(CASE, expect="error:missing", fault=Fault("src", (0,), "absent"))

Deed = Callable[[Any, Any, Any], None]


class Spoilt:
    """Golden, followed by a deed with source, destination and group."""

    name = "spoilt"
    version = "0"
    claims = Claims(Level.L3, frozenset({Profile.CORE}))

    def __init__(self, after: Deed | None = None, before: Deed | None = None) -> None:
        self.after, self.before = after, before

    def reshard(self, *arguments: Any) -> None:
        if self.before is not None:
            self.before(arguments[0], arguments[3], arguments[6])
        reshard(*arguments)
        if self.after is not None:
            self.after(arguments[0], arguments[3], arguments[6])

    def clear_caches(self, group: Any) -> None: ...

    def error_kind(self, exception: BaseException) -> str | None:
        if isinstance(exception, NotImplementedError):
            return UNSUPPORTED
        return exception.kind if isinstance(exception, GoldenError) else None


class Hooked(Spoilt):
    """With every optional hook, which it notes."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Any, ...]] = []

    def reshard_many(self, items: Sequence[Item], group: Any) -> None:
        self.noted.append(tuple(item[0] for item in items))
        for item in sorted(items, key=lambda item: item[0]):
            reshard(*item[1:], group)

    def set_check(self, group: Any, mode: str) -> None:
        self.noted.append((group.rank, mode))

    def live_communicators(self, group: Any) -> int:
        return 5 + int(group.rank)


def play(world: SimWorld, case: Case, implementation: Any, **options: Any) -> Outcome:
    with world.open(case.world_size, implementation) as session:
        return session.play(case, **options)


def spoil_destination(src: Any, dst: Any, group: Any) -> None:
    dst._local_tensor[1, 2] += group.rank


def spoil_guard(src: Any, dst: Any, group: Any) -> None:
    storage = torch.empty(0, dtype=torch.uint8).set_(dst._local_tensor.untyped_storage())
    storage[0] ^= 1


def spoil_source(src: Any, dst: Any, group: Any) -> None:
    if src is not None:
        src._local_tensor[0, 0] += 1


def spoil_reference(src: Any, dst: Any, group: Any) -> None:
    dst._local_tensor = dst._local_tensor.clone()


@pytest.mark.parametrize(
    ("deed", "faults"),
    [
        pytest.param(
            spoil_destination,
            ["rank 1: destination: 1 of 12 elements differ, first at (1, 2): bytes"],
            marks=pytest.mark.requirement("RS-EXACT-1"),
        ),
        pytest.param(
            spoil_guard,
            [f"rank {rank}: destination: 1 guard bytes around the view were written" for rank in range(2)],
            marks=pytest.mark.requirement("RS-EXACT-5"),
        ),
        pytest.param(
            spoil_source,
            ["rank 0: source was written: 1 of 24 elements differ, first at (0, 0): bytes"],
            marks=pytest.mark.requirement("RS-EXACT-4"),
        ),
        (spoil_reference, [f"rank {rank}: the caller's reference to a tensor was changed" for rank in range(2)]),
    ],
)
def test_a_spoilt_byte_is_found(sim: SimWorld, deed: Deed, faults: list[str]) -> None:
    outcome = play(sim, CASE, Spoilt(deed))
    assert outcome.verdict == "fail"
    for found, wanted in zip(outcome.faults, faults, strict=True):
        assert found.startswith(wanted)


def test_doing_nothing_is_found(sim: SimWorld) -> None:
    class Idle(Spoilt):
        def reshard(self, *arguments: Any) -> None: ...

    outcome = play(sim, CASE, Idle())
    assert [fault[:45] for fault in outcome.faults] == [
        f"rank {rank}: destination: 12 of 12 elements differ" for rank in range(2)
    ]


def test_the_last_calls_bytes_are_found(sim: SimWorld) -> None:
    kept: dict[int, torch.Tensor] = {}

    def repeat(src: Any, dst: Any, group: Any) -> None:
        dst._local_tensor.copy_(kept.setdefault(group.rank, dst._local_tensor.clone()))

    with sim.open(2, Spoilt(repeat)) as session:
        assert [session.play(CASE).verdict for _ in range(2)] == ["pass", "fail"]


def test_calls_that_pair_up_in_bytes_but_not_in_the_trace_are_found(sim: SimWorld) -> None:
    def abandon(src: Any, dst: Any, group: Any) -> None:
        child = group.communicator.split(group.rank, 0)
        if group.rank:
            child.exchange(b"")
        child = group.communicator.split(0, 0)
        child.exchange(b"")
        if group.rank:
            child.destroy()

    outcome = play(sim, CASE, Spoilt(abandon))
    assert outcome.verdict == "fail"
    assert "communicator 0/1.0" in outcome.faults[0]


def test_a_refusal_on_every_rank_passes(sim: SimWorld) -> None:
    outcome = play(sim, REFUSED, Spoilt())
    assert outcome.verdict == "pass"
    assert [report.kind for report in outcome.reports] == ["layout"] * 2


def test_a_call_that_returns_where_it_should_be_refused_is_found(sim: SimWorld) -> None:
    class Lenient(Spoilt):
        def reshard(self, *arguments: Any) -> None: ...

    faults = play(sim, REFUSED, Lenient()).faults
    assert faults == tuple(f"rank {rank}: expected an error of kind layout, but the call returned" for rank in range(2))


def test_a_refusal_of_another_kind_is_found(sim: SimWorld) -> None:
    faults = play(sim, replace(REFUSED, expect="error:shape"), Spoilt()).faults
    assert faults[0].startswith("rank 0: expected an error of kind shape, got layout: GoldenError: ")


def test_a_refusal_after_a_data_message_is_found(sim: SimWorld) -> None:
    def split(src: Any, dst: Any, group: Any) -> None:
        group.communicator.split(0, 0)

    faults = play(sim, REFUSED, Spoilt(before=split)).faults
    assert faults == tuple(f"rank {rank}: expected nothing to be sent in a refused call, got split" for rank in (0, 1))


def test_a_refusal_after_an_exchange_is_none_the_worse(sim: SimWorld) -> None:
    def exchange(src: Any, dst: Any, group: Any) -> None:
        group.communicator.exchange(b"my fault")

    assert play(sim, REFUSED, Spoilt(before=exchange)).verdict == "pass"


def test_a_refusal_that_has_written_is_found(sim: SimWorld) -> None:
    def write(src: Any, dst: Any, group: Any) -> None:
        if dst is not None:
            dst._local_tensor[0, 0] += 1

    faults = play(sim, REFUSED, Spoilt(before=write)).faults
    assert [fault[:41] for fault in faults] == [f"rank {rank}: destination was written: 1 of 12 " for rank in (0, 1)]


def test_what_is_not_supported_is_an_outcome_of_its_own(sim: SimWorld) -> None:
    def refuse(src: Any, dst: Any, group: Any) -> None:
        raise NotImplementedError("not mine")

    outcome = play(sim, CASE, Spoilt(before=refuse))
    assert outcome.verdict == "unsupported"
    assert outcome.faults == ("ranks 0, 1: raised NotImplementedError: not mine",)


def test_what_only_one_rank_does_not_support_is_a_failure(sim: SimWorld) -> None:
    def refuse(src: Any, dst: Any, group: Any) -> None:
        if group.rank:
            raise NotImplementedError("not mine")

    assert play(sim, CASE, Spoilt(before=refuse)).verdict == "fail"


def test_lockstep_compares_with_golden(sim: SimWorld) -> None:
    assert play(sim, CASE, Spoilt(), lockstep=True).verdict == "pass"
    faults = play(sim, CASE, Spoilt(spoil_destination), lockstep=True).faults
    assert faults[1].startswith("rank 1: destination differs from golden's: 1 of 12 elements differ, first at (1, 2)")


def test_golden_runs_on_a_group_of_its_own(sim: SimWorld) -> None:
    alone, beside = (play(sim, CASE, Spoilt(), lockstep=lockstep) for lockstep in (False, True))
    assert [report.events for report in alone.reports] == [report.events for report in beside.reports]


def test_the_peak_of_allocations_is_measured(sim: SimWorld) -> None:
    class Idle(Spoilt):
        def reshard(self, *arguments: Any) -> None:
            torch.empty(1000 * (arguments[6].rank + 1), dtype=torch.uint8)

    outcome = play(sim, REFUSED, Idle(), memory=True)
    assert [report.peak for report in outcome.reports] == [1000, 2000]
    assert [report.peak for report in play(sim, REFUSED, Idle()).reports] == [None, None]


def test_hooks_are_used_where_they_are(sim: SimWorld) -> None:
    hooked = Hooked()
    batch = Batch((replace(CASE, name="b"), replace(CASE, name="a", dtype="int8"), CASE))
    with sim.open(2, hooked) as session:
        outcomes = [session.play(step) for step in (CASE, batch, FAULTY, CASE)]
        outcomes.append(session.play(CASE, check="off"))
    assert [outcome.verdict for outcome in outcomes[:2]] == ["pass", "pass"]
    assert [report.live for report in outcomes[0].reports] == [5, 6]
    batches, modes = hooked.noted[:2], hooked.noted[2:]
    assert sorted(batches[0]) == sorted(batches[1]) == ["2", "a", "b"]
    assert modes[:2] == [(0, "always"), (1, "always")]
    assert modes[-2:] == [(0, "off"), (1, "off")]


def test_a_mode_that_was_asked_for_once_is_taken_back(sim: SimWorld) -> None:
    hooked = Hooked()
    with sim.open(2, hooked) as session:
        session.play(CASE, check="always")
        session.play(CASE)
        session.play(CASE)
    assert hooked.noted == [(rank, mode) for mode in ("always", "first", "first") for rank in range(2)]


def test_a_batch_is_refused_as_a_whole(sim: SimWorld) -> None:
    with sim.open(2, Hooked()) as session:
        outcome = session.play(Batch((replace(REFUSED, name="a"), replace(CASE, name="b"))))
    assert outcome.faults == ()
    assert outcome.verdict == "pass"


def test_a_batch_without_its_hook_is_not_supported(sim: SimWorld) -> None:
    with sim.open(2, Spoilt()) as session:
        assert session.play(Batch((CASE,))).verdict == "unsupported"


def test_a_group_that_is_only_dropped_makes_no_call(sim: SimWorld) -> None:
    class Clinging(Spoilt):
        def clear_caches(self, group: Any) -> None:
            group.communicator.exchange(b"")

    with sim.open(2, Clinging()) as session:
        assert session.play(CASE).verdict == "pass"
        outcome = session.play(Destroy(0, clear=False))
    assert outcome.verdict == "pass"
    assert all(report.events == () for report in outcome.reports)


def test_a_call_while_a_group_is_collected_is_found() -> None:
    reports = [RankReport(rank, events=(Event("finalize", "0/0.0", 2, rank, 0),)) for rank in range(2)]
    assert judge(Destroy(0), reports).verdict == "pass"
    faults = judge(Destroy(0, clear=False), reports).faults
    assert faults == tuple(f"rank {rank}: finalize while a group was collected" for rank in range(2))


def test_the_first_error_is_the_first_fault() -> None:
    reports = [RankReport(0, error="Late: b", failed_at=2.0), RankReport(1, error="Early: a", failed_at=1.0)]
    assert judge(Clear(), reports).faults == ("rank 1: raised Early: a", "rank 0: raised Late: b")


def test_an_outcome_has_one_of_four_verdicts() -> None:
    with pytest.raises(ValueError, match="not 'maybe'"):
        Outcome("maybe")
