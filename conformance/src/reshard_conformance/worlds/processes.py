"""Worlds whose ranks are processes: sessions over a pool, which is replaced after a hang."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from types import TracebackType
from typing import Self

from reshard_conformance.case.files import Clear, Step, dump
from reshard_conformance.contract import Implementation
from reshard_conformance.judge.outcomes import Outcome, judge_step
from reshard_conformance.judge.player import PlayOptions, check_playable
from reshard_conformance.worlds.process_pool import Answers, ProcessPool
from reshard_conformance.worlds.rank_server import CloseSession, OpenSession, PlayStep, SessionOpened, StartRank

__all__ = ["ProcessSession", "ProcessWorld"]

#: Seconds within which the ranks of a pool must be ready for a session.
START_LIMIT = 120.0


class ProcessWorld:
    """Ranks as processes.

    place_of: returns package.module:attribute for the name of an implementation. start_rank: called once in each rank
    process, returns what makes its hosts. size: processes of the pool. limit: seconds after which a step counts as
    hanging. grace: seconds that the other ranks get after one rank has raised.
    """

    name: str

    def __init__(
        self, place_of: Callable[[str], str], start_rank: StartRank, size: int, limit: float, grace: float
    ) -> None:
        self.place_of, self.max_size, self.limit, self.grace = place_of, size, limit, grace
        self.pool = ProcessPool(grace, start_rank)
        self.session_numbers = count()
        self.busy = False
        self.versions: dict[int, Mapping[str, str]] = {}

    def open(self, size: int, implementation: str | Implementation, *, traced: bool = True) -> ProcessSession:
        """Start a session. The implementation is a name, since the rank processes load it."""
        if not isinstance(implementation, str):
            raise TypeError(f"the {self.name} world loads an implementation by name, got {implementation!r}")
        if not 1 <= size <= self.max_size:
            raise ValueError(f"a session in this {self.name} world has 1 to {self.max_size} ranks, not {size}")
        if self.busy:
            raise RuntimeError(f"a session of this {self.name} world is still open; close it first")
        session = ProcessSession(self, size, self.place_of(implementation), traced=traced)
        self.busy = True
        return session

    def close(self) -> None:
        """End the processes."""
        self.pool.kill()


class ProcessSession:
    """One set of rank processes; see `worlds.Session`."""

    def __init__(self, world: ProcessWorld, size: int, place: str, *, traced: bool) -> None:
        self.world, self.size, self.place, self.traced = world, size, place, traced
        self.calls = 0
        self.pending: list[Clear] = []
        self.open_ranks()

    def open_ranks(self) -> None:
        """Open a new session in the ranks; a pool where that fails is restarted once."""
        for is_last_try in (False, True):
            self.world.pool.start(self.size)
            timeout = self.world.limit + START_LIMIT  # a rank that hangs meets the limit first, which reports its stack
            opening = OpenSession(next(self.world.session_numbers), self.size, self.place, self.traced, timeout)
            answers = self.world.pool.ask(self.size, opening, START_LIMIT)
            if answers.complete:
                opened = [answer for answer in answers.by_rank.values() if isinstance(answer, SessionOpened)]
                self.world.versions |= {answer.rank: answer.versions for answer in opened}
                return
            self.world.pool.kill()
            if is_last_try:
                faults = "; ".join(answers.faults(START_LIMIT, self.world.grace))
                raise RuntimeError(f"the ranks of a session in {self.world.name} do not start: {faults}")

    def play(self, step: Step, *, check: str | None = None, lockstep: bool = False, memory: bool = False) -> Outcome:
        """Play the step on all ranks and judge_step their reports.

        A clear on some ranks only is played together with the next step, in which those ranks may wait for the others.
        """
        check_playable(step, self.size)
        if isinstance(step, Clear) and step.ranks is not None and len(step.ranks) < self.size:
            self.pending.append(step)
            return Outcome("pass")
        before, self.pending = tuple(map(dump, self.pending)), []
        playing = PlayStep(dump(step), before, self.calls, PlayOptions(check, lockstep, memory))
        self.calls += len(step.cases)
        answers = self.world.pool.ask(self.size, playing, self.world.limit)
        outcome = self.judge_answers(step, answers)
        if outcome.verdict != "pass":
            self.reopen(alive=answers.complete)
        return outcome

    def judge_answers(self, step: Step, answers: Answers) -> Outcome:
        if answers.complete:
            return judge_step(step, answers.reports)
        faults = answers.faults(self.world.limit, self.world.grace)
        return Outcome("hang" if answers.late else "fail", tuple(faults), tuple(answers.reports))

    def reopen(self, *, alive: bool) -> None:
        """Reopen the session with new groups; with new processes if a rank does not answer."""
        if not (alive and self.close_ranks(clear=False)):
            self.world.pool.kill()
        self.open_ranks()

    def close_ranks(self, *, clear: bool) -> bool:
        return self.world.pool.ask(self.size, CloseSession(clear), self.world.limit).complete

    def close(self) -> None:
        """End the session in the ranks; kill the processes if that fails."""
        self.world.busy = False
        if self.world.pool.processes and not self.close_ranks(clear=True):
            self.world.pool.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
