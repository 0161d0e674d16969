"""Profile core: layouts, exactness, and the errors that every rank sees by itself."""

from __future__ import annotations

import zlib

from reshard_conformance.cases import dump
from reshard_conformance.contract import Profile
from reshard_conformance.generator import scripts
from reshard_conformance.search import Bench, Drawn, Property, Script

__all__ = ["PROPERTIES"]


def judge_bytes(bench: Bench, script: Script) -> None:
    """Play the script; one in ten, as its text decides, beside golden in lockstep."""
    bench.play(script, lockstep=zlib.crc32("".join(map(dump, script)).encode()) % 10 == 0)


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
)

PROPERTIES: tuple[Property, ...] = (EXACT,)
