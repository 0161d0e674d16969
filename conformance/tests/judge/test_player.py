"""Steps played in simulation by implementations with one fault each, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from reshard_conformance.case.files import Batch, Case, Destroy, Fault, Side
from reshard_conformance.contract import UNSUPPORTED, Claims, Item, Level, Profile
from reshard_conformance.judge.outcomes import Outcome
from reshard_conformance.worlds.sim import SimWorld
from reshard_golden import GoldenError, reshard

CASE = Case(2, (4, 6), "int32", Side((0,), ("S(0)",), "sliced"), Side((0, 1), ("S(1)",), "sliced"))
REFUSED = replace(CASE, src=Side((0, 0), ("R",)), expect="error:layout")
FAULTY = replace(CASE, expect="error:missing", fault=Fault("src", (0,), "absent"))

Sabotage = Callable[[Any, Any, Any], None]


class Sabotaged:
    """Golden, with a function of source, destination and group called before or after it."""

    name = "sabotaged"
    version = "0"
    claims = Claims(Level.L3, frozenset({Profile.CORE}))

    def __init__(self, after: Sabotage | None = None, before: Sabotage | None = None) -> None:
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


class Hooked(Sabotaged):
    """Golden with every optional hook; it logs their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.hook_calls: list[tuple[Any, ...]] = []

    def reshard_many(self, items: Sequence[Item], group: Any) -> None:
        self.hook_calls.append(tuple(item[0] for item in items))
        for item in sorted(items, key=lambda item: item[0]):
            reshard(*item[1:], group)

    def set_check(self, group: Any, mode: str) -> None:
        self.hook_calls.append((group.rank, mode))

    def live_communicators(self, group: Any) -> int:
        return 5 + int(group.rank)


def play(world: SimWorld, case: Case, implementation: Any, **options: Any) -> Outcome:
    with world.open(case.world_size, implementation) as session:
        return session.play(case, **options)


def change_destination(src: Any, dst: Any, group: Any) -> None:
    dst._local_tensor[1, 2] += group.rank


def change_guard(src: Any, dst: Any, group: Any) -> None:
    storage = torch.empty(0, dtype=torch.uint8).set_(dst._local_tensor.untyped_storage())
    storage[0] ^= 1


def change_source(src: Any, dst: Any, group: Any) -> None:
    if src is not None:
        src._local_tensor[0, 0] += 1


def replace_tensor(src: Any, dst: Any, group: Any) -> None:
    dst._local_tensor = dst._local_tensor.clone()


@pytest.mark.parametrize(
    ("sabotage", "faults"),
    [
        pytest.param(
            change_destination,
            ["rank 1: destination: 1 of 12 elements differ, first at (1, 2): bytes"],
            marks=pytest.mark.requirement("RS-EXACT-1"),
        ),
        pytest.param(
            change_guard,
            [f"rank {rank}: destination: 1 guard bytes around the view were written" for rank in range(2)],
            marks=pytest.mark.requirement("RS-EXACT-5"),
        ),
        pytest.param(
            change_source,
            ["rank 0: source was written: 1 of 24 elements differ, first at (0, 0): bytes"],
            marks=pytest.mark.requirement("RS-EXACT-4"),
        ),
        (replace_tensor, [f"rank {rank}: the caller's reference to a tensor was changed" for rank in range(2)]),
    ],
)
def test_a_wrong_byte_is_found(sim: SimWorld, sabotage: Sabotage, faults: list[str]) -> None:
    outcome = play(sim, CASE, Sabotaged(sabotage))
    assert outcome.verdict == "fail"
    for fault, expected in zip(outcome.faults, faults, strict=True):
        assert fault.startswith(expected)


def test_a_call_that_does_nothing_is_found(sim: SimWorld) -> None:
    class Idle(Sabotaged):
        def reshard(self, *arguments: Any) -> None: ...

    outcome = play(sim, CASE, Idle())
    assert [fault[:45] for fault in outcome.faults] == [
        f"rank {rank}: destination: 12 of 12 elements differ" for rank in range(2)
    ]


def test_bytes_of_an_earlier_call_are_found(sim: SimWorld) -> None:
    old_results: dict[int, torch.Tensor] = {}

    def repeat(src: Any, dst: Any, group: Any) -> None:
        dst._local_tensor.copy_(old_results.setdefault(group.rank, dst._local_tensor.clone()))

    with sim.open(2, Sabotaged(repeat)) as session:
        assert [session.play(CASE).verdict for _ in range(2)] == ["pass", "fail"]


def test_right_bytes_with_an_asymmetric_trace_are_found(sim: SimWorld) -> None:
    def abandon(src: Any, dst: Any, group: Any) -> None:
        child = group.communicator.split(group.rank, 0)
        if group.rank:
            child.exchange(b"")
        child = group.communicator.split(0, 0)
        child.exchange(b"")
        if group.rank:
            child.destroy()

    outcome = play(sim, CASE, Sabotaged(abandon))
    assert outcome.verdict == "fail"
    assert "communicator 0/1.0" in outcome.faults[0]


def test_a_refusal_on_every_rank_passes(sim: SimWorld) -> None:
    outcome = play(sim, REFUSED, Sabotaged())
    assert outcome.verdict == "pass"
    assert [report.kind for report in outcome.reports] == ["layout"] * 2


def test_a_call_that_returns_where_it_should_be_refused_is_found(sim: SimWorld) -> None:
    class Lenient(Sabotaged):
        def reshard(self, *arguments: Any) -> None: ...

    faults = play(sim, REFUSED, Lenient()).faults
    assert faults == tuple(f"rank {rank}: expected an error of kind layout, but the call returned" for rank in range(2))


