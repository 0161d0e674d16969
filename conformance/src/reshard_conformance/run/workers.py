"""Plays chunks in this process, or distributes them over worker processes."""

from __future__ import annotations

import gc
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
from reshard_conformance.case.files import dump
from reshard_conformance.case.geometry import Geometry
from reshard_conformance.contract import Implementation, Level, Profile
from reshard_conformance.generate.cases import Space
from reshard_conformance.generate.coverage import CLASSES
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.run.plan import Chunk
from reshard_conformance.search.bench import SHRINKS, Bench, Finding, search
from reshard_conformance.verdict.results import Failure
from reshard_conformance.worlds import World
from reshard_conformance.worlds.nccl import gpu_sets

__all__ = ["ChunkPlayer", "ChunkProgress", "ChunkResult", "WorkerError", "failure_of", "play_chunks"]


#: The default number of pools of rank processes that share a set of GPUs.
POOLS_PER_GPU_SET = 4
#: Profiles whose scripts clear caches themselves, and begin with empty ones.
CLEARING_PROFILES = {Profile.LIFECYCLE, Profile.AGREEMENT}
#: The maximum number of shrinking steps in nccl, where each step creates new communicators.
NCCL_SHRINKS = 40
#: Seconds between two reports on the progress of a chunk.
PROGRESS_INTERVAL = 1.0
#: Allocations between two garbage collections in a worker: with Python's 700 they take a seventh of a run in sim.
COLLECTION_THRESHOLD = 20_000


class WorkerError(RuntimeError):
    """A worker process of the suite died or raised: a fault of the suite, not of an implementation."""


@dataclass(frozen=True)
class ChunkResult:
    """The result of a chunk: scripts, distinct layouts (as digests), cases by coverage class, and its failure if any.

    in_lockstep: the layouts on which golden ran beside the implementation. dtypes: that were moved. versions: that each
    rank ran on.
    """

    chunk: Chunk
    scripts: int
    layouts: frozenset[bytes]
    cases: int
    counts: Mapping[str, int]
    failure: Failure | None
    in_lockstep: frozenset[bytes] = frozenset()
    dtypes: frozenset[str] = frozenset()
    versions: Mapping[int, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class ChunkProgress:
    """The progress of a chunk: scripts and distinct layouts so far."""

    chunk: Chunk
    scripts: int
    layouts: int


OnProgress: TypeAlias = Callable[[ChunkProgress], object]


def ignore_progress(pulse: ChunkProgress) -> None:
    """Do nothing: no one follows the run."""


def play_chunks(
    chunks: Sequence[Chunk],
    implementation: str | Implementation,
    level: Level,
    jobs: int | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Generator[ChunkResult, None, None]:
    """Play the chunks and yield results as they come; an implementation that is an object runs in this process.

    jobs: processes that play chunks; None: one per processor, and in nccl POOLS_PER_GPU_SET per set of GPUs.
    """
    if jobs == 1 or not isinstance(implementation, str):
        with closing(ChunkPlayer(implementation, level)) as player:
            for chunk in chunks:
                yield player.play(chunk, on_progress)
        return
    sets = worker_gpus(chunks, jobs)
    workers = [Worker(implementation, level, gpus, alone=sets.count(gpus) == 1) for gpus in sets]
    try:
        yield from distribute_chunks(chunks, workers, on_progress)
    finally:
        for worker in workers:
            worker.end()


def worker_gpus(chunks: Sequence[Chunk], jobs: int | None) -> list[tuple[int, ...]]:
    """Return the GPUs of each worker: disjoint sets, shared where there are more workers; none for other worlds."""
    device = sum(chunk.world == "nccl" for chunk in chunks)
    sets = gpu_sets() if device else []
    most = (os.cpu_count() or 1) if jobs is None else jobs
    pools = min(device, most, len(sets) * POOLS_PER_GPU_SET if jobs is None else jobs)
    return [sets[place % len(sets)] for place in range(pools)] + [()] * min(len(chunks) - device, most - pools)


def distribute_chunks(
    chunks: Sequence[Chunk], workers: Sequence[Worker], on_progress: OnProgress
) -> Generator[ChunkResult, None, None]:
    """Give every worker a new chunk as soon as it has ended one; yield the results."""
    waiting = list(chunks)
    busy = {worker.pipe: worker for worker in workers if worker.start(waiting)}
    while busy:
        for worker in [busy[pipe] for pipe in busy.keys() & set(wait(list(busy)))]:
            update = worker.receive()
            if isinstance(update, ChunkProgress):
                on_progress(update)
                continue
            yield update
            if not worker.start(waiting):
                del busy[worker.pipe]


class Worker:
    """A process that plays chunks. gpus: empty if it plays none in nccl. alone: no other worker uses them."""

    def __init__(self, implementation: str, level: Level, gpus: tuple[int, ...], *, alone: bool) -> None:
        self.gpus = gpus
        context = get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, implementation, level, gpus, alone))
        self.process.start()
        theirs.close()

    def start(self, waiting: list[Chunk]) -> bool:
        """Send the process its next chunk, in nccl if it can; return False if none is left for it."""
        device = [chunk for chunk in waiting if chunk.world == "nccl"] if self.gpus else []
        playable = device or [chunk for chunk in waiting if chunk.world != "nccl"]
        if playable:
            waiting.remove(playable[0])
            self.pipe.send(playable[0])
        return bool(playable)

    def receive(self) -> ChunkResult | ChunkProgress:
        """Return the next result or progress from the process."""
        try:
            answer = self.pipe.recv()
        except EOFError:
            self.process.join()
            raise WorkerError(f"a worker process of the suite died with exit code {self.process.exitcode}") from None
        if not isinstance(answer, ChunkResult | ChunkProgress):
            raise WorkerError(f"a worker process of the suite failed:\n{answer}")
        return answer

    def end(self) -> None:
        """End the process; one that still plays is terminated after five seconds."""
        self.pipe.close()
        self.process.join(5.0)
        self.process.terminate()
        self.process.join()


