"""The gloo world: every rank a process, in a pool that outlasts sessions and is rebuilt after a hang."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from tempfile import NamedTemporaryFile
from types import TracebackType
from typing import Any, Self

from torch._C._distributed_c10d import TCPStore

from reshard_conformance.cases import Clear, Step, dump
from reshard_conformance.contract import Implementation
from reshard_conformance.playing import Options, Outcome, RankReport, cases_of, check_playable, judge, raised
from reshard_conformance.worlds.ranks import WHERE, Closing, Opening, Playing, Trouble, serve

__all__ = ["GlooSession", "GlooWorld"]

PRELOAD = ["torch", "torch.distributed.tensor", "reshard_conformance.worlds.ranks"]
#: How many of the innermost frames of a hanging rank are told.
FRAMES = 4
#: Seconds within which the ranks of a pool have to be ready for a session.
START = 120.0


class RankProcess:
    """One process of the pool, the pipe to it, and a file in which it says on demand where it is."""

    def __init__(self, rank: int, port: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.pipe, theirs = context.Pipe()
        self.stack = NamedTemporaryFile("r", encoding="utf-8")  # noqa: SIM115 - closed by kill
        arguments = (rank, port, theirs, self.stack.name)
        self.process: ForkServerProcess = context.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def place(self) -> str:
        """The innermost frames of the process, "" when it does not tell them within a second."""
        if self.process.pid is None:
            return ""
        os.kill(self.process.pid, WHERE)
        deadline, text, more = time.monotonic() + 1.0, "", ""
        while (more or not text) and time.monotonic() < deadline:
            time.sleep(0.02)
            more = self.stack.read()
            text += more
        frames = re.findall(r'File "(.*)", line (\d+) in (.*)', text)
        return ", called from ".join(f"{file}:{line} ({name})" for file, line, name in frames[:FRAMES])

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.stack.close()


@dataclass(frozen=True)
class Answers:
    """What the ranks of a session answered, by rank; the exit code of those that died; where those are that are late."""

    given: dict[int, object]
    dead: dict[int, int | None]
    late: dict[int, str]

    @property
    def whole(self) -> bool:
        """Whether all ranks answered, and none of them with trouble."""
        troubled = any(isinstance(answer, Trouble) for answer in self.given.values())
        return not (self.dead or self.late or troubled)

    @property
    def reports(self) -> list[RankReport]:
        return [answer for answer in self.given.values() if isinstance(answer, RankReport)]

    @property
    def broken(self) -> list[str]:
        """A sentence for each rank that could not do what it was asked, or is no more."""
        found = [f"rank {answer.rank}: {answer.text}" for answer in self.given.values() if isinstance(answer, Trouble)]
        return found + [f"rank {rank} died with exit code {code}" for rank, code in self.dead.items()]

    def faults(self, limit: float, grace: float) -> list[str]:
        """What went wrong, the cause first."""
        ended = self.dead or any(failed(answer) for answer in self.given.values())
        why = f"{grace:g} s after another rank had failed" if ended else f"within {limit:g} s"
        return (
            self.broken
            + raised(self.reports)
            + [f"rank {rank} did not end {why}: {place}" for rank, place in self.late.items()]
        )


class Pool:
    """The rank processes, started when they are first needed."""

    def __init__(self, size: int, grace: float) -> None:
        self.size, self.grace = size, grace
        self.store: TCPStore | None = None
        self.processes: list[RankProcess] = []

    def start(self) -> None:
        if not self.processes:
            self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            self.processes = [RankProcess(rank, self.store.port) for rank in range(self.size)]

    def ask(self, size: int, message: object, limit: float) -> Answers:
        """Give the message to the first `size` ranks, and collect their answers for at most `limit` seconds."""
        pipes: dict[Any, int] = {self.processes[rank].pipe: rank for rank in range(size)}
        dead = {rank: self.exit_code(rank) for pipe, rank in pipes.items() if not tell(pipe, message)}
        pipes = {pipe: rank for pipe, rank in pipes.items() if rank not in dead}
        given: dict[int, object] = {}
        deadline = time.monotonic() + (self.grace if dead else limit)
        while pipes and (ready := wait(list(pipes), max(0.0, deadline - time.monotonic()))):
            for pipe in ready:
                rank = pipes.pop(pipe)
                try:
                    given[rank] = self.processes[rank].pipe.recv()
                except (EOFError, OSError):
                    dead[rank] = self.exit_code(rank)
                if rank in dead or failed(given[rank]):
                    deadline = min(deadline, time.monotonic() + self.grace)
        late = {rank: self.processes[rank].place() for rank in sorted(pipes.values())}
        return Answers(dict(sorted(given.items())), dead, late)

    def exit_code(self, rank: int) -> int | None:
        process = self.processes[rank].process
        process.join(1.0)
        return process.exitcode

    def kill(self) -> None:
        """End all processes, whatever they do."""
        for process in self.processes:
            process.kill()
        self.processes, self.store = [], None


class GlooWorld:
    """Ranks as processes. `place` tells where an implementation of a name is, as package.module:attribute.

    size: processes of the pool. limit: seconds after which a step counts as hanging.
    grace: seconds that the other ranks get after one rank has raised.
    """

    name = "gloo"

    def __init__(self, place: Callable[[str], str], size: int = 8, limit: float = 20.0, grace: float = 4.0) -> None:
        self.place, self.max_size, self.limit, self.grace = place, size, limit, grace
        self.pool = Pool(size, grace)
        self.numbers = count()
        self.busy = False

    def open(self, size: int, implementation: str | Implementation, *, traced: bool = True) -> GlooSession:
        """Start a session; the implementation is a name, since the rank processes load it."""
        if not isinstance(implementation, str):
            raise TypeError(f"the gloo world loads an implementation by name, got {implementation!r}")
        if not 1 <= size <= self.max_size:
            raise ValueError(f"a session in this gloo world has 1 to {self.max_size} ranks, not {size}")
        if self.busy:
            raise RuntimeError("a session of this gloo world is still open; close it first")
        session = GlooSession(self, size, self.place(implementation), traced=traced)
        self.busy = True
        return session

    def close(self) -> None:
        """End the processes."""
        self.pool.kill()


class GlooSession:
    """One set of rank processes; see `worlds.Session`."""

    def __init__(self, world: GlooWorld, size: int, place: str, *, traced: bool) -> None:
        self.world, self.size, self.place, self.traced = world, size, place, traced
        self.calls = 0
        self.pending: list[Clear] = []
        self.begin()

    def begin(self) -> None:
        """Open a new session in the ranks; a pool that cannot do so is started once more."""
        for last in (False, True):
            self.world.pool.start()
            timeout = self.world.limit + START  # a rank that waits is found by the limit, with its place, not by gloo
            opening = Opening(next(self.world.numbers), self.size, self.place, self.traced, timeout)
            answers = self.world.pool.ask(self.size, opening, START)
            if answers.whole:
                return
            self.world.pool.kill()
            if last:
                raise RuntimeError(
                    f"the ranks of a gloo session do not start: {'; '.join(answers.faults(START, self.world.grace))}"
                )

    def play(self, step: Step, *, check: str | None = None, lockstep: bool = False, memory: bool = False) -> Outcome:
        """Let every rank make the step, and judge what they report.

        A clear by some ranks only is played together with the next step: those ranks may wait for the others in it.
        """
        check_playable(step, self.size)
        if isinstance(step, Clear) and step.ranks is not None and len(step.ranks) < self.size:
            self.pending.append(step)
            return Outcome("pass")
        before, self.pending = tuple(map(dump, self.pending)), []
        playing = Playing(dump(step), before, self.calls, Options(check, lockstep, memory))
        self.calls += len(cases_of(step))
        answers = self.world.pool.ask(self.size, playing, self.world.limit)
        outcome = self.judge(step, answers)
        if outcome.verdict != "pass":
            self.renew(alive=answers.whole)
        return outcome

    def judge(self, step: Step, answers: Answers) -> Outcome:
        if answers.whole:
            return judge(step, answers.reports)
        faults = answers.faults(self.world.limit, self.world.grace)
        return Outcome("hang" if answers.late else "fail", tuple(faults), tuple(answers.reports))

    def renew(self, *, alive: bool) -> None:
        """Start over with new groups, and with new processes where some rank does not answer."""
        if not (alive and self.end(clear=False)):
            self.world.pool.kill()
        self.begin()

    def end(self, *, clear: bool) -> bool:
        return self.world.pool.ask(self.size, Closing(clear), self.world.limit).whole

    def close(self) -> None:
        """End the session in the ranks; processes that cannot are replaced at the next."""
        self.world.busy = False
        if self.world.pool.processes and not self.end(clear=True):
            self.world.pool.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def tell(pipe: Connection, message: object) -> bool:
    """Send the message; whether there is still somebody to take it."""
    try:
        pipe.send(message)
    except (BrokenPipeError, OSError):
        return False
    return True


def failed(answer: object) -> bool:
    return isinstance(answer, Trouble) or (isinstance(answer, RankReport) and bool(answer.error))
