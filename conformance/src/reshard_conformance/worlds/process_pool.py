"""A pool of rank processes that outlasts sessions: starts them, sends requests, and kills them when they hang."""

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

from reshard_conformance.judge.outcomes import RankReport, error_sentences
from reshard_conformance.worlds.rank_server import STACK_SIGNAL, RankError, StartRank, serve

__all__ = ["Answers", "ProcessPool"]

PRELOAD = ["torch", "torch.distributed.tensor", "reshard_conformance.worlds.rank_server"]
#: The number of innermost frames that the report of a hanging rank shows.
FRAMES = 4


class RankProcess:
    """One process of the pool, the pipe to it, and a file to which it writes its stack on a signal."""

    def __init__(self, rank: int, port: int, start: StartRank) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.pipe, child_pipe = context.Pipe()
        self.stack = NamedTemporaryFile("r", encoding="utf-8")  # noqa: SIM115 - closed by kill
        arguments = (rank, port, child_pipe, self.stack.name, start)
        self.process: ForkServerProcess = context.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        child_pipe.close()

    def read_stack(self) -> str:
        """Return the innermost frames of the process, or "" when it does not write them within a second."""
        if self.process.pid is None:
            return ""
        os.kill(self.process.pid, STACK_SIGNAL)
        deadline, text, new_text = time.monotonic() + 1.0, "", ""
        while (new_text or not text) and time.monotonic() < deadline:
            time.sleep(0.02)
            new_text = self.stack.read()
            text += new_text
        frames = re.findall(r'File "(.*)", line (\d+) in (.*)', text)
        return ", called from ".join(f"{file}:{line} ({name})" for file, line, name in frames[:FRAMES])

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.stack.close()


@dataclass(frozen=True)
class Answers:
    """The answers to a request by rank; exit codes of ranks that died; stacks of ranks that are late."""

    by_rank: dict[int, object]
    exit_codes: dict[int, int | None]
    late: dict[int, str]

    @property
    def complete(self) -> bool:
        """True if all ranks answered, and none with an error."""
        raised_error = any(isinstance(answer, RankError) for answer in self.by_rank.values())
        return not (self.exit_codes or self.late or raised_error)

    @property
    def reports(self) -> list[RankReport]:
        return [answer for answer in self.by_rank.values() if isinstance(answer, RankReport)]

    @property
    def process_faults(self) -> list[str]:
        """One sentence for each rank where the request error_sentences or that died."""
        errors = [
            f"rank {answer.rank}: {answer.text}" for answer in self.by_rank.values() if isinstance(answer, RankError)
        ]
        return errors + [f"rank {rank} died with exit code {code}" for rank, code in self.exit_codes.items()]

    def faults(self, limit: float, grace: float) -> list[str]:
        """Return a sentence for each failure, the cause first."""
        rank_failed = self.exit_codes or any(has_failed(answer) for answer in self.by_rank.values())
        when = f"{grace:g} s after another rank had failed" if rank_failed else f"within {limit:g} s"
        return (
            self.process_faults
            + error_sentences(self.reports)
            + [f"rank {rank} did not end {when}: {stack}" for rank, stack in self.late.items()]
        )


class ProcessPool:
    """The rank processes, started when they are first needed. start_rank: called once in each of them."""

    def __init__(self, grace: float, start_rank: StartRank) -> None:
        self.grace, self.start_rank = grace, start_rank
        self.store: TCPStore | None = None
        self.processes: list[RankProcess] = []

    def start(self, size: int) -> None:
        """Start processes until there are `size`."""
        if self.store is None:
            self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(len(self.processes), size):
            self.processes.append(RankProcess(rank, self.store.port, self.start_rank))

    def ask(self, size: int, message: object, limit: float) -> Answers:
        """Send the message to the first `size` ranks, and collect their answers for at most `limit` seconds."""
        pipes: dict[Any, int] = {self.processes[rank].pipe: rank for rank in range(size)}
        exit_codes = {rank: self.exit_code(rank) for pipe, rank in pipes.items() if not try_send(pipe, message)}
        pipes = {pipe: rank for pipe, rank in pipes.items() if rank not in exit_codes}
        answers: dict[int, object] = {}
        deadline = time.monotonic() + (self.grace if exit_codes else limit)
        while pipes and (ready := wait(list(pipes), max(0.0, deadline - time.monotonic()))):
            for pipe in ready:
                rank = pipes.pop(pipe)
                try:
                    answers[rank] = self.processes[rank].pipe.recv()
                except (EOFError, OSError):
                    exit_codes[rank] = self.exit_code(rank)
                if rank in exit_codes or has_failed(answers[rank]):
                    deadline = min(deadline, time.monotonic() + self.grace)
        late = {rank: self.processes[rank].read_stack() for rank in sorted(pipes.values())}
        return Answers(dict(sorted(answers.items())), exit_codes, late)

    def exit_code(self, rank: int) -> int | None:
        process = self.processes[rank].process
        process.join(5.0)
        return process.exitcode

    def kill(self) -> None:
        """Kill all processes, whatever they do."""
        for process in self.processes:
            process.kill()
        self.processes, self.store = [], None


def try_send(pipe: Connection, message: object) -> bool:
    """Send the message; return False if the process is gone."""
    try:
        pipe.send(message)
    except (BrokenPipeError, OSError):
        return False
    return True


def has_failed(answer: object) -> bool:
    return isinstance(answer, RankError) or (isinstance(answer, RankReport) and bool(answer.error))
