"""The reports of all ranks on one step, and the verdict on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from reshard_conformance.case.files import Destroy, Step
from reshard_conformance.contract import UNSUPPORTED
from reshard_conformance.judge.trace import DATA_CALLS, Event, symmetry_faults

__all__ = ["Outcome", "RankReport", "error_sentences", "expected_outcome", "judge_step"]


@dataclass(frozen=True)
class RankReport:
    """One rank's account of one step.

    kind: the kind of error, as the implementation maps it; None also for an error that it does not know.
    error: type and text of the exception, "" when the call returned; failed_at: its time, on a clock all ranks share.
    details: the traceback of an error of no kind. wrong: a sentence for each buffer with wrong bytes.
    events: the rank's calls on its communicators. peak: bytes allocated inside the call, where memory is asked for.
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


def expected_outcome(step: Step) -> str:
    """Return the `expect` of the step: for several cases in one call, the first error that one of them expects."""
    return next((case.expect for case in step.cases if case.expect != "equal"), "equal")


def judge_step(step: Step, reports: Sequence[RankReport]) -> Outcome:
    """Compare the reports of all ranks with what the step expects."""
    expected = expected_outcome(step)
    if all(report.kind == UNSUPPORTED for report in reports):
        return Outcome("unsupported", tuple(error_sentences(reports)), tuple(reports))
    faults = refusal_faults(expected, reports) if expected != "equal" else error_sentences(reports)
    faults += [f"rank {report.rank}: {sentence}" for report in reports for sentence in report.wrong]
    if isinstance(step, Destroy) and not step.clear:
        faults += [
            f"rank {report.rank}: {call} while a group was collected" for report in reports for call in report.events
        ]
    if not any(report.error for report in reports):
        faults += symmetry_faults({report.rank: report.events for report in reports})
    return Outcome("fail" if faults else "pass", tuple(faults), tuple(reports))


def error_sentences(reports: Sequence[RankReport]) -> list[str]:
    """Return one sentence for each error with all ranks that raised it, the earliest error first."""
    ranks_by_error = defaultdict(list)
    for report in sorted(reports, key=lambda report: report.failed_at):
        if report.error:
            ranks_by_error[report.error].append(report.rank)
    return [f"{rank_list(ranks)}: raised {error}" for error, ranks in ranks_by_error.items()]


def refusal_faults(expected: str, reports: Sequence[RankReport]) -> list[str]:
    """Check that every rank raised the same kind of error, before any call that moves data."""
    kind = expected.removeprefix("error:")
    faults = []
    for report in reports:
        if not report.error:
            faults.append(f"rank {report.rank}: expected an error of kind {kind}, but the call returned")
        elif report.kind != kind:
            faults.append(f"rank {report.rank}: expected an error of kind {kind}, got {report.kind}: {report.error}")
        data_call = next((event for event in report.events if event.op in DATA_CALLS), None)
        if data_call is not None:
            faults.append(f"rank {report.rank}: expected nothing to be sent in a refused call, got {data_call}")
    return faults


def rank_list(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, sorted(ranks)))}"
