"""Runs the properties of the claimed profiles in chunks over worker processes, and collects a result.

Most chunks have fixed seeds. A small part is drawn under a fresh seed and reported separately.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from reshard_conformance.contract import Claims, Implementation, Level, Profile
from reshard_conformance.generate.coverage import Coverage
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.registry import WORLDS, load
from reshard_conformance.run.plan import EFFORTS, NCCL_LAYOUTS, WORLD_SIZES, plan_chunks, properties_shown_in
from reshard_conformance.run.workers import ChunkProgress, ChunkResult, play_chunks
from reshard_conformance.verdict.results import Failure, Result, Tally
from reshard_conformance.verdict.waivers import Waiver
from reshard_conformance.worlds import nccl
from reshard_conformance.worlds.sim import SimWorld

__all__ = ["OnUpdate", "SuiteError", "check_worlds", "run_suite"]

#: The maximum number of ranks of a session in worlds without devices.
MAX_RANKS = {"sim": SimWorld.max_size, "gloo": 8}
#: A run ends early when this many searches have failed.
MAX_FAILURES = 8


class OnUpdate(Protocol):
    """Called with each result and each progress of a chunk, and the number of chunks in all."""

    def __call__(self, update: ChunkResult | ChunkProgress, /, chunks: int) -> object: ...


def ignore_update(update: ChunkResult | ChunkProgress, /, chunks: int) -> None:
    """Do nothing: no one follows the run."""


class SuiteError(ValueError):
    """A run that cannot be started as requested; says what to change."""


def run_suite(
    implementation: str | Implementation,
    worlds: Sequence[str] = ("sim",),
    profiles: Collection[Profile] | None = None,
    *,
    effort: str = "quick",
    seed: int = 0,
    sizes: tuple[int, ...] | None = None,
    jobs: int | None = 2,
    layouts: int = NCCL_LAYOUTS,
    waivers: Sequence[Waiver] = (),
    on_update: OnUpdate = ignore_update,
) -> Result:
    """Judge an implementation by the profiles that it claims, or by the named ones of them.

    implementation: a name as on the command line, or an object, which runs in sim and in this process only.
    seed: of the fresh part. sizes: the world sizes to draw from. jobs: worker processes; None: as many as the machine
    carries. layouts: the approximate number that a quick run draws in nccl. on_update: see OnUpdate.
    Raises SuiteError for a run that cannot be started, RegistryError for an unknown implementation.
    """
    subject = load(implementation) if isinstance(implementation, str) else implementation
    if effort not in EFFORTS:
        raise SuiteError(f"effort {effort!r} is not known; --effort can be {', '.join(EFFORTS)}")
    sizes_by_world = {
        world: world_sizes(world, subject.claims, sizes)
        for world in check_worlds(worlds, implementation, subject.claims)
    }
    result = Result(
        subject.name,
        subject.version,
        subject.claims,
        profiles_to_judge(subject.claims, profiles),
        sizes_by_world,
        effort,
        seed,
    )
    result.tallies = empty_tallies(result)
    chunks = plan_chunks(sizes_by_world, result.profiles, subject.claims.level, effort, seed, layouts)
    began = time.monotonic()
    on_progress = partial(on_update, chunks=len(chunks))
    with closing(play_chunks(chunks, implementation, subject.claims.level, jobs, on_progress)) as parts:
        for part in parts:
            add_part(result, part, waivers)
            on_update(part, len(chunks))
            if sum(tally.failed for tally in result.tallies.values()) >= MAX_FAILURES:
                result.stopped = True
                break
    result.seconds = time.monotonic() - began
    return result


def profiles_to_judge(claims: Claims, profiles: Collection[Profile] | None) -> tuple[Profile, ...]:
    """Return the claimed profiles that a run judges, in the order of the enumeration."""
    unclaimed = [profile.value for profile in profiles or () if profile not in claims.profiles]
    if unclaimed:
        claimed = ", ".join(profile.value for profile in Profile if profile in claims.profiles)
        raise SuiteError(f"profile {unclaimed[0]!r} is not claimed; --profiles can name {claimed or 'none'}")
    return tuple(profile for profile in Profile if profile in (claims.profiles if profiles is None else profiles))


def check_worlds(worlds: Sequence[str], implementation: str | Implementation, claims: Claims) -> Sequence[str]:
    """Return the worlds. Raises SuiteError for one that is unknown, not claimed, or cannot run the implementation."""
    for world in worlds:
        if world not in WORLDS:
            raise SuiteError(f"world {world!r} is not known; --world can name {', '.join(WORLDS)}")
        if world not in claims.worlds:
            raise SuiteError(f"world {world!r} is not claimed; --world can name {', '.join(sorted(claims.worlds))}")
        if world != "sim" and not isinstance(implementation, str):
            raise SuiteError(f"world {world!r} loads an implementation by name in other processes, not from an object")
        missing = nccl.missing_requirement() if world == "nccl" else None
        if missing:
            raise SuiteError(missing)
    return tuple(dict.fromkeys(worlds))


def world_sizes(world: str, claims: Claims, sizes: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the world sizes to draw from; below L3 meshes are disjoint and need two ranks."""
    least = 1 if claims.level is Level.L3 else 2
    most = MAX_RANKS[world] if world in MAX_RANKS else nccl.max_ranks(len(nccl.gpu_sets()[0]))
    if sizes is None:
        sizes = tuple(size for size in WORLD_SIZES[world] if least <= size <= most)
    if not sizes or min(sizes) < least or max(sizes) > most:
        why = "; ranks share a GPU with NCCL 2.30 or newer" if world == "nccl" and most < nccl.MAX_RANKS else ""
        raise SuiteError(f"world {world!r} has {least} to {most} ranks at {claims.level.name}, not {sizes}{why}")
    return sizes


