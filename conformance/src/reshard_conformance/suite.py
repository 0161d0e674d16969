"""Runs the properties of the claimed profiles in chunks over worker processes, and gathers a result.

The chunks of a run are fixed. A small part more is drawn under a fresh seed and reported apart.
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
from reshard_conformance.coverage import Coverage
from reshard_conformance.plan import EFFORTS, LAYOUTS, SIZES, plan, shown
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.registry import WORLDS, load
from reshard_conformance.results import Failure, Result, Tally
from reshard_conformance.waivers import Waiver
from reshard_conformance.workers import Part, Pulse, play
from reshard_conformance.worlds import nccl
from reshard_conformance.worlds.sim import SimWorld

__all__ = ["SuiteError", "Tell", "check_worlds", "run"]

#: The most ranks of a session in worlds without devices.
MOST = {"sim": SimWorld.max_size, "gloo": 8}
#: A run ends early when so many searches have failed.
ENOUGH = 8


class Tell(Protocol):
    """Is told of parts, and of how far they have come, with the number of chunks in all."""

    def __call__(self, told: Part | Pulse, /, chunks: int) -> object: ...


def unheard(told: Part | Pulse, /, chunks: int) -> None:
    """Nobody wants to know."""


class SuiteError(ValueError):
    """A run that cannot be started as asked; says what to change."""


def run(
    implementation: str | Implementation,
    worlds: Sequence[str] = ("sim",),
    profiles: Collection[Profile] | None = None,
    *,
    effort: str = "quick",
    seed: int = 0,
    sizes: tuple[int, ...] | None = None,
    jobs: int | None = 2,
    layouts: int = LAYOUTS,
    waivers: Sequence[Waiver] = (),
    tell: Tell = unheard,
) -> Result:
    """Judge an implementation by the profiles that it claims (or those of them that are named).

    implementation: a name as on the command line; an object can be judged in sim only, and in this process.
    seed: of the fresh part. sizes: the world sizes to draw from. jobs: worker processes; None:
    as many as the machine carries. layouts: about how many a quick run draws in nccl.
    tell: is told of every part that was played, and on the way how far parts have come, with the number of chunks in all.
    Raises SuiteError for a run that cannot be, RegistryError for an unknown implementation.
    """
    found = load(implementation) if isinstance(implementation, str) else implementation
    if effort not in EFFORTS:
        raise SuiteError(f"effort {effort!r} is not known; --effort can be {', '.join(EFFORTS)}")
    spread = {
        world: sizes_in(world, found.claims, sizes) for world in check_worlds(worlds, implementation, found.claims)
    }
    result = Result(found.name, found.version, found.claims, chosen(found.claims, profiles), spread, effort, seed)
    result.tallies = tallies(result)
    chunks = plan(spread, result.profiles, found.claims.level, effort, seed, layouts)
    began = time.monotonic()
    beat = partial(tell, chunks=len(chunks))
    with closing(play(chunks, implementation, found.claims.level, jobs, beat)) as parts:
        for part in parts:
            take(result, part, waivers)
            tell(part, len(chunks))
            if sum(tally.failed for tally in result.tallies.values()) >= ENOUGH:
                result.stopped = True
                break
    result.seconds = time.monotonic() - began
    return result


def chosen(claims: Claims, profiles: Collection[Profile] | None) -> tuple[Profile, ...]:
    """The claimed profiles that a run judges, in the order of the enumeration."""
    foreign = [profile.value for profile in profiles or () if profile not in claims.profiles]
    if foreign:
        claimed = ", ".join(profile.value for profile in Profile if profile in claims.profiles)
        raise SuiteError(f"profile {foreign[0]!r} is not claimed; --profiles can name {claimed or 'none'}")
    return tuple(profile for profile in Profile if profile in (claims.profiles if profiles is None else profiles))


def check_worlds(worlds: Sequence[str], implementation: str | Implementation, claims: Claims) -> Sequence[str]:
    """The worlds, each known, claimed, and able to run the implementation."""
    for world in worlds:
        if world not in WORLDS:
            raise SuiteError(f"world {world!r} is not known; --world can name {', '.join(WORLDS)}")
        if world not in claims.worlds:
            raise SuiteError(f"world {world!r} is not claimed; --world can name {', '.join(sorted(claims.worlds))}")
        if world != "sim" and not isinstance(implementation, str):
            raise SuiteError(f"world {world!r} loads an implementation by name in other processes, not from an object")
        missing = nccl.lacking() if world == "nccl" else None
        if missing:
            raise SuiteError(missing)
    return tuple(dict.fromkeys(worlds))


def sizes_in(world: str, claims: Claims, sizes: tuple[int, ...] | None) -> tuple[int, ...]:
    """The world sizes to draw from; below L3 meshes are disjoint and need two ranks."""
    least = 1 if claims.level is Level.L3 else 2
    most = MOST[world] if world in MOST else nccl.most(len(nccl.shares()[0]))
    if sizes is None:
        sizes = tuple(size for size in SIZES[world] if least <= size <= most)
    if not sizes or min(sizes) < least or max(sizes) > most:
        why = "; ranks share a GPU with NCCL 2.30 or newer" if world == "nccl" and most < nccl.RANKS else ""
        raise SuiteError(f"world {world!r} has {least} to {most} ranks at {claims.level.name}, not {sizes}{why}")
    return sizes


def tallies(result: Result) -> dict[tuple[str, str], Tally]:
    """An empty tally for each property in each world, in the order in which a report shows them."""
    level = result.claims.level
    return {
        (world, prop.name): Tally(
            *(world, prop.name, prop.profile, prop.requirements),
            Coverage(level, sizes),
            prop.steered,
            prop.least <= level,
        )
        for world, sizes in result.worlds.items()
        for prop in shown(world, list(PROPERTIES.values()))
        if prop.profile in result.profiles
    }


def take(result: Result, part: Part, waivers: Sequence[Waiver]) -> None:
    """Add a part to the result."""
    chunk = part.chunk
    tally = result.tallies[chunk.world, chunk.prop]
    (result.fresh if chunk.fresh else result.layouts).setdefault(chunk.world, set()).update(part.layouts)
    result.beside.setdefault(chunk.world, set()).update(part.beside)
    result.dtypes.setdefault(chunk.world, set()).update(part.dtypes)
    if part.versions:
        result.versions.setdefault(chunk.world, {}).update(part.versions)
    if not chunk.fresh:
        tally.scripts += part.scripts
        tally.coverage.merge(part.cases, part.counts)
    if part.failure is not None:
        tally.failed += 1
        keep(result, excused(part.failure, tally, waivers))


def excused(failure: Failure, tally: Tally, waivers: Sequence[Waiver]) -> Failure:
    """The failure, with the first waiver that holds for it today."""
    today, shown = datetime.now(UTC).date(), frozenset(tally.requirements)
    fault = failure.faults[0] if failure.faults else failure.verdict
    return replace(failure, waiver=next((w for w in waivers if w.excuses(shown, fault, today)), None))


def keep(result: Result, failure: Failure) -> None:
    """Keep one failure, the smallest, of each kind."""
    same = [other for other in result.failures if other.kind == failure.kind]
    if any(sum(map(len, other.script)) <= sum(map(len, failure.script)) for other in same):
        return
    result.failures = [other for other in result.failures if other not in same] + [failure]