def test_a_refusal_of_another_kind_is_found(sim: SimWorld) -> None:
    faults = play(sim, replace(REFUSED, expect="error:shape"), Sabotaged()).faults
    assert faults[0].startswith("rank 0: expected an error of kind shape, got layout: GoldenError: ")


def test_a_refusal_after_a_data_message_is_found(sim: SimWorld) -> None:
    def split(src: Any, dst: Any, group: Any) -> None:
        group.communicator.split(0, 0)

    faults = play(sim, REFUSED, Sabotaged(before=split)).faults
    assert faults == tuple(f"rank {rank}: expected nothing to be sent in a refused call, got split" for rank in (0, 1))


def test_a_refusal_after_an_exchange_passes(sim: SimWorld) -> None:
    def exchange(src: Any, dst: Any, group: Any) -> None:
        group.communicator.exchange(b"my fault")

    assert play(sim, REFUSED, Sabotaged(before=exchange)).verdict == "pass"


def test_a_refusal_that_wrote_a_destination_is_found(sim: SimWorld) -> None:
    def write(src: Any, dst: Any, group: Any) -> None:
        if dst is not None:
            dst._local_tensor[0, 0] += 1

    faults = play(sim, REFUSED, Sabotaged(before=write)).faults
    assert [fault[:41] for fault in faults] == [f"rank {rank}: destination was written: 1 of 12 " for rank in (0, 1)]


def test_unsupported_is_an_outcome_of_its_own(sim: SimWorld) -> None:
    def refuse(src: Any, dst: Any, group: Any) -> None:
        raise NotImplementedError("not mine")

    outcome = play(sim, CASE, Sabotaged(before=refuse))
    assert outcome.verdict == "unsupported"
    assert outcome.faults == ("ranks 0, 1: raised NotImplementedError: not mine",)


def test_a_call_that_one_rank_alone_does_not_support_is_a_failure(sim: SimWorld) -> None:
    def refuse(src: Any, dst: Any, group: Any) -> None:
        if group.rank:
            raise NotImplementedError("not mine")

    assert play(sim, CASE, Sabotaged(before=refuse)).verdict == "fail"


def test_lockstep_compares_with_golden(sim: SimWorld) -> None:
    assert play(sim, CASE, Sabotaged(), lockstep=True).verdict == "pass"
    faults = play(sim, CASE, Sabotaged(change_destination), lockstep=True).faults
    assert faults[1].startswith("rank 1: destination differs from golden's: 1 of 12 elements differ, first at (1, 2)")


def test_golden_runs_on_a_group_of_its_own(sim: SimWorld) -> None:
    alone, in_lockstep = (play(sim, CASE, Sabotaged(), lockstep=lockstep) for lockstep in (False, True))
    assert [report.events for report in alone.reports] == [report.events for report in in_lockstep.reports]


def test_the_peak_of_allocations_is_measured(sim: SimWorld) -> None:
    class Idle(Sabotaged):
        def reshard(self, *arguments: Any) -> None:
            torch.empty(1000 * (arguments[6].rank + 1), dtype=torch.uint8)

    outcome = play(sim, REFUSED, Idle(), memory=True)
    assert [report.peak for report in outcome.reports] == [1000, 2000]
    assert [report.peak for report in play(sim, REFUSED, Idle()).reports] == [None, None]


def test_hooks_are_used_where_there_are_any(sim: SimWorld) -> None:
    hooked = Hooked()
    batch = Batch((replace(CASE, name="b"), replace(CASE, name="a", dtype="int8"), CASE))
    with sim.open(2, hooked) as session:
        outcomes = [session.play(step) for step in (CASE, batch, FAULTY, CASE)]
        outcomes.append(session.play(CASE, check="off"))
    assert [outcome.verdict for outcome in outcomes[:2]] == ["pass", "pass"]
    assert [report.live for report in outcomes[0].reports] == [5, 6]
    batches, modes = hooked.hook_calls[:2], hooked.hook_calls[2:]
    assert sorted(batches[0]) == sorted(batches[1]) == ["2", "a", "b"]
    assert modes[:2] == [(0, "always"), (1, "always")]
    assert modes[-2:] == [(0, "off"), (1, "off")]


def test_a_check_mode_of_one_step_is_taken_back(sim: SimWorld) -> None:
    hooked = Hooked()
    with sim.open(2, hooked) as session:
        session.play(CASE, check="always")
        session.play(CASE)
        session.play(CASE)
    assert hooked.hook_calls == [(rank, mode) for mode in ("always", "first", "first") for rank in range(2)]


def test_a_batch_is_refused_as_a_whole(sim: SimWorld) -> None:
    with sim.open(2, Hooked()) as session:
        outcome = session.play(Batch((replace(REFUSED, name="a"), replace(CASE, name="b"))))
    assert outcome.faults == ()
    assert outcome.verdict == "pass"


def test_a_batch_without_its_hook_is_not_supported(sim: SimWorld) -> None:
    with sim.open(2, Sabotaged()) as session:
        assert session.play(Batch((CASE,))).verdict == "unsupported"


def test_a_group_that_is_only_dropped_makes_no_call(sim: SimWorld) -> None:
    class CallingAtClear(Sabotaged):
        def clear_caches(self, group: Any) -> None:
            group.communicator.exchange(b"")

    with sim.open(2, CallingAtClear()) as session:
        assert session.play(CASE).verdict == "pass"
        outcome = session.play(Destroy(0, clear=False))
    assert outcome.verdict == "pass"
    assert all(report.events == () for report in outcome.reports)