def empty_tallies(result: Result) -> dict[tuple[str, str], Tally]:
    """Return an empty tally for each property in each world, in the order of the report."""
    level = result.claims.level
    return {
        (world, prop.name): Tally(
            *(world, prop.name, prop.profile, prop.requirements),
            Coverage(level, sizes),
            prop.steered,
            prop.least <= level,
        )
        for world, sizes in result.worlds.items()
        for prop in properties_shown_in(world, list(PROPERTIES.values()))
        if prop.profile in result.profiles
    }


def add_part(result: Result, part: ChunkResult, waivers: Sequence[Waiver]) -> None:
    """Add a part to the result."""
    chunk = part.chunk
    tally = result.tallies[chunk.world, chunk.prop]
    (result.fresh if chunk.fresh else result.layouts).setdefault(chunk.world, set()).update(part.layouts)
    result.in_lockstep.setdefault(chunk.world, set()).update(part.in_lockstep)
    result.dtypes.setdefault(chunk.world, set()).update(part.dtypes)
    if part.versions:
        result.versions.setdefault(chunk.world, {}).update(part.versions)
    if not chunk.fresh:
        tally.scripts += part.scripts
        tally.coverage.merge(part.cases, part.counts)
    if part.failure is not None:
        tally.failed += 1
        keep_smallest(result, with_waiver(part.failure, tally, waivers))


def with_waiver(failure: Failure, tally: Tally, waivers: Sequence[Waiver]) -> Failure:
    """Return the failure with the first waiver that excuses it today."""
    today, shown = datetime.now(UTC).date(), frozenset(tally.requirements)
    fault = failure.faults[0] if failure.faults else failure.verdict
    return replace(failure, waiver=next((w for w in waivers if w.excuses(shown, fault, today)), None))


def keep_smallest(result: Result, failure: Failure) -> None:
    """Add the failure to the result, which keeps the smallest of each kind."""
    same = [other for other in result.failures if other.kind == failure.kind]
    if any(sum(map(len, other.script)) <= sum(map(len, failure.script)) for other in same):
        return
    result.failures = [other for other in result.failures if other not in same] + [failure]
