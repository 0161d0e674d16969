"""Plays chunks: one after another on a stage, or spread over worker processes that each have a stage."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import TypeAlias

import torch

from reshard_conformance import registry
from reshard_conformance.cases import dump
from reshard_conformance.contract import Implementation, Level, Profile
from reshard_conformance.coverage import CLASSES
from reshard_conformance.generator import Space
from reshard_conformance.geometry import Geometry
from reshard_conformance.plan import Chunk
from reshard_conformance.playing import cases_of
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.results import Failure
from reshard_conformance.search import SHRINKS, Bench, Finding, search
from reshard_conformance.worlds import World
from reshard_conformance.worlds.nccl import shares

__all__ = ["Part", "Pulse", "Stage", "WorkerError", "failure_of", "play"]


#: Pools of rank processes that share a set of GPUs, where nobody says how many.
POOLS = 4
#: Profiles whose scripts clear by themselves, and begin with nothing kept.
CLEARING = {Profile.LIFECYCLE, Profile.AGREEMENT}
#: How often a failing script is tried again in nccl to make it smaller: each time communicators are made anew.
TRIES = 40
#: Seconds between two words on how far a chunk has come.
PULSE = 1.0


class WorkerError(RuntimeError):
    """A worker process of the suite ended or failed by itself: a fault of the suite, not of an implementation."""


@dataclass(frozen=True)
class Part:
    """What a chunk played: scripts, distinct layouts (as digests), cases by coverage class, and its failure if any.

    beside: those of the layouts on which golden played along. dtypes: those that were moved. versions: what each rank
    ran on.
    """

    chunk: Chunk
    scripts: int
    layouts: frozenset[bytes]
    cases: int
    counts: Mapping[str, int]
    failure: Failure | None
    beside: frozenset[bytes] = frozenset()
    dtypes: frozenset[str] = frozenset()
    versions: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Pulse:
    """How far a chunk has come: scripts and distinct layouts so far."""

    chunk: Chunk
    scripts: int
    layouts: int


Tell: TypeAlias = Callable[[Pulse], object]


def unheard(pulse: Pulse) -> None:
    """Nobody wants to know."""


def play(
    chunks: Sequence[Chunk],
    implementation: str | Implementation,
    level: Level,
    jobs: int | None = None,
    tell: Tell = unheard,
) -> Generator[Part, None, None]:
    """Play the chunks, in the order in which they end; an implementation that is no name in this process only.

    jobs: processes that play chunks; None: one a processor, and in nccl POOLS for each set of GPUs.
    """
    if jobs == 1 or not isinstance(implementation, str):
        with closing(Stage(implementation, level)) as stage:
            for chunk in chunks:
                yield stage.play(chunk, tell)
        return
    sets = dealt(chunks, jobs)
    workers = [Worker(implementation, level, gpus, alone=sets.count(gpus) == 1) for gpus in sets]
    try:
        yield from spread(chunks, workers, tell)
    finally:
        for worker in workers:
            worker.end()


def dealt(chunks: Sequence[Chunk], jobs: int | None) -> list[tuple[int, ...]]:
    """The GPUs of each worker: disjoint sets as far as there are any, then the same ones again; none for other worlds."""
    device = sum(chunk.world == "nccl" for chunk in chunks)
    sets = shares() if device else []
    most = (os.cpu_count() or 1) if jobs is None else jobs
    pools = min(device, most, len(sets) * POOLS if jobs is None else jobs)
    return [sets[place % len(sets)] for place in range(pools)] + [()] * min(len(chunks) - device, most - pools)


def spread(chunks: Sequence[Chunk], workers: Sequence[Worker], tell: Tell) -> Generator[Part, None, None]:
    """Give every worker its next chunk as soon as it has ended one."""
    waiting = list(chunks)
    busy = {worker.pipe: worker for worker in workers if worker.start(waiting)}
    while busy:
        for worker in [busy[pipe] for pipe in busy.keys() & set(wait(list(busy)))]:
            told = worker.told()
            if isinstance(told, Pulse):
                tell(told)
                continue
            yield told
            if not worker.start(waiting):
                del busy[worker.pipe]


class Worker:
    """A process with a stage; gpus: without any it plays no chunk of nccl. alone: whether no other worker uses them."""

    def __init__(self, implementation: str, level: Level, gpus: tuple[int, ...], *, alone: bool) -> None:
        self.gpus = gpus
        context = get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, implementation, level, gpus, alone))
        self.process.start()
        theirs.close()

    def start(self, waiting: list[Chunk]) -> bool:
        """Give it the first chunk that it can play (of those of nccl, if there are any); whether there is one."""
        device = [chunk for chunk in waiting if chunk.world == "nccl"] if self.gpus else []
        mine = device or [chunk for chunk in waiting if chunk.world != "nccl"]
        if mine:
            waiting.remove(mine[0])
            self.pipe.send(mine[0])
        return bool(mine)

    def told(self) -> Part | Pulse:
        """What the process says next."""
        try:
            answer = self.pipe.recv()
        except EOFError:
            self.process.join()
            raise WorkerError(f"a worker process of the suite died with exit code {self.process.exitcode}") from None
        if not isinstance(answer, Part | Pulse):
            raise WorkerError(f"a worker process of the suite failed:\n{answer}")
        return answer

    def end(self) -> None:
        """Let the process end; one that still plays is not waited for."""
        self.pipe.close()
        self.process.join(5.0)
        self.process.terminate()
        self.process.join()


def serve(pipe: Connection, implementation: str, level: Level, gpus: tuple[int, ...], alone: bool) -> None:
    """Play the chunks that come through the pipe, until its other end is closed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # they would come once a process, amid what the command line shows
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the ranks have to be ended, whatever they wait for
    with closing(Stage(implementation, level, gpus=gpus, alone=alone)) as stage:
        while True:
            try:
                chunk = pipe.recv()
            except EOFError:
                return
            try:
                answer: object = stage.play(chunk, pipe.send)
            except Exception:  # noqa: BLE001 - told to the parent, which raises it
                answer = traceback.format_exc()
            try:
                pipe.send(answer)
            except BrokenPipeError:
                return


