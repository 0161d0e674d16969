"""Profile core: layouts, exactness, and the errors that every rank sees by itself."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import partial

from reshard_conformance.case.files import Case, dump
from reshard_conformance.contract import Level, Profile
from reshard_conformance.generate.cases import scripts, view_cases
from reshard_conformance.generate.defects import argument_fault_scripts, layout_defect_scripts, two_defect_scripts
from reshard_conformance.judge.outcomes import RankReport
from reshard_conformance.search.bench import Bench, Drawn, Property, Script

__all__ = ["PROPERTIES"]


def judge_bytes(bench: Bench, script: Script) -> None:
    """Play the script; one in seven, selected by a checksum of its text, in lockstep with golden."""
    bench.play(script, lockstep=zlib.crc32("".join(map(dump, script)).encode()) % 7 == 0)


EXACT = Drawn(
    name="exact",
    profile=Profile.CORE,
    requirements={
        "RS-LAYOUT-1": (),
        "RS-LAYOUT-2": ("meshes disjoint", "meshes equal", "meshes overlapping"),
        "RS-LAYOUT-3": ("idle ranks",),
        "RS-LAYOUT-4": ("negative shard dim",),
        "RS-LAYOUT-5": ("uneven on a sharded dim",),
        "RS-LAYOUT-6": ("several mesh dims on one tensor dim", "uneven on a sharded dim"),
        "RS-LAYOUT-7": ("an empty shard",),
        "RS-LAYOUT-8": ("tensor of 0 dims", "tensor of 4 or more dims", "a dim of size 0", "a dim of size 1"),
        "RS-EXACT-1": (),
        "RS-EXACT-2": ("dtype outside NCCL's own",),
        "RS-EXACT-3": (),
        "RS-EXACT-4": (),
        "RS-EXACT-5": ("non-contiguous destination",),
        "RS-EXACT-6": ("destination replicated",),
        "RS-EXACT-7": ("non-contiguous source", "non-contiguous destination"),
        "RS-EXACT-12": (),
    },
    draws=scripts,
    judge=judge_bytes,
    steered=True,
    traced=False,
)


def views(name: str, requirement: str, src: Sequence[str], dst: Sequence[str]) -> Drawn:
    """Return a property of unusual kinds of local tensors, which belong to level L3."""
    draws = partial(view_cases, src=src, dst=dst)
    return Drawn(name, Profile.CORE, {requirement: ()}, lambda space, _: draws(space), Bench.play, least=Level.L3)


LAZY = ("conjugate", "negative", "contiguous")
MADE = ("parameter", "inference", "contiguous")
VIEWS = (
    views("lazy-views", "RS-EXACT-8", LAZY, LAZY),
    views("wrapped", "RS-EXACT-9", MADE, MADE),
    views("pending", "RS-EXACT-10", ("pending",), ("contiguous", "transposed")),
    views("entwined", "RS-EXACT-11", ("interleaved",), ("interleaved",)),
)


def refusal(name: str, requirement: str, *defects: str) -> Drawn:
    """Return a property of layouts that every rank must refuse."""
    shown = {requirement: (), "RS-ERROR-10": ()}
    return Drawn(name, Profile.CORE, shown, lambda space, _: layout_defect_scripts(space, defects), Bench.play)


def own_fault(name: str, requirement: str, *defects: str) -> Drawn:
    """Return a property of tensors that every rank must refuse: all ranks pass wrong ones, so each sees its own fault."""
    shown = {requirement: (), "RS-ERROR-10": ()}
    draws = partial(argument_fault_scripts, defects=defects, everywhere=True)
    return Drawn(name, Profile.CORE, shown, lambda space, _: draws(space), Bench.play, least=Level.L3)


REFUSALS = (
    refusal("refuses-placements", "RS-ERROR-1", "unsupported placement"),
    refusal("refuses-dims", "RS-ERROR-2", "shard dim out of range"),
    refusal("refuses-meshes", "RS-ERROR-3", "number of placements", "ranks of a mesh"),
    own_fault("refuses-absent", "RS-ERROR-4", "absent"),
    own_fault("refuses-devices", "RS-ERROR-5", "device"),
    own_fault("refuses-dtypes", "RS-ERROR-6", "dtype"),
    own_fault("refuses-shapes", "RS-ERROR-7", "local_shape", "global_shape"),
    own_fault("refuses-aliasing", "RS-ERROR-8", "alias"),
    Drawn("first-defect", Profile.CORE, {"RS-ERROR-9": ()}, lambda space, _: two_defect_scripts(space), Bench.play),
)


def judge_text(bench: Bench, script: Script) -> None:
    """Judge that the text of a refusal names the rank and the tensor, and for dtypes the expected and the actual one."""
    for place, outcome in enumerate(bench.play(script)):
        step = script[place] if place < len(script) else None
        if isinstance(step, Case) and step.fault is not None:
            faults = [fault for report in outcome.reports for fault in missing_names(step, report)]
            if faults:
                bench.report(script[: place + 1], "fail", faults, advisory=True)


def missing_names(case: Case, report: RankReport) -> list[str]:
    """Return a sentence on what the text of a rank's error does not name."""
    text, fault = report.error, case.fault
    missing = [] if re.search(r"\brank \d+", text) else ["a rank"]
    missing += [] if re.search(r"\b(src|dst|source|destination)\b", text) else ["source or destination"]
    if fault is not None and fault.what == "dtype":
        missing += [name for name in (case.dtype, str(fault.value)) if name not in text]
    return [f"rank {report.rank}: {text!r} does not name {', '.join(missing)}"] if missing else []


TEXT = Drawn(
    "says-why",
    Profile.CORE,
    {"RS-ERROR-12": ()},
    lambda space, _: argument_fault_scripts(space, ("absent", "device", "dtype", "local_shape"), everywhere=True),
    judge_text,
    least=Level.L3,
)

PROPERTIES: tuple[Property, ...] = (EXACT, *VIEWS, *REFUSALS, TEXT)
