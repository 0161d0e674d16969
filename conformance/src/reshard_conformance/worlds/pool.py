"""Rank processes in a pool that outlasts sessions: how they are started, asked, and killed when they hang."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from tempfile import NamedTemporaryFile
from typing import Any

from torch._C._distributed_c10d import TCPStore

from reshard_conformance.playing import RankReport, raised
from reshard_conformance.worlds.ranks import WHERE, Start, Trouble, serve

__all__ = ["Answers", "Pool"]

PRELOAD = ["torch", "torch.distributed.tensor", "reshard_conformance.worlds.ranks"]
#: How many of the innermost frames of a hanging rank are told.
FRAMES = 4


class RankProcess:
    """One process of the pool, the pipe to it, and a file in which it says on demand where it is."""

    def __init__(self, rank: int, port: int, start: Start) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.pipe, theirs = context.Pipe()
        self.stack = NamedTemporaryFile("r", encoding="utf-8")  # noqa: SIM115 - closed by kill
        arguments = (rank, port, theirs, self.stack.name, start)
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
    """The rank processes, started when they are first needed; `begin` is called in each of them."""

    def __init__(self, grace: float, begin: Start) -> None:
        self.grace, self.begin = grace, begin
        self.store: TCPStore | None = None
        self.processes: list[RankProcess] = []

    def start(self, size: int) -> None:
        """Let there be so many."""
        if self.store is None:
            self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(len(self.processes), size):
            self.processes.append(RankProcess(rank, self.store.port, self.begin))

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
        process.join(5.0)
        return process.exitcode

    def kill(self) -> None:
        """End all processes, whatever they do."""
        for process in self.processes:
            process.kill()
        self.processes, self.store = [], None


def tell(pipe: Connection, message: object) -> bool:
    """Send the message; whether there is still somebody to take it."""
    try:
        pipe.send(message)
    except (BrokenPipeError, OSError):
        return False
    return True


def failed(answer: object) -> bool:
    return isinstance(answer, Trouble) or (isinstance(answer, RankReport) and bool(answer.error))
