"""Ranks as threads of which only the holder of the baton runs, so that every run of the same step is the same run.

A rank keeps the baton until it blocks or ends; then the next rank that can go on gets it. When none can, that is a
deadlock, known at once.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

__all__ = ["Baton", "Hang", "Pool"]

Result = TypeVar("Result")


class Hang(Exception):  # noqa: N818 - an outcome rather than an error of ours
    """Ranks did not end within the time limit; says where each of them is."""


class Interrupted(BaseException):
    """Raised inside a thread to end it; no implementation has a reason to catch it."""


class Worker(threading.Thread):
    """A thread that runs the job it finds whenever it is handed the baton."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.baton = threading.Lock()
        self.baton.acquire()
        self.job: Callable[[], None] | None = None
        self.start()

    def run(self) -> None:
        torch.set_num_threads(1)  # one rank runs at a time; more threads a rank would only wait for each other
        with suppress(Interrupted):
            while self.baton.acquire() and self.job is not None:
                self.job()

    def interrupt(self) -> None:
        """End the thread at its next bytecode, however deep it loops."""
        self.job = None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(Interrupted))
        if self.baton.locked():
            self.baton.release()


class Pool:
    """Worker threads that outlast a session, for starting one takes longer than a small case."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []

    def take(self, count: int) -> list[Worker]:
        """The first `count` workers."""
        self.workers += [Worker() for _ in range(count - len(self.workers))]
        return self.workers[:count]

    def replace(self) -> None:
        """Interrupt all workers; the next `take` starts new ones."""
        for worker in self.workers:
            worker.interrupt()
        self.workers = []

    def close(self) -> None:
        """End all workers, which are idle."""
        for worker in self.workers:
            worker.job = None
            worker.baton.release()
        for worker in self.workers:
            worker.join()
        self.workers = []


@dataclass
class Rank(Generic[Result]):
    """Where a rank's run stands: not started, waiting (why, and until when), or ended with a result."""

    why: str = "its turn"
    ready: Callable[[], bool] = lambda: True
    results: list[Result] = field(default_factory=list)


class Baton(Generic[Result]):
    """Runs one body a rank.

    stuck(reasons, results) is called when no rank can go on, with what each of those that wait waits for and what
    the others ended with; it has to make those that wait ready.
    """

    def __init__(
        self, pool: Pool, size: int, stuck: Callable[[dict[int, str], dict[int, Result]], None], limit: float
    ) -> None:
        self.pool, self.size, self.stuck, self.limit = pool, size, stuck, limit
        self.workers: list[Worker] = []
        self.ranks: list[Rank[Result]] = []
        self.holder: int | None = None
        self.finished = threading.Semaphore(0)

    def run(self, bodies: Sequence[Callable[[], Result]]) -> list[Result]:
        """Run the bodies of all ranks to their ends; Hang when that takes longer than the limit in seconds."""
        self.workers = self.pool.take(self.size)
        self.ranks = [Rank() for _ in bodies]
        for rank, (worker, body) in enumerate(zip(self.workers, bodies, strict=True)):
            worker.job = self.job(rank, body)
        self.give(0)
        if not self.finished.acquire(timeout=self.limit):
            text = f"no end within {self.limit:g} s: {self.places()}"
            self.pool.replace()
            self.finished = threading.Semaphore(0)
            raise Hang(text)
        return [result for rank in self.ranks for result in rank.results]

    def wait(self, rank: int, ready: Callable[[], bool], why: str) -> None:
        """Called by the rank that holds the baton: hand it on until `ready`."""
        if ready():
            return
        self.ranks[rank].ready, self.ranks[rank].why = ready, why
        self.hand_on(rank)
        self.workers[rank].baton.acquire()

    def job(self, rank: int, body: Callable[[], Result]) -> Callable[[], None]:
        ranks = self.ranks

        def run() -> None:
            result = body()
            if self.ranks is ranks:  # else given up as hanging, and only now at its end
                ranks[rank].results.append(result)
                self.hand_on(rank)

        return run

    def hand_on(self, rank: int) -> None:
        """Give the baton to the next rank that can go on."""
        after = self.next_ready(rank)
        if after is None and not all(state.results for state in self.ranks):
            states = list(enumerate(self.ranks))
            reasons = {number: state.why for number, state in states if not state.results}
            self.stuck(reasons, {number: state.results[0] for number, state in states if state.results})
            after = self.next_ready(rank)
        if after is None:
            self.finished.release()
        else:
            self.give(after)

    def give(self, rank: int) -> None:
        self.holder = rank
        self.workers[rank].baton.release()

    def next_ready(self, rank: int) -> int | None:
        for step in range(1, self.size + 1):
            after = (rank + step) % self.size
            if not self.ranks[after].results and self.ranks[after].ready():
                return after
        return None

    def places(self) -> str:
        """Where each rank is that has not ended."""
        frames = sys._current_frames()  # noqa: SLF001 - the only way to see another thread's place
        found = []
        for rank, state in enumerate(self.ranks):
            frame = frames.get(self.workers[rank].ident or 0)
            if rank == self.holder and frame is not None:
                found.append(f"rank {rank} runs {frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})")
            elif not state.results:
                found.append(f"rank {rank} waits for {state.why}")
        return ", ".join(found)
