"""Profile efficient: the bytes sent, judged from the trace, and the memory that a call allocates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from reshard_conformance.case.files import Case
from reshard_conformance.case.geometry import Box, Geometry, box_numel, intersect_boxes, is_contiguous
from reshard_conformance.contract import Profile
from reshard_conformance.generate.cases import scripts
from reshard_conformance.judge.outcomes import RankReport
from reshard_conformance.judge.trace import Event
from reshard_conformance.search.bench import Bench, Drawn, Property, Script

__all__ = ["PROPERTIES"]


def judge_traffic(bench: Bench, script: Script) -> None:
    """Play a script and judge the trace of each of its cases."""
    for place, (step, outcome) in enumerate(zip(script, bench.play(script), strict=False)):
        faults = traffic(step, outcome.reports) if isinstance(step, Case) else []
        if faults:
            bench.report(script[: place + 1], "fail", faults)


def judge_memory(bench: Bench, script: Script) -> None:
    """Play a script and judge the peak memory of each of its cases; in nccl it includes exchanged records."""
    for place, (step, outcome) in enumerate(zip(script, bench.play(script, memory=True), strict=False)):
        faults = staging(step, outcome.reports, records=bench.world.name == "nccl") if isinstance(step, Case) else []
        if faults:
            bench.report(script[: place + 1], "fail", faults)


def traffic(case: Case, reports: Sequence[RankReport]) -> list[str]:
    """Return faults for bytes received in messages that a replica group or a rank does not need.

    Only messages count; collective calls are the fan-out to replicas.
    """
    both, size = Geometry(case), itemsize(case)
    received = {report.rank: sum(nbytes(event) for event in report.events if event.op == "recv") for report in reports}
    faults, groups = [], defaultdict(list)
    for rank, got in received.items():
        box, held = both.dst.boxes.get(rank), both.src.boxes.get(rank)
        needed = 0 if box is None else box_numel(box) - (0 if held is None else box_numel(intersect_boxes(box, held)))
        if got > needed * size:
            faults.append(
                f"rank {rank}: received {got} bytes, but only {needed * size} of its shard are not in its source"
            )
        if box is not None and box_numel(box):
            groups[box].append(rank)
    for box, ranks in groups.items():
        total = sum(received[rank] for rank in ranks)
        if total > box_numel(box) * size:
            faults.append(
                f"replicas on ranks {ranks}: received {total} bytes in messages, but share {box_numel(box) * size}"
            )
    return faults


def staging(case: Case, reports: Sequence[RankReport], *, records: bool = False) -> list[str]:
    """Return faults for ranks that allocated more than noncontiguous bytes sent and received, and one such destination.

    records: the peak includes exchanged records, which come before any data.
    """
    both, size = Geometry(case), itemsize(case)
    faults = []
    for report in reports:
        mine, held = both.dst.boxes.get(report.rank), both.src.boxes.get(report.rank)
        allowed = 0
        for event in report.events:
            if event.op == "send" and held is not None:
                allowed += staged(event, held, both.dst.boxes, strided=both.src.is_strided)
            elif event.op == "recv" and mine is not None:
                allowed += staged(event, mine, both.src.boxes, strided=both.dst.is_strided)
        if mine is not None and both.dst.is_strided:
            allowed += box_numel(mine) * size
        if records:
            allowed = max(allowed, *(exchanged(event) for event in report.events), 0)
        if report.peak is not None and report.peak > allowed:
            faults.append(
                f"rank {report.rank}: allocated {report.peak} bytes at its peak, but stages at most {allowed}"
            )
    return faults


def staged(event: Event, mine: Box, theirs: dict[int, Box], *, strided: bool) -> int:
    """Return the bytes of a message if this rank's part of it may be noncontiguous, else 0."""
    peer = theirs.get(event.peer) if event.peer is not None and "/" not in event.communicator else None
    direct = peer is not None and is_contiguous(intersect_boxes(mine, peer), mine)
    return 0 if direct and not strided else nbytes(event)


def exchanged(event: Event) -> int:
    """Return the bytes of a rank's own record and of all members' records."""
    return nbytes(event) * (event.members + 1) if event.op == "exchange" else 0


def nbytes(event: Event) -> int:
    return 0 if event.nbytes is None else event.nbytes


def itemsize(case: Case) -> int:
    dtype: torch.dtype = getattr(torch, case.dtype)
    return dtype.itemsize


PROPERTIES: tuple[Property, ...] = (
    Drawn(
        "traffic",
        Profile.EFFICIENT,
        {"RS-TRAFFIC-1": ("destination replicated",), "RS-TRAFFIC-2": ("meshes overlapping",)},
        scripts,
        judge_traffic,
    ),
    Drawn(
        "memory",
        Profile.EFFICIENT,
        {"RS-TRAFFIC-3": (), "RS-TRAFFIC-4": ()},
        scripts,
        judge_memory,
    ),
)
