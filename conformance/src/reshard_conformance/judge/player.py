"""One rank's part in a step: its inputs, the call, and the report on it."""

from __future__ import annotations

import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

from reshard_conformance.case.files import Batch, Case, Clear, Destroy, Step, StreamScenario
from reshard_conformance.contract import (
    UNSUPPORTED,
    Agreeing,
    Batching,
    Counting,
    Group,
    Handing,
    Implementation,
    SideArguments,
    Stream,
    Work,
)
from reshard_conformance.judge.inputs import (
    MeshRef,
    RankInput,
    TensorRef,
    as_seen_by,
    check_fault,
    make_inputs,
    torch_placements,
)
from reshard_conformance.judge.memory import AllocationMeter, DeviceMeter
from reshard_conformance.judge.oracle import Truth, allocate_buffer, describe_difference, expect_legal, poisoned_bytes
from reshard_conformance.judge.outcomes import RankReport, expected_outcome
from reshard_conformance.judge.streams import StreamScenarioRun
from reshard_conformance.judge.trace import EventLog
from reshard_golden import reshard as golden_reshard

__all__ = ["PlayOptions", "Player", "RankHost", "check_playable"]


@dataclass(frozen=True)
class PlayOptions:
    """The options of `Session.play`."""

    check: str | None = None
    lockstep: bool = False
    memory: bool = False


class RankHost(Protocol):
    """Makes and releases the groups of one rank in its world, on its device."""

    @property
    def device(self) -> torch.device:
        """The device of local tensors."""

    def make(self, serial: int, log: EventLog) -> Group:
        """Make group number `serial` of the session, over all ranks; collective."""

    def settle(self) -> None:
        """Wait for what was enqueued on the device, and log what was called on communicators."""

    def held(self) -> int | None:
        """Return the bytes of the device that are in use, by whatever; None on the CPU."""

    def release(self, group: Group, *, cleared: bool) -> None:
        """Take a group back; cleared: the implementation keeps nothing of it."""


class Player:
    """One rank of a session: its groups by number, and the implementation with its caches."""

    def __init__(self, rank: int, implementation: Implementation, host: RankHost) -> None:
        self.rank, self.implementation, self.host = rank, implementation, host
        self.agreeing = implementation if isinstance(implementation, Agreeing) else None
        self.counting = implementation if isinstance(implementation, Counting) else None
        self.groups: dict[int, Group] = {}
        self.golden_group: Group | None = None
        self.groups_with_check: weakref.WeakSet[Group] = weakref.WeakSet()
        self.next_serial = 0
        self.log = EventLog()

    def play(
        self, step: Step, truths: Sequence[Truth], options: PlayOptions, before: Sequence[Clear] = ()
    ) -> RankReport:
        """Make the step, after the clears that only some ranks make; truths: one for each case of the step."""
        if isinstance(step, Case):
            step = as_seen_by(step, self.rank)
        group = self.group(step.group)
        sides = [
            make_inputs(case, truth, self.rank, self.host.device)
            for case, truth in zip(step.cases, truths, strict=True)
        ]
        golden_dst = self.run_golden(step, sides[0]) if options.lockstep and isinstance(step, Case) else RankInput()
        self.set_check(group, step.cases, options)
        scenario_run = self.prepare_scenario(step, sides)

        def work() -> None:
            for clear in before:
                self.clear(clear)
            self.make(step, sides, group, scenario_run)

        failure, peak = run_measured(work, meter_of(self.host.device) if options.memory else None)
        self.host.settle()
        filled = failure is None and expected_outcome(step) == "equal"
        wrong = [fault for src, dst in sides for fault in memory_faults(src, dst, filled=filled)]
        wrong += golden_faults(sides[0][1], golden_dst) if filled and sides else []
        wrong += scenario_run.faults() if filled and scenario_run is not None else []
        live = self.live_communicators(group)
        if isinstance(step, Destroy):
            self.host.release(self.groups.pop(step.group), cleared=step.clear)
            del group  # so that what its collection does is part of this step
        return self.report(failure, wrong, peak, live, self.host.held() if options.memory else None)

    def group(self, number: int) -> Group:
        """Return the group of this number, made at its first use."""
        if number not in self.groups:
            self.groups[number] = self.new_group(self.log)
        return self.groups[number]

    def new_group(self, log: EventLog) -> Group:
        serial, self.next_serial = self.next_serial, self.next_serial + 1
        return self.host.make(serial, log)

    def make(
        self,
        step: Step,
        sides: Sequence[tuple[RankInput, RankInput]],
        group: Group,
        scenario_run: StreamScenarioRun | None,
    ) -> None:
        """Call the implementation as the step says."""
        match step:
            case Case():
                self.implementation.reshard(*side_arguments(step, *sides[0]), group, None)
            case Batch():
                self.make_batch(step, sides, group)
            case StreamScenario():
                self.make_scenario(step, sides, scenario_run)
            case Clear():
                self.clear(step)
            case Destroy(clear=True):
                self.implementation.clear_caches(group)

    def make_batch(self, batch: Batch, sides: Sequence[tuple[RankInput, RankInput]], group: Group) -> None:
        if not isinstance(self.implementation, Batching):
            raise NotSupportedError("no hook reshard_many")
        names = [case.name or str(number) for number, case in enumerate(batch.cases)]
        items = [
            (name, *side_arguments(case, src, dst))
            for name, case, (src, dst) in zip(names, batch.cases, sides, strict=True)
        ]
        offset = self.rank % len(items)  # each rank lists them in another order
        self.implementation.reshard_many(items[offset:] + items[:offset], group)

    def prepare_scenario(self, step: Step, sides: list[tuple[RankInput, RankInput]]) -> StreamScenarioRun | None:
        """Make the groups and the run of a stream scenario; None for other steps, and without a device."""
        if not isinstance(step, StreamScenario) or self.host.device.type == "cpu":
            return None
        for number in step.groups:
            self.group(number)
        return StreamScenarioRun(step, sides, self.host.device)

    def make_scenario(
        self,
        scenario: StreamScenario,
        sides: Sequence[tuple[RankInput, RankInput]],
        scenario_run: StreamScenarioRun | None,
    ) -> None:
        if scenario_run is None:
            raise NotSupportedError("no device with streams")
        wants_handle = scenario.usage == "handled"
        hook = self.implementation if isinstance(self.implementation, Handing) and wants_handle else None

        def call(number: int, stream: Stream | None) -> Work | None:
            case = scenario.cases[number]
            target = self.implementation.reshard if hook is None else hook.reshard_work
            return target(*side_arguments(case, *sides[number]), self.group(case.group), stream)

        scenario_run.run(call)

    def clear(self, clear: Clear) -> None:
        """Clear the caches of the step's groups, if this rank is to do so."""
        if clear.ranks is not None and self.rank not in clear.ranks:
            return
        for group in list(self.groups.values()) if clear.all_groups else [self.group(clear.group)]:
            self.implementation.clear_caches(group)

    def set_check(self, group: Group, cases: Sequence[Case], options: PlayOptions) -> None:
        """Set the group's check mode where one is asked for, or where an earlier step asked for another one."""
        if self.agreeing is None:
            return
        faulty = any(case.fault is not None for case in cases)
        mode = "always" if faulty else options.check
        if mode is not None or group in self.groups_with_check:
            self.agreeing.set_check(group, mode or "first")
            self.groups_with_check.add(group)

    def run_golden(self, case: Case, sides: tuple[RankInput, RankInput]) -> RankInput:
        """Let golden fill a destination of its own from the same source, on a group of its own."""
        src, dst = sides
        if case.expect != "equal":
            return RankInput()
        if self.golden_group is None:
            self.golden_group = self.new_group(EventLog())
        golden_dst = golden_destination(dst)
        golden_reshard(*side_arguments(case, src, golden_dst), self.golden_group)
        return golden_dst

    def live_communicators(self, group: Group) -> int | None:
        return None if self.counting is None else self.counting.live_communicators(group)

    def report(
        self, failure: Failure | None, wrong: Sequence[str], peak: int | None, live: int | None, held: int | None
    ) -> RankReport:
        self.host.settle()
        events = self.log.take()
        if failure is None:
            return RankReport(self.rank, wrong=tuple(wrong), events=events, peak=peak, live=live, held=held)
        kind = self.kind_of(failure.error)
        details = "" if kind else "".join(traceback.format_exception(failure.error))
        error = f"{type(failure.error).__name__}: {failure.error}"
        return RankReport(self.rank, kind, error, failure.moment, details, tuple(wrong), events, peak, live, held)

    def kind_of(self, error: BaseException) -> str | None:
        return UNSUPPORTED if isinstance(error, NotSupportedError) else self.implementation.error_kind(error)


