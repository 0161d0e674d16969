"""The simulated world: every rank a thread of one process, and every run of a step the same run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from reshard_conformance.cases import Clear, Step
from reshard_conformance.contract import Communicator, Group, Implementation
from reshard_conformance.oracle import CPU, Truth
from reshard_conformance.playing import Options, Outcome, Player, RankReport, cases_of, check_playable, judge
from reshard_conformance.trace import Log, Tracer
from reshard_conformance.worlds.baton import Baton, Hang, Pool
from reshard_conformance.worlds.fabric import Fabric, SimCommunicator

__all__ = ["SimGroup", "SimSession", "SimWorld"]


class SimGroup:
    """A group of the simulated world, as one rank sees it."""

    traced = True

    def __init__(self, own: SimCommunicator, communicator: Communicator) -> None:
        self.own, self.communicator = own, communicator
        self.rank, self.size = communicator.rank, communicator.size


class SimHost:
    """Makes the groups of one rank."""

    device = CPU

    def __init__(self, fabric: Fabric, rank: int, size: int) -> None:
        self.fabric, self.rank, self.size = fabric, rank, size

    def make(self, serial: int, log: Log) -> SimGroup:
        own = self.fabric.communicator(self.rank, self.size, serial)
        return SimGroup(own, Tracer(own, log, str(serial)))

    def settle(self) -> None:
        """On the CPU all is done when a call returns."""

    def held(self) -> None:
        """Only devices are asked for their memory."""

    def release(self, group: Group, *, cleared: bool) -> None:
        """End the group's communicators: who keeps one of them and calls it later is found out."""
        del cleared
        if isinstance(group, SimGroup):
            group.own.drop()


class SimWorld:
    """Ranks as threads; `load` finds an implementation by name. limit: seconds after which a step counts as hanging."""

    name = "sim"
    max_size = 64

    def __init__(self, load: Callable[[str], Implementation], limit: float = 60.0) -> None:
        self.load, self.limit = load, limit
        self.pool = Pool()
        self.versions: dict[int, dict[str, str]] = {}

    def open(self, size: int, implementation: str | Implementation, *, traced: bool = True) -> SimSession:
        """Start a session; a simulated one is traced in any case."""
        del traced
        if not 1 <= size <= self.max_size:
            raise ValueError(f"a session in sim has 1 to {self.max_size} ranks, not {size}")
        found = self.load(implementation) if isinstance(implementation, str) else implementation
        return SimSession(self.pool, size, found, self.limit)

    def close(self) -> None:
        """End the threads."""
        self.pool.close()


class SimSession:
    """One set of simulated ranks; see `worlds.Session`."""

    def __init__(self, pool: Pool, size: int, implementation: Implementation, limit: float) -> None:
        self.size, self.implementation = size, implementation
        self.baton: Baton[RankReport] = Baton(pool, size, self.stuck, limit)
        self.calls = 0
        self.pending: list[Clear] = []
        self.renew()

    def renew(self) -> None:
        """Start over with new groups."""
        self.fabric = Fabric(self.baton.wait)
        hosts = [SimHost(self.fabric, rank, self.size) for rank in range(self.size)]
        self.players = [Player(rank, self.implementation, host) for rank, host in enumerate(hosts)]

    def play(self, step: Step, *, check: str | None = None, lockstep: bool = False, memory: bool = False) -> Outcome:
        """Let every rank make the step, and judge what they report.

        A clear by some ranks only is played together with the next step: those ranks may wait for the others in it.
        """
        check_playable(step, self.size)
        if isinstance(step, Clear) and step.ranks is not None and len(step.ranks) < self.size:
            self.pending.append(step)
            return Outcome("pass")
        before, self.pending = self.pending, []
        outcome = self.run(step, before, Options(check, lockstep, memory))
        if outcome.verdict != "pass":
            self.renew()
        return outcome

    def run(self, step: Step, before: list[Clear], options: Options) -> Outcome:
        cases = cases_of(step)
        truths = [Truth(case, self.calls + number) for number, case in enumerate(cases)]
        self.calls += len(cases)
        bodies = [partial(player.play, step, truths, options, before) for player in self.players]
        try:
            return judge(step, self.baton.run(bodies))
        except Hang as hang:
            return Outcome("hang", (str(hang),))

    def stuck(self, reasons: dict[int, str], ended: dict[int, RankReport]) -> None:
        """No rank can go on: end the step for all, and say what each of them waits for."""
        failed = sorted((report.failed_at, rank) for rank, report in ended.items() if report.error)
        head = f"rank {failed[0][1]} failed ({ended[failed[0][1]].error})" if failed else "deadlock"
        places = [f"rank {rank} waits for {why}" for rank, why in reasons.items()]
        places += [f"rank {rank} has returned" for rank, report in ended.items() if not report.error]
        self.fabric.fail(f"{head}: {', '.join(places)}")

    def close(self) -> None:
        """Drop the groups."""
        self.players = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
