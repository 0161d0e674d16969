"""Plays chunks: one after another on a stage, or spread over worker processes that each have a stage."""

from __future__ import annotations

import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait

import torch

from reshard_conformance import registry
from reshard_conformance.cases import dump
from reshard_conformance.contract import Implementation, Level
from reshard_conformance.coverage import CLASSES, Geometry
from reshard_conformance.generator import Space
from reshard_conformance.plan import Chunk
from reshard_conformance.playing import cases_of
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.results import Failure
from reshard_conformance.search import Bench, Finding, search
from reshard_conformance.worlds import World
from reshard_conformance.worlds.nccl import shares

__all__ = ["Part", "Stage", "WorkerError", "play"]


class WorkerError(RuntimeError):
    """A worker process of the suite ended or failed by itself: a fault of the suite, not of an implementation."""


@dataclass(frozen=True)
class Part:
    """What a chunk played: scripts, distinct layouts (as digests), cases by coverage class, and its failure if any."""

    chunk: Chunk
    scripts: int
    layouts: frozenset[bytes]
    cases: int
    counts: Mapping[str, int]
    failure: Failure | None


def play(
    chunks: Sequence[Chunk], implementation: str | Implementation, level: Level, jobs: int
) -> Generator[Part, None, None]:
    """Play the chunks, in the order in which they end; an implementation that is no name in this process only."""
    if jobs == 1 or not isinstance(implementation, str):
        with closing(Stage(implementation, level)) as stage:
            for chunk in chunks:
                yield stage.play(chunk)
        return
    free = sum(chunk.world != "nccl" for chunk in chunks)
    gpus = shares() if free < len(chunks) else []
    sets = [*gpus[:jobs], *([()] * max(0, min(jobs - len(gpus), free)))]
    workers = [Worker(implementation, level, one) for one in sets]
    try:
        yield from spread(chunks, workers)
    finally:
        for worker in workers:
            worker.end()


def spread(chunks: Sequence[Chunk], workers: Sequence[Worker]) -> Generator[Part, None, None]:
    """Give every worker its next chunk as soon as it has ended one."""
    waiting = list(chunks)
    busy = {worker.pipe: worker for worker in workers if worker.start(waiting)}
    while busy:
        for worker in [busy[pipe] for pipe in busy.keys() & set(wait(list(busy)))]:
            yield worker.part()
            if not worker.start(waiting):
                del busy[worker.pipe]


class Worker:
    """A process with a stage; gpus: those that are its own, without which it plays no chunk of nccl."""

    def __init__(self, implementation: str, level: Level, gpus: tuple[int, ...]) -> None:
        self.gpus = gpus
        context = get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, implementation, level, gpus))
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

    def part(self) -> Part:
        try:
            answer = self.pipe.recv()
        except EOFError:
            self.process.join()
            raise WorkerError(f"a worker process of the suite died with exit code {self.process.exitcode}") from None
        if not isinstance(answer, Part):
            raise WorkerError(f"a worker process of the suite failed:\n{answer}")
        return answer

    def end(self) -> None:
        """Let the process end; one that still plays is not waited for."""
        self.pipe.close()
        self.process.join(5.0)
        self.process.terminate()
        self.process.join()


def serve(pipe: Connection, implementation: str, level: Level, gpus: tuple[int, ...]) -> None:
    """Play the chunks that come through the pipe, until its other end is closed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # they would come once a process, amid what the command line shows
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the ranks have to be ended, whatever they wait for
    with closing(Stage(implementation, level, gpus=gpus)) as stage:
        while True:
            try:
                chunk = pipe.recv()
            except EOFError:
                return
            try:
                answer: object = stage.play(chunk)
            except Exception:  # noqa: BLE001 - told to the parent, which raises it
                answer = traceback.format_exc()
            try:
                pipe.send(answer)
            except BrokenPipeError:
                return


class Stage:
    """The worlds of one process, made when they are first needed, with an implementation to be judged in them.

    renew: makes a new implementation for each script. gpus: for world nccl; all of the machine when None.
    """

    def __init__(
        self,
        implementation: str | Implementation,
        level: Level,
        renew: Callable[[], Implementation] | None = None,
        gpus: tuple[int, ...] | None = None,
    ) -> None:
        self.implementation, self.level, self.renew, self.gpus = implementation, level, renew, gpus
        self.worlds: dict[str, World] = {}

    def play(self, chunk: Chunk) -> Part:
        """Play one chunk."""
        prop = PROPERTIES[chunk.prop]
        if chunk.world not in self.worlds:
            self.worlds[chunk.world] = registry.world(chunk.world, self.gpus)
        space = Space(chunk.sizes, self.level)
        world = self.worlds[chunk.world]
        with closing(Bench(world, self.implementation, space, prop.traced, self.renew)) as bench:
            finding = search(prop, bench, chunk.seed, chunk.rounds, chunk.examples)
        failure = None if finding is None else failure_of(chunk, finding)
        coverage = bench.coverage
        return Part(chunk, bench.scripts, frozenset(bench.layouts), coverage.total, dict(coverage.counts), failure)

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