@dataclass(frozen=True)
class Failure:
    """An exception of the implementation, and its time on a monotonic clock."""

    error: BaseException
    moment: float


class NotSupportedError(Exception):
    """The implementation lacks the hook that a step needs."""


def side_arguments(case: Case, src: RankInput, dst: RankInput) -> SideArguments:
    """Return the first six of the eight arguments of a reshard."""
    return (
        src.reference,
        MeshRef(case.src),
        torch_placements(case.src),
        dst.reference,
        MeshRef(case.dst),
        torch_placements(case.dst),
    )


def meter_of(device: torch.device) -> AllocationMeter | DeviceMeter:
    """Return a meter of the memory that a call allocates on the device."""
    return AllocationMeter() if device.type == "cpu" else DeviceMeter(device)


def run_measured(
    work: Callable[[], None], meter: AllocationMeter | DeviceMeter | None
) -> tuple[Failure | None, int | None]:
    """Run `work`; return its failure, and the peak of the bytes that it allocated, where there is a meter."""
    failure = None
    try:
        with meter or nullcontext():
            work()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an implementation raises is a finding
        failure = Failure(error, time.monotonic())
    return failure, None if meter is None else meter.peak


def memory_faults(src: RankInput, dst: RankInput, *, filled: bool) -> list[str]:
    """Check that the source and all guard bytes are unchanged; the destination too, unless it was to be filled."""
    faults = dst.faults("destination", filled=filled) + src.faults("source", filled=False)
    replaced = src.was_replaced() or dst.was_replaced()
    return faults + (["the caller's reference to a tensor was changed"] if replaced else [])


def golden_destination(dst: RankInput) -> RankInput:
    """Make a contiguous destination with the same expected bytes."""
    if dst.buffer is None or dst.expected is None or dst.reference is None:
        return dst
    dtype = dst.reference.dtype
    content = poisoned_bytes(dst.expected, dtype)
    buffer = allocate_buffer(content, dtype, "contiguous", device=dst.reference.device)
    return RankInput(TensorRef(dst.reference.shape, dtype, buffer.tensor), buffer, dst.expected)


def golden_faults(dst: RankInput, golden_dst: RankInput) -> list[str]:
    if dst.buffer is None or golden_dst.buffer is None:
        return []
    differences = describe_difference(dst.buffer.content.cpu(), golden_dst.buffer.content.cpu())
    return [f"destination differs from golden's: {sentence}" for sentence in differences]


def check_playable(step: Step, world_size: int) -> None:
    """Raise CaseError for a step that no ranks can make: another world size, or a layout that `expect` rules out."""
    step.check_world_size(world_size, f"{world_size}, the size of the session")
    for case in step.cases:
        if case.expect == "equal":
            expect_legal(case)
        check_fault(case)
