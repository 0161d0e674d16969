"""Profile efficient: how much is sent, judged from the trace, and how much memory a call takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from reshard_conformance.cases import Case
from reshard_conformance.contract import Profile
from reshard_conformance.generator import scripts
from reshard_conformance.geometry import Box, Geometry, common, elements, is_contiguous
from reshard_conformance.playing import RankReport
from reshard_conformance.search import Bench, Drawn, Property, Script
from reshard_conformance.trace import Event

__all__ = ["PROPERTIES"]


def judge_traffic(bench: Bench, script: Script) -> None:
    """Play a script and judge the trace of every case of it."""
    for place, (step, outcome) in enumerate(zip(script, bench.play(script), strict=False)):
        faults = traffic(step, outcome.reports) if isinstance(step, Case) else []
        if faults:
            bench.report(script[: place + 1], "fail", faults)


def judge_memory(bench: Bench, script: Script) -> None:
    """Play a script and judge the peak of every case of it; in nccl records too are exchanged from memory of the device."""
    for place, (step, outcome) in enumerate(zip(script, bench.play(script, memory=True), strict=False)):
        faults = staging(step, outcome.reports, records=bench.world.name == "nccl") if isinstance(step, Case) else []
        if faults:
            bench.report(script[: place + 1], "fail", faults)


def traffic(case: Case, reports: Sequence[RankReport]) -> list[str]:
    """What was received in messages beyond need: by a replica group, or by a rank that holds it already.

    Messages count wherever they are sent; what a collective call moves is the fan-out.
    """
    both, size = Geometry(case), itemsize(case)
    received = {report.rank: sum(nbytes(event) for event in report.events if event.op == "recv") for report in reports}
    faults, groups = [], defaultdict(list)
    for rank, got in received.items():
        box, held = both.dst.boxes.get(rank), both.src.boxes.get(rank)
        needed = 0 if box is None else elements(box) - (0 if held is None else elements(common(box, held)))
        if got > needed * size:
            faults.append(
                f"rank {rank}: received {got} bytes, but only {needed * size} of its shard are not in its source"
            )
        if box is not None and elements(box):
            groups[box].append(rank)
    for box, ranks in groups.items():
        total = sum(received[rank] for rank in ranks)
        if total > elements(box) * size:
            faults.append(
                f"replicas on ranks {ranks}: received {total} bytes in messages, but share {elements(box) * size}"
            )
    return faults


def staging(case: Case, reports: Sequence[RankReport], *, records: bool = False) -> list[str]:
    """Where a rank allocated more than it may: noncontiguous bytes sent and received, and one noncontiguous destination.

    records: whether the measure has the memory of exchanged records in it, which come before any data.
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
            allowed += elements(mine) * size
        if records:
            allowed = max(allowed, *(exchanged(event) for event in report.events), 0)
        if report.peak is not None and report.peak > allowed:
            faults.append(
                f"rank {report.rank}: allocated {report.peak} bytes at its peak, but stages at most {allowed}"
            )
    return faults


def staged(event: Event, mine: Box, theirs: dict[int, Box], *, strided: bool) -> int:
    """The bytes of a message, where this rank's part of it may be noncontiguous, else 0."""
    peer = theirs.get(event.peer) if event.peer is not None and "/" not in event.communicator else None
    direct = peer is not None and is_contiguous(common(mine, peer), mine)
    return 0 if direct and not strided else nbytes(event)


def exchanged(event: Event) -> int:
    """The bytes of a rank's own record and of all members' side by side."""
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
