"""Profile batch: many tensors in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from reshard_conformance.case.files import Batch, Case, Side, Step
from reshard_conformance.case.geometry import Geometry
from reshard_conformance.contract import Level, Profile
from reshard_conformance.generate.cases import Drawing, Space, batches, sampled
from reshard_conformance.judge.outcomes import RankReport
from reshard_conformance.search.bench import Bench, Drawn, Property, Script

__all__ = ["PROPERTIES"]

#: The maximum number of operations in one submission: public reports tell of hangs from about 10,000 on.
OPERATIONS = 8000


@st.composite
def batch_and_singles(draw: Callable[..., Any], space: Space) -> Script:
    """Draw a batch (every rank lists it in another order), alone or followed by its first case and the batch again."""
    cases = draw(batches(space))
    again = draw(sampled((False, True)))
    return (Batch(cases), cases[0], Batch(cases)) if again else (Batch(cases),)


@st.composite
def twins(draw: Callable[..., Any], space: Space) -> Script:
    """Draw a batch in which two items have one name, between two valid batches."""
    first, second, *rest = draw(batches(space))
    names = [replace(case, name=str(number)) for number, case in enumerate((first, second, *rest))]
    bad = [replace(case, expect="error:layout") for case in names]
    bad[draw(sampled(tuple(range(1, len(bad)))))] = replace(bad[1], name=bad[0].name)
    return Batch(tuple(names)), Batch(tuple(bad)), Batch(tuple(names))


def exchange(space: Space) -> st.SearchStrategy[Script]:
    """Return one small tensor of which every source rank sends a part to every destination rank."""
    size = max(space.sizes)
    half = size if space.level >= Level.L3 else size // 2
    src, dst = tuple(range(half)), tuple(range(size - half, size))
    return st.just((Case(size, (size, size), "uint8", Side(src, ("S(0)",)), Side(dst, ("S(1)",))),))


def crowd(step: Step) -> Step:
    """Repeat the case in a batch until each rank has more operations than may be submitted at once."""
    if not isinstance(step, Case):
        return step
    both = set(step.src.ranks) == set(step.dst.ranks)
    operations = 2 * (len(step.src.ranks) - 1) if both else len(step.src.ranks)
    return Batch((step,) * (OPERATIONS // operations + 1 if operations else 1))


def judge_submissions(bench: Bench, script: Script) -> None:
    """Judge that no rank submits more than OPERATIONS at once."""
    crowded = tuple(map(crowd, script))
    for report in bench.play(crowded)[0].reports:
        sizes = Counter(
            (event.communicator, event.submission) for event in report.events if event.submission is not None
        )
        most = max(sizes.values(), default=0)
        if most > OPERATIONS:
            fault = f"rank {report.rank}: {most} operations in one submission, {OPERATIONS} are known to work"
            bench.report(crowded, "fail", [fault])


@st.composite
def replicated(draw: Callable[..., Any], space: Space) -> Script:
    """Draw a batch that repeats one layout, whose source has several holders outside the destination."""
    case = Drawing(draw, space, ("source replicated", "meshes disjoint")).case()
    return (Batch((case,) * 24),)


def judge_turns(bench: Bench, script: Script) -> None:
    """Judge that no holder of a source shard sends more than twice the mean of its holders."""
    batch = script[0]
    reports = bench.play(script)[0].reports
    faults = uneven(batch.cases[0], reports) if isinstance(batch, Batch) else []
    if faults:
        bench.report(script, "fail", faults, advisory=True)


def uneven(case: Case, reports: Sequence[RankReport]) -> list[str]:
    both, faults = Geometry(case), []
    sent = {report.rank: sum(event.nbytes or 0 for event in report.events if event.op == "send") for report in reports}
    for box in set(both.src.boxes.values()):
        shares = [sent[rank] for rank, held in both.src.boxes.items() if held == box]
        if max(shares) * len(shares) > 2 * sum(shares) and both.relation == "disjoint":
            faults.append(f"the holders of {box} send {shares} bytes")
    return faults


PROPERTIES: tuple[Property, ...] = (
    Drawn(
        "batches",
        Profile.BATCH,
        {"RS-BATCH-1": ("a dim of size 0",), "RS-BATCH-2": ()},
        lambda space, _: batch_and_singles(space),
        Bench.play,
    ),
    Drawn("twins", Profile.BATCH, {"RS-BATCH-3": ()}, lambda space, _: twins(space), Bench.play),
    Drawn("submissions", Profile.BATCH, {"RS-BATCH-4": ()}, lambda space, _: exchange(space), judge_submissions),
    Drawn("turns", Profile.BATCH, {"RS-BATCH-6": ()}, lambda space, _: replicated(space), judge_turns),
)
