"""What one rank does for one step, and how the reports of all ranks are judged."""

from __future__ import annotations

import time
import traceback
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch

from reshard_conformance.cases import Batch, Case, CaseError, Clear, Destroy, Flow, Step
from reshard_conformance.contract import (
    UNSUPPORTED,
    Agreeing,
    Batching,
    Counting,
    Group,
    Handing,
    Implementation,
    MeshReference,
    Placements,
    Stream,
    TensorReference,
    Work,
)
from reshard_conformance.fields import expect_members
from reshard_conformance.flowing import Flowing
from reshard_conformance.handing import Handed, MeshRef, TensorRef, check_fault, hand, placements, seen
from reshard_conformance.memory import DeviceMeter, Meter
from reshard_conformance.oracle import Truth, allocate, describe_difference, expect_legal, poisoned
from reshard_conformance.trace import DATA, Event, Log, symmetry
from reshard_golden import reshard as golden_reshard

__all__ = ["Host", "Options", "Outcome", "Player", "RankReport", "cases_of", "check_playable", "judge", "raised"]


@dataclass(frozen=True)
class Options:
    """How a step is played; see `Session.play`."""

    check: str | None = None
    lockstep: bool = False
    memory: bool = False


@dataclass(frozen=True)
class RankReport:
    """What one rank saw in one step.

    kind: the kind of error, as the implementation maps it; None also for an error that it does not know.
    error: type and text of what was raised, "" when the call returned; failed_at: when, on a clock all ranks share.
    details: the traceback of an error of no kind. wrong: a sentence for each buffer that is not as it must be.
    events: the rank's calls on its communicators. peak: bytes allocated inside the call, where asked for.
    live: communicators made from the group and still alive, where the implementation counts them.
    held: bytes of the device in use after the call, where memory is asked for.
    """

    rank: int
    kind: str | None = None
    error: str = ""
    failed_at: float = 0.0
    details: str = ""
    wrong: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    peak: int | None = None
    live: int | None = None
    held: int | None = None


@dataclass(frozen=True)
class Outcome:
    """The verdict on one step: "pass", "fail", "unsupported" or "hang"; a sentence for each fault, the cause first."""

    verdict: str
    faults: tuple[str, ...] = ()
    reports: tuple[RankReport, ...] = ()

    def __post_init__(self) -> None:
        if self.verdict not in {"pass", "fail", "unsupported", "hang"}:
            raise ValueError(f"an outcome is pass, fail, unsupported or hang, not {self.verdict!r}")


class Host(Protocol):
    """Makes and releases the groups of one rank in its world, on its device."""

    @property
    def device(self) -> torch.device:
        """Where local tensors live."""

    def make(self, serial: int, log: Log) -> Group:
        """Group number `serial` of the session, over all ranks; collective."""

    def settle(self) -> None:
        """Wait for what was enqueued on the device, and note what was called on communicators."""

    def held(self) -> int | None:
        """The bytes of the device that are in use, by whatever; None on the CPU."""

    def release(self, group: Group, *, cleared: bool) -> None:
        """Take a group back; cleared: the implementation keeps nothing of it."""


