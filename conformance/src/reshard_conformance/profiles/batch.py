"""Profile batch: many tensors in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from reshard_conformance.cases import Batch, Case, Side, Step
from reshard_conformance.contract import Level, Profile
from reshard_conformance.generator import Drawing, Space, batches, one_of
from reshard_conformance.geometry import Geometry
from reshard_conformance.playing import RankReport
from reshard_conformance.search import Bench, Drawn, Property, Script

__all__ = ["PROPERTIES"]

#: Operations that no implementation may submit at once: public reports tell of hangs from some 10,000 on.
OPERATIONS = 8000


@st.composite
def batch_and_singles(draw: Callable[..., Any], space: Space) -> Script:
    """A batch (every rank lists it in another order), its first case alone, and the batch again."""
    cases = draw(batches(space))
    again = draw(one_of((False, True)))
    return (Batch(cases), cases[0], Batch(cases)) if again else (Batch(cases),)


@st.composite
def twins(draw: Callable[..., Any], space: Space) -> Script:
    """A batch that names two items alike, between two good ones."""
    first, second, *rest = draw(batches(space))
    names = [replace(case, name=str(number)) for number, case in enumerate((first, second, *rest))]
    bad = [replace(case, expect="error:layout") for case in names]
    bad[draw(one_of(tuple(range(1, len(bad)))))] = replace(bad[1], name=bad[0].name)
    return Batch(tuple(names)), Batch(tuple(bad)), Batch(tuple(names))


def exchange(space: Space) -> st.SearchStrategy[Script]:
    """One small tensor in which every source rank has something for every destination rank."""
    size = max(space.sizes)
    half = size if space.level >= Level.L3 else size // 2
    src, dst = tuple(range(half)), tuple(range(size - half, size))
    return st.just((Case(size, (size, size), "uint8", Side(src, ("S(0)",)), Side(dst, ("S(1)",))),))


def crowd(step: Step) -> Step:
    """The case in a batch so many times that each rank has more operations than may be submitted at once."""
    if not isinstance(step, Case):
        return step
    both = set(step.src.ranks) == set(step.dst.ranks)
    operations = 2 * (len(step.src.ranks) - 1) if both else len(step.src.ranks)
    return Batch((step,) * (OPERATIONS // operations + 1 if operations else 1))


def judge_submissions(bench: Bench, script: Script) -> None:
    """No rank submits more operations at once than is known to work."""
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
    """A batch of one layout many times, its source held by several ranks outside the destination."""
    case = Drawing(draw, space, ("source replicated", "meshes disjoint")).case()
    return (Batch((case,) * 24),)


def judge_turns(bench: Bench, script: Script) -> None:
    """The holders of each source shard send nearly equal shares: none twice as much as the mean of them."""
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