def serve(pipe: Connection, implementation: str, level: Level, gpus: tuple[int, ...], alone: bool) -> None:
    """Play the chunks that come through the pipe, until its other end is closed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # each process would show them again, amid the command line's output
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # rank processes must end too, whatever they wait for
    gc.freeze()  # what was imported stays
    gc.set_threshold(COLLECTION_THRESHOLD)
    with closing(ChunkPlayer(implementation, level, gpus=gpus, alone=alone)) as player:
        while True:
            try:
                chunk = pipe.recv()
            except EOFError:
                return
            try:
                answer: object = player.play(chunk, pipe.send)
            except Exception:  # noqa: BLE001 - sent to the parent, which raises it
                answer = traceback.format_exc()
            try:
                pipe.send(answer)
            except BrokenPipeError:
                return


class ProgressTimer:
    """Reports the progress of a chunk, at most once in PROGRESS_INTERVAL seconds."""

    def __init__(self, chunk: Chunk, on_progress: OnProgress) -> None:
        self.chunk, self.on_progress = chunk, on_progress
        self.last = time.monotonic()

    def __call__(self, bench: Bench) -> None:
        if time.monotonic() - self.last > PROGRESS_INTERVAL:
            self.last = time.monotonic()
            self.on_progress(ChunkProgress(self.chunk, bench.scripts, len(bench.layouts)))


class ChunkPlayer:
    """Plays chunks in one process; makes each world when it is first needed.

    renew: makes a new implementation for each script. gpus: for world nccl; all of the machine when None. alone: no
    other process uses them.
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

    def play(self, chunk: Chunk, on_progress: OnProgress = ignore_progress) -> ChunkResult:
        """Play one chunk, reporting progress from time to time."""
        prop = PROPERTIES[chunk.prop]
        if chunk.world not in self.worlds:
            self.worlds[chunk.world] = registry.world(chunk.world, self.gpus, alone=self.alone)
        world, is_costly = self.worlds[chunk.world], chunk.world == "nccl"
        bench = Bench(
            *(world, self.implementation, Space(chunk.sizes, self.level, few=chunk.seed if is_costly else None)),
            *(prop.traced, self.renew),
            keep_groups=is_costly and prop.profile not in CLEARING_PROFILES,
            max_shrinks=NCCL_SHRINKS if is_costly else SHRINKS,
            on_step=ProgressTimer(chunk, on_progress),
        )
        with closing(bench):
            finding = search(prop, bench, chunk.seed, chunk.rounds, chunk.examples)
        coverage = bench.coverage
        return ChunkResult(
            *(chunk, bench.scripts, frozenset(bench.layouts), coverage.total, dict(coverage.counts)),
            failure=None if finding is None else failure_of(chunk, finding),
            in_lockstep=frozenset(bench.in_lockstep),
            dtypes=frozenset(bench.dtypes),
            versions=dict(world.versions),
        )

    def close(self) -> None:
        """End the worlds."""
        for world in self.worlds.values():
            world.close()


def failure_of(chunk: Chunk, finding: Finding) -> Failure:
    """Return a finding as a failure of the result."""
    prop = PROPERTIES[chunk.prop]
    cases = [case for step in finding.script for case in step.cases if case.expect == "equal"]
    return Failure(
        *(chunk.world, prop.name, prop.profile, finding.verdict, finding.faults),
        script=tuple(dump(step) for step in finding.script),
        seed=chunk.seed,
        fresh=chunk.fresh,
        again=finding.repeats,
        classes=frozenset(kind.name for case in cases for kind in CLASSES if kind.contains(Geometry(case))),
        advisory=finding.advisory,
    )