class Beat:
    """Tells how far a chunk has come, once in PULSE seconds at most."""

    def __init__(self, chunk: Chunk, tell: Tell) -> None:
        self.chunk, self.tell = chunk, tell
        self.last = time.monotonic()

    def __call__(self, bench: Bench) -> None:
        if time.monotonic() - self.last > PULSE:
            self.last = time.monotonic()
            self.tell(Pulse(self.chunk, bench.scripts, len(bench.layouts)))


class Stage:
    """The worlds of one process, made when they are first needed, with an implementation to be judged in them.

    renew: makes a new implementation for each script. gpus: for world nccl; all of the machine when None. alone: whether
    no other stage uses them.
    """

    def __init__(
        self,
        implementation: str | Implementation,
        level: Level,
        renew: Callable[[], Implementation] | None = None,
        gpus: tuple[int, ...] | None = None,
        *,
        alone: bool = True,
    ) -> None:
        self.implementation, self.level, self.renew, self.gpus, self.alone = implementation, level, renew, gpus, alone
        self.worlds: dict[str, World] = {}

    def play(self, chunk: Chunk, tell: Tell = unheard) -> Part:
        """Play one chunk, and tell now and then how far it has come."""
        prop = PROPERTIES[chunk.prop]
        if chunk.world not in self.worlds:
            self.worlds[chunk.world] = registry.world(chunk.world, self.gpus, alone=self.alone)
        world, dear = self.worlds[chunk.world], chunk.world == "nccl"
        bench = Bench(
            *(world, self.implementation, Space(chunk.sizes, self.level, few=chunk.seed if dear else None)),
            *(prop.traced, self.renew),
            keep=dear and prop.profile not in CLEARING,
            most=TRIES if dear else SHRINKS,
            beat=Beat(chunk, tell),
        )
        with closing(bench):
            finding = search(prop, bench, chunk.seed, chunk.rounds, chunk.examples)
        coverage = bench.coverage
        return Part(
            *(chunk, bench.scripts, frozenset(bench.layouts), coverage.total, dict(coverage.counts)),
            failure=None if finding is None else failure_of(chunk, finding),
            beside=frozenset(bench.beside),
            dtypes=frozenset(bench.dtypes),
            versions=dict(world.versions),
        )

    def close(self) -> None:
        """End the worlds."""
        for world in self.worlds.values():
            world.close()


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
        advisory=finding.advisory,
    )
