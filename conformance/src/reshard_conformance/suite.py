"""Runs the properties of the claimed profiles in chunks over worker processes, and gathers a result.

The chunks of a run are fixed. A small part more is drawn under a fresh seed and reported apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context

import torch

from reshard_conformance.cases import dump
from reshard_conformance.contract import Claims, Implementation, Level, Profile
from reshard_conformance.coverage import CLASSES, Coverage, Geometry
from reshard_conformance.generator import Space
from reshard_conformance.plan import EFFORTS, SIZES, Chunk, plan
from reshard_conformance.playing import cases_of
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.registry import load
from reshard_conformance.requirements import requirements
from reshard_conformance.results import Failure, Result, Tally
from reshard_conformance.search import Bench, Finding, Property, search
from reshard_conformance.waivers import Waiver
from reshard_conformance.worlds import World
from reshard_conformance.worlds.sim import SimWorld

__all__ = ["Part", "SuiteError", "check_worlds", "make_world", "run"]

WORLDS: dict[str, Callable[[Callable[[str], Implementation]], World]] = {"sim": SimWorld}
#: The most ranks of a session.
MOST = {"sim": SimWorld.max_size}
#: A run ends early when so many searches have failed.
ENOUGH = 8


class SuiteError(ValueError):
    """A run that cannot be started as asked; says what to change."""


@dataclass(frozen=True)
class Part:
    """What a chunk played: scripts, distinct layouts (as digests), cases by coverage class, and its failure if any."""

    chunk: Chunk
    scripts: int
    layouts: frozenset[bytes]
    cases: int
    counts: Mapping[str, int]
    failure: Failure | None


def run(
    implementation: str | Implementation,
    worlds: Sequence[str] = ("sim",),
    profiles: Collection[Profile] | None = None,
    *,
    effort: str = "quick",
    seed: int = 0,
    sizes: tuple[int, ...] | None = None,
    jobs: int = 2,
    waivers: Sequence[Waiver] = (),
    tell: Callable[[Part, int], None] | None = None,
) -> Result:
    """Judge an implementation by the profiles that it claims (or those of them that are named).

    implementation: a name as on the command line; an object can be judged in sim only, and in this process.
    seed: of the fresh part. sizes: the world sizes to draw from. jobs: worker processes.
    tell: is told of every part that was played, and of the number of chunks in all.
    Raises SuiteError for a run that cannot be, RegistryError for an unknown implementation.
    """
    found = load(implementation) if isinstance(implementation, str) else implementation
    if effort not in EFFORTS:
        raise SuiteError(f"effort {effort!r} is not known; --effort can be {', '.join(EFFORTS)}")
    spread = {
        world: sizes_in(world, found.claims, sizes) for world in check_worlds(worlds, implementation, found.claims)
    }
    result = Result(found.name, found.version, found.claims, chosen(found.claims, profiles), spread, effort, seed)
    chunks = plan(spread, result.profiles, effort, seed)
    began = time.monotonic()
    with closing(play(chunks, implementation, found.claims.level, jobs)) as parts:
        for part in parts:
            take(result, part, waivers)
            if tell is not None:
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
    return tuple(dict.fromkeys(worlds))


def sizes_in(world: str, claims: Claims, sizes: tuple[int, ...] | None) -> tuple[int, ...]:
    """The world sizes to draw from; below L3 meshes are disjoint and need two ranks."""
    least = 1 if claims.level is Level.L3 else 2
    if sizes is None:
        return tuple(size for size in SIZES[world] if size >= least)
    if not sizes or min(sizes) < least or max(sizes) > MOST[world]:
        raise SuiteError(f"world {world!r} has {least} to {MOST[world]} ranks at {claims.level.name}, not {sizes}")
    return sizes


def play(
    chunks: Sequence[Chunk], implementation: str | Implementation, level: Level, jobs: int
) -> Generator[Part, None, None]:
    """Play the chunks, over worker processes where the implementation can be loaded there, in the order they end."""
    one = partial(play_chunk, implementation=implementation, level=level)
    if jobs == 1 or not isinstance(implementation, str):
        yield from map(one, chunks)
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    pool = ProcessPoolExecutor(jobs, mp_context=context)
    try:
        for future in as_completed([pool.submit(one, chunk) for chunk in chunks]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def play_chunk(chunk: Chunk, implementation: str | Implementation, level: Level) -> Part:
    """Play one chunk in a world of its own."""
    prop = PROPERTIES[chunk.prop]
    torch.set_num_threads(1)
    with closing(make_world(chunk.world)) as world:
        bench = Bench(world, implementation, Space(chunk.sizes, level))
        with closing(bench):
            finding = search(prop, bench, chunk.seed, chunk.rounds, chunk.examples)
    failure = None if finding is None else failure_of(chunk, finding)
    coverage = bench.coverage
    return Part(chunk, bench.scripts, frozenset(bench.layouts), coverage.total, dict(coverage.counts), failure)


def failure_of(chunk: Chunk, finding: Finding) -> Failure:
    """A finding as it goes into the result."""
    prop = PROPERTIES[chunk.prop]
    cases = [case for step in finding.script for case in cases_of(step) if case.expect == "equal"]
    return Failure(
        *(chunk.world, prop.name, prop.profile, finding.verdict, finding.faults),
        script=tuple(dump(step) for step in finding.script),
        seed=chunk.seed,
        fresh=chunk.fresh,
        again=finding.again,
        classes=frozenset(kind.name for case in cases for kind in CLASSES if kind.holds(Geometry(case))),
        advisory=is_advisory(prop),
    )


def is_advisory(prop: Property) -> bool:
    """Whether the property shows only requirements of strength SHOULD."""
    return all(entry.strength == "SHOULD" for entry in requirements() if entry.id in prop.requirements)


def make_world(name: str) -> World:
    """A world by its name."""
    return WORLDS[name](load)


def take(result: Result, part: Part, waivers: Sequence[Waiver]) -> None:
    """Add a part to the result."""
    chunk, prop = part.chunk, PROPERTIES[part.chunk.prop]
    key = chunk.world, chunk.prop
    if key not in result.tallies:
        coverage = Coverage(result.claims.level, chunk.sizes)
        result.tallies[key] = Tally(chunk.world, prop.name, prop.profile, prop.requirements, coverage, prop.steered)
    tally = result.tallies[key]
    (result.fresh if chunk.fresh else result.layouts).setdefault(chunk.world, set()).update(part.layouts)
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
