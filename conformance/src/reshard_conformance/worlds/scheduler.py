"""Runs ranks as threads, one at a time and in a fixed order, so that every run of a step is the same.

A rank runs until it blocks or ends; then the next rank that can continue runs. When none can, that is a deadlock,
detected at once.
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

__all__ = ["Hang", "RankScheduler", "ThreadPool"]

Result = TypeVar("Result")


class Hang(Exception):  # noqa: N818 - an outcome rather than an error of ours
    """Ranks did not end within the time limit; the message says where each rank is."""


class ThreadInterrupted(BaseException):
    """Raised inside a thread to end it; no implementation has a reason to catch it."""


class RankThread(threading.Thread):
    """A thread that runs its job each time it is woken."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.wake_lock = threading.Lock()
        self.wake_lock.acquire()
        self.job: Callable[[], None] | None = None
        self.start()

    def run(self) -> None:
        torch.set_num_threads(1)  # one rank runs at a time; more threads a rank would only wait for each other
        with suppress(ThreadInterrupted):
            while self.wake_lock.acquire() and self.job is not None:
                self.job()

    def interrupt(self) -> None:
        """End the thread at its next bytecode, however deep it loops."""
        self.job = None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(ThreadInterrupted))
        if self.wake_lock.locked():
            self.wake_lock.release()


class ThreadPool:
    """Threads that outlast a session, since starting one takes longer than a small case."""

    def __init__(self) -> None:
        self.threads: list[RankThread] = []

    def take(self, count: int) -> list[RankThread]:
        """Return the first `count` threads; start those that are missing."""
        self.threads += [RankThread() for _ in range(count - len(self.threads))]
        return self.threads[:count]

    def replace(self) -> None:
        """Interrupt all threads; the next `take` starts new ones."""
        for thread in self.threads:
            thread.interrupt()
        self.threads = []

    def close(self) -> None:
        """End all threads; they must be idle."""
        for thread in self.threads:
            thread.job = None
            thread.wake_lock.release()
        for thread in self.threads:
            thread.join()
        self.threads = []


@dataclass
class RankState(Generic[Result]):
    """The state of a rank's run. reason: for waiting; ready: until when; results: empty until the run ends."""

    reason: str = "its turn"
    ready: Callable[[], bool] = lambda: True
    results: list[Result] = field(default_factory=list)


class RankScheduler(Generic[Result]):
    """Runs one function per rank, switching from rank to rank where one waits.

    on_deadlock(reasons, results) is called when no rank can continue. reasons: what each waiting rank waits for. results:
    those of the ranks that have ended. It must make the waiting ranks ready.
    """

    def __init__(
        self,
        pool: ThreadPool,
        size: int,
        on_deadlock: Callable[[dict[int, str], dict[int, Result]], None],
        limit: float,
    ) -> None:
        self.pool, self.size, self.on_deadlock, self.limit = pool, size, on_deadlock, limit
        self.threads: list[RankThread] = []
        self.ranks: list[RankState[Result]] = []
        self.running: int | None = None
        self.finished = threading.Semaphore(0)

    def run(self, bodies: Sequence[Callable[[], Result]]) -> list[Result]:
        """Run all ranks to their ends and return their results. Raises Hang after `limit` seconds."""
        self.threads = self.pool.take(self.size)
        self.ranks = [RankState() for _ in bodies]
        for rank, (thread, body) in enumerate(zip(self.threads, bodies, strict=True)):
            thread.job = self.job(rank, body)
        self.resume(0)
        if not self.finished.acquire(timeout=self.limit):
            text = f"no end within {self.limit:g} s: {self.describe_ranks()}"
            self.pool.replace()
            self.finished = threading.Semaphore(0)
            raise Hang(text)
        return [result for rank in self.ranks for result in rank.results]

    def wait(self, rank: int, ready: Callable[[], bool], reason: str) -> None:
        """Let other ranks run until `ready`. Called by the rank that runs."""
        if ready():
            return
        self.ranks[rank].ready, self.ranks[rank].reason = ready, reason
        self.run_next(rank)
        self.threads[rank].wake_lock.acquire()

    def job(self, rank: int, body: Callable[[], Result]) -> Callable[[], None]:
        ranks = self.ranks

        def run() -> None:
            result = body()
            if self.ranks is ranks:  # else the run was given up as hanging before this thread ended
                ranks[rank].results.append(result)
                self.run_next(rank)

        return run

    def run_next(self, rank: int) -> None:
        """Wake the next rank that can continue after `rank`."""
        next_rank = self.next_ready(rank)
        if next_rank is None and not all(state.results for state in self.ranks):
            states = list(enumerate(self.ranks))
            reasons = {number: state.reason for number, state in states if not state.results}
            self.on_deadlock(reasons, {number: state.results[0] for number, state in states if state.results})
            next_rank = self.next_ready(rank)
        if next_rank is None:
            self.finished.release()
        else:
            self.resume(next_rank)

    def resume(self, rank: int) -> None:
        self.running = rank
        self.threads[rank].wake_lock.release()

    def next_ready(self, rank: int) -> int | None:
        for step in range(1, self.size + 1):
            candidate = (rank + step) % self.size
            if not self.ranks[candidate].results and self.ranks[candidate].ready():
                return candidate
        return None

    def describe_ranks(self) -> str:
        """Return the stack position, or the reason for waiting, of each rank that has not ended."""
        frames = sys._current_frames()  # noqa: SLF001 - the only way to see another thread's stack
        descriptions = []
        for rank, state in enumerate(self.ranks):
            frame = frames.get(self.threads[rank].ident or 0)
            if rank == self.running and frame is not None:
                descriptions.append(
                    f"rank {rank} runs {frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
                )
            elif not state.results:
                descriptions.append(f"rank {rank} waits for {state.reason}")
        return ", ".join(descriptions)
