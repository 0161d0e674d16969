"""Worlds whose ranks are processes: sessions over a pool that is rebuilt after a hang."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from types import TracebackType
from typing import Self

from reshard_conformance.cases import Clear, Step, dump
from reshard_conformance.contract import Implementation
from reshard_conformance.playing import Options, Outcome, cases_of, check_playable, judge
from reshard_conformance.worlds.pool import Answers, Pool
from reshard_conformance.worlds.ranks import Closing, Opened, Opening, Playing, Start

__all__ = ["ProcessSession", "ProcessWorld"]

#: Seconds within which the ranks of a pool have to be ready for a session.
START = 120.0


class ProcessWorld:
    """Ranks as processes. `place` tells where an implementation of a name is, as package.module:attribute.

    start: what makes the hosts of a rank, called in its process. size: processes of the pool. limit: seconds after which
    a step counts as hanging. grace: seconds that the other ranks get after one rank has raised.
    """

    name: str

    def __init__(self, place: Callable[[str], str], start: Start, size: int, limit: float, grace: float) -> None:
        self.place, self.max_size, self.limit, self.grace = place, size, limit, grace
        self.pool = Pool(grace, start)
        self.numbers = count()
        self.busy = False
        self.versions: dict[int, Mapping[str, str]] = {}

    def open(self, size: int, implementation: str | Implementation, *, traced: bool = True) -> ProcessSession:
        """Start a session; the implementation is a name, since the rank processes load it."""
        if not isinstance(implementation, str):
            raise TypeError(f"the {self.name} world loads an implementation by name, got {implementation!r}")
        if not 1 <= size <= self.max_size:
            raise ValueError(f"a session in this {self.name} world has 1 to {self.max_size} ranks, not {size}")
        if self.busy:
            raise RuntimeError(f"a session of this {self.name} world is still open; close it first")
        session = ProcessSession(self, size, self.place(implementation), traced=traced)
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
        self.begin()

    def begin(self) -> None:
        """Open a new session in the ranks; a pool that cannot do so is started once more."""
        for last in (False, True):
            self.world.pool.start(self.size)
            timeout = self.world.limit + START  # a rank that waits is found by the limit, with its place, not by this
            opening = Opening(next(self.world.numbers), self.size, self.place, self.traced, timeout)
            answers = self.world.pool.ask(self.size, opening, START)
            if answers.whole:
                opened = [answer for answer in answers.given.values() if isinstance(answer, Opened)]
                self.world.versions |= {answer.rank: answer.versions for answer in opened}
                return
            self.world.pool.kill()
            if last:
                why = "; ".join(answers.faults(START, self.world.grace))
                raise RuntimeError(f"the ranks of a session in {self.world.name} do not start: {why}")

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