class Player:
    """One rank of a session: its groups by number, and the implementation with its caches."""

    def __init__(self, rank: int, implementation: Implementation, host: Host) -> None:
        self.rank, self.implementation, self.host = rank, implementation, host
        self.agreeing = implementation if isinstance(implementation, Agreeing) else None
        self.counting = implementation if isinstance(implementation, Counting) else None
        self.groups: dict[int, Group] = {}
        self.golden: Group | None = None
        self.moded: weakref.WeakSet[Group] = weakref.WeakSet()
        self.serial = 0
        self.log = Log()

    def play(self, step: Step, truths: Sequence[Truth], options: Options, before: Sequence[Clear] = ()) -> RankReport:
        """Make the step, after the clears that only some ranks make; truths: one a case of the step."""
        if isinstance(step, Case):
            step = seen(step, self.rank)
        group = self.group(step.group)
        cases = cases_of(step)
        sides = [hand(case, truth, self.rank, self.host.device) for case, truth in zip(cases, truths, strict=True)]
        twin = self.golden_twin(step, sides[0]) if options.lockstep and isinstance(step, Case) else Handed()
        self.set_check(group, cases, options)
        flowing = self.flowing(step, sides)

        def work() -> None:
            for clear in before:
                self.clear(clear)
            self.make(step, sides, group, flowing)

        failure, peak = attempt(work, meter_of(self.host.device) if options.memory else None)
        self.host.settle()
        filled = failure is None and expectation(step) == "equal"
        wrong = [fault for src, dst in sides for fault in memory_faults(src, dst, filled=filled)]
        wrong += twin_faults(sides[0][1], twin) if filled and sides else []
        wrong += flowing.faults() if filled and flowing is not None else []
        live = self.live(group)
        if isinstance(step, Destroy):
            self.host.release(self.groups.pop(step.group), cleared=step.clear)
            del group  # so that what its collection does is part of this step
        return self.report(failure, wrong, peak, live, self.host.held() if options.memory else None)

    def group(self, number: int) -> Group:
        """The group of this number, made at its first use."""
        if number not in self.groups:
            self.groups[number] = self.new_group(self.log)
        return self.groups[number]

    def new_group(self, log: Log) -> Group:
        serial, self.serial = self.serial, self.serial + 1
        return self.host.make(serial, log)

    def make(self, step: Step, sides: Sequence[tuple[Handed, Handed]], group: Group, flowing: Flowing | None) -> None:
        if isinstance(step, Case):
            self.implementation.reshard(*arguments(step, *sides[0]), group, None)
        elif isinstance(step, Batch):
            self.make_batch(step, sides, group)
        elif isinstance(step, Clear):
            self.clear(step)
        elif isinstance(step, Flow):
            self.make_flow(step, sides, flowing)
        elif step.clear:
            self.implementation.clear_caches(group)

    def make_batch(self, batch: Batch, sides: Sequence[tuple[Handed, Handed]], group: Group) -> None:
        if not isinstance(self.implementation, Batching):
            raise NotSupportedError("no hook reshard_many")
        names = [case.name or str(number) for number, case in enumerate(batch.cases)]
        items = [
            (name, *arguments(case, src, dst)) for name, case, (src, dst) in zip(names, batch.cases, sides, strict=True)
        ]
        turn = self.rank % len(items)  # each rank lists them in another order
        self.implementation.reshard_many(items[turn:] + items[:turn], group)

    def flowing(self, step: Step, sides: list[tuple[Handed, Handed]]) -> Flowing | None:
        """What plays a flow here, with its groups made; None for other steps, and without a device."""
        if not isinstance(step, Flow) or self.host.device.type == "cpu":
            return None
        for number in step.groups:
            self.group(number)
        return Flowing(step, sides, self.host.device)

    def make_flow(self, flow: Flow, sides: Sequence[tuple[Handed, Handed]], flowing: Flowing | None) -> None:
        if flowing is None:
            raise NotSupportedError("no device with streams")
        hook = self.implementation if isinstance(self.implementation, Handing) and flow.scene == "handled" else None

        def call(number: int, stream: Stream | None) -> Work | None:
            case = flow.cases[number]
            target = self.implementation.reshard if hook is None else hook.reshard_work
            return target(*arguments(case, *sides[number]), self.group(case.group), stream)

        flowing.run(call)

    def clear(self, clear: Clear) -> None:
        if clear.ranks is not None and self.rank not in clear.ranks:
            return
        for group in list(self.groups.values()) if clear.all_groups else [self.group(clear.group)]:
            self.implementation.clear_caches(group)

    def set_check(self, group: Group, cases: Sequence[Case], options: Options) -> None:
        """Set the group's mode where one is asked for, or where an earlier step has asked for another."""
        if self.agreeing is None:
            return
        faulty = any(case.fault is not None for case in cases)
        mode = "always" if faulty else options.check
        if mode is not None or group in self.moded:
            self.agreeing.set_check(group, mode or "first")
            self.moded.add(group)

    def golden_twin(self, case: Case, sides: tuple[Handed, Handed]) -> Handed:
        """Let golden fill a destination of its own from the same source, on a group of its own."""
        src, dst = sides
        if case.expect != "equal":
            return Handed()
        if self.golden is None:
            self.golden = self.new_group(Log())
        twin = twin_of(dst)
        golden_reshard(*arguments(case, src, twin), self.golden)
        return twin

    def live(self, group: Group) -> int | None:
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
    """What the implementation raised, and when."""

    error: BaseException
    moment: float


Arguments: TypeAlias = tuple[
    TensorReference | None, MeshReference, Placements, TensorReference | None, MeshReference, Placements
]


class NotSupportedError(Exception):
    """The implementation lacks the hook that a step needs."""


def arguments(case: Case, src: Handed, dst: Handed) -> Arguments:
    """The first six of the eight arguments of a reshard."""
    return (
        src.reference,
        MeshRef(case.src),
        placements(case.src),
        dst.reference,
        MeshRef(case.dst),
        placements(case.dst),
    )


def meter_of(device: torch.device) -> Meter | DeviceMeter:
    """What measures memory on the device."""
    return Meter() if device.type == "cpu" else DeviceMeter(device)


def attempt(work: Callable[[], None], meter: Meter | DeviceMeter | None) -> tuple[Failure | None, int | None]:
    """What `work` raised, and the peak of bytes that it allocated, where there is a meter."""
    failure = None
    try:
        with meter or nullcontext():
            work()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an implementation raises is a finding
        failure = Failure(error, time.monotonic())
    return failure, None if meter is None else meter.peak


def memory_faults(src: Handed, dst: Handed, *, filled: bool) -> list[str]:
    """The source and what surrounds it must be as before; the destination too, unless it was to be filled."""
    faults = dst.faults("destination", filled=filled) + src.faults("source", filled=False)
    changed = [handed for handed in (src, dst) if handed.changed()]
    return faults + (["the caller's reference to a tensor was changed"] if changed else [])


def twin_of(dst: Handed) -> Handed:
    """A contiguous destination of the same bytes."""
    if dst.buffer is None or dst.expected is None or dst.reference is None:
        return dst
    dtype = dst.reference.dtype
    buffer = allocate(poisoned(dst.expected, dtype), dtype, "contiguous", device=dst.reference.device)
    return Handed(TensorRef(dst.reference.shape, dtype, buffer.tensor), buffer, dst.expected)


def twin_faults(dst: Handed, twin: Handed) -> list[str]:
    if dst.buffer is None or twin.buffer is None:
        return []
    found = describe_difference(dst.buffer.content.cpu(), twin.buffer.content.cpu())
    return [f"destination differs from golden's: {sentence}" for sentence in found]


def cases_of(step: Step) -> tuple[Case, ...]:
    """The reshards of a step."""
    if isinstance(step, Batch | Flow):
        return step.cases
    return (step,) if isinstance(step, Case) else ()


def expectation(step: Step) -> str:
    """What the step has to end with: a batch, which is one call, with the first error that a case of it expects."""
    return next((case.expect for case in cases_of(step) if case.expect != "equal"), "equal")


def check_playable(step: Step, world_size: int) -> None:
    """CaseError for a step that no ranks can make: another world size, or a layout that is not what `expect` needs."""
    for case in cases_of(step):
        if case.world_size != world_size:
            raise CaseError("world_size", f"{world_size}, the size of the session", case.world_size)
        if case.expect == "equal":
            expect_legal(case)
        check_fault(case)
    if isinstance(step, Clear) and step.ranks is not None:
        expect_members("ranks", step.ranks, world_size)


def judge(step: Step, reports: Sequence[RankReport]) -> Outcome:
    """Compare what all ranks report with what the step expects."""
    expected = expectation(step)
    if all(report.kind == UNSUPPORTED for report in reports):
        return Outcome("unsupported", tuple(raised(reports)), tuple(reports))
    faults = refusal_faults(expected, reports) if expected != "equal" else raised(reports)
    faults += [f"rank {report.rank}: {sentence}" for report in reports for sentence in report.wrong]
    if isinstance(step, Destroy) and not step.clear:
        faults += [
            f"rank {report.rank}: {call} while a group was collected" for report in reports for call in report.events
        ]
    if not any(report.error for report in reports):
        faults += symmetry({report.rank: report.events for report in reports})
    return Outcome("fail" if faults else "pass", tuple(faults), tuple(reports))


def raised(reports: Sequence[RankReport]) -> list[str]:
    """One sentence for each error, the first to be raised first, with all ranks that raised the same."""
    ranks = defaultdict(list)
    for report in sorted(reports, key=lambda report: report.failed_at):
        if report.error:
            ranks[report.error].append(report.rank)
    return [f"{named(where)}: raised {error}" for error, where in ranks.items()]


def refusal_faults(expected: str, reports: Sequence[RankReport]) -> list[str]:
    """A refusal is the same kind of error on every rank, and comes before any data message."""
    kind = expected.removeprefix("error:")
    faults = []
    for report in reports:
        if not report.error:
            faults.append(f"rank {report.rank}: expected an error of kind {kind}, but the call returned")
        elif report.kind != kind:
            faults.append(f"rank {report.rank}: expected an error of kind {kind}, got {report.kind}: {report.error}")
        moved = next((event for event in report.events if event.op in DATA), None)
        if moved is not None:
            faults.append(f"rank {report.rank}: expected nothing to be sent in a refused call, got {moved}")
    return faults


def named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, sorted(ranks)))}"
