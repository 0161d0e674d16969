"""The simulated world: ranks are threads of one process, and every run of a step is the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from reshard_conformance.case.files import Clear, Step
from reshard_conformance.contract import Communicator, Group, Implementation
from reshard_conformance.judge.oracle import CPU, Truth
from reshard_conformance.judge.outcomes import Outcome, RankReport, judge_step
from reshard_conformance.judge.player import Player, PlayOptions, check_playable
from reshard_conformance.judge.trace import EventLog, Tracer
from reshard_conformance.worlds.network import SimCommunicator, SimNetwork
from reshard_conformance.worlds.scheduler import Hang, RankScheduler, ThreadPool

__all__ = ["SimGroup", "SimSession", "SimWorld"]


class SimGroup:
    """One rank's group in the simulated world."""

    traced = True

    def __init__(self, sim_communicator: SimCommunicator, communicator: Communicator) -> None:
        self.sim_communicator, self.communicator = sim_communicator, communicator
        self.rank, self.size = communicator.rank, communicator.size


class SimHost:
    """Makes the groups of one rank."""

    device = CPU

    def __init__(self, network: SimNetwork, rank: int, size: int) -> None:
        self.network, self.rank, self.size = network, rank, size

    def make(self, serial: int, log: EventLog) -> SimGroup:
        sim_communicator = self.network.communicator(self.rank, self.size, serial)
        return SimGroup(sim_communicator, Tracer(sim_communicator, log, str(serial)))

    def settle(self) -> None:
        """Do nothing: a call on the CPU is complete when it returns."""

    def held(self) -> None:
        """Return None: only memory of devices is measured."""

    def release(self, group: Group, *, cleared: bool) -> None:
        """End the group's communicators: later calls on them raise."""
        del cleared
        if isinstance(group, SimGroup):
            group.sim_communicator.end_with_group()


class SimWorld:
    """Ranks as threads. load: loads an implementation by name. limit: seconds after which a step counts as hanging."""

    name = "sim"
    max_size = 64

    def __init__(self, load: Callable[[str], Implementation], limit: float = 60.0) -> None:
        self.load, self.limit = load, limit
        self.pool = ThreadPool()
        self.versions: dict[int, dict[str, str]] = {}

    def open(self, size: int, implementation: str | Implementation, *, traced: bool = True) -> SimSession:
        """Start a session; a simulated one is always traced."""
        del traced
        if not 1 <= size <= self.max_size:
            raise ValueError(f"a session in sim has 1 to {self.max_size} ranks, not {size}")
        loaded = self.load(implementation) if isinstance(implementation, str) else implementation
        return SimSession(self.pool, size, loaded, self.limit)

    def close(self) -> None:
        """End the threads."""
        self.pool.close()


class SimSession:
    """One set of simulated ranks; see `worlds.Session`."""

    def __init__(self, pool: ThreadPool, size: int, implementation: Implementation, limit: float) -> None:
        self.size, self.implementation = size, implementation
        self.scheduler: RankScheduler[RankReport] = RankScheduler(pool, size, self.on_deadlock, limit)
        self.calls = 0
        self.pending: list[Clear] = []
        self.make_groups()

    def make_groups(self) -> None:
        """Make a new network, and new groups over it."""
        self.network = SimNetwork(self.scheduler.wait)
        hosts = [SimHost(self.network, rank, self.size) for rank in range(self.size)]
        self.players = [Player(rank, self.implementation, host) for rank, host in enumerate(hosts)]

    def play(self, step: Step, *, check: str | None = None, lockstep: bool = False, memory: bool = False) -> Outcome:
        """Play the step on all ranks and judge_step their reports.

        A clear on some ranks only is played together with the next step, in which those ranks may wait for the others.
        """
        check_playable(step, self.size)
        if isinstance(step, Clear) and step.ranks is not None and len(step.ranks) < self.size:
            self.pending.append(step)
            return Outcome("pass")
        before, self.pending = self.pending, []
        outcome = self.run(step, before, PlayOptions(check, lockstep, memory))
        if outcome.verdict != "pass":
            self.make_groups()
        return outcome

    def run(self, step: Step, before: list[Clear], options: PlayOptions) -> Outcome:
        cases = step.cases
        truths = [Truth(case, self.calls + number) for number, case in enumerate(cases)]
        self.calls += len(cases)
        bodies = [partial(player.play, step, truths, options, before) for player in self.players]
        try:
            return judge_step(step, self.scheduler.run(bodies))
        except Hang as hang:
            return Outcome("hang", (str(hang),))

    def on_deadlock(self, reasons: dict[int, str], ended: dict[int, RankReport]) -> None:
        """End the step on all ranks with an error that says what each rank waits for."""
        failed = sorted((report.failed_at, rank) for rank, report in ended.items() if report.error)
        head = f"rank {failed[0][1]} failed ({ended[failed[0][1]].error})" if failed else "deadlock"
        states = [f"rank {rank} waits for {reason}" for rank, reason in reasons.items()]
        states += [f"rank {rank} has returned" for rank, report in ended.items() if not report.error]
        self.network.fail(f"{head}: {', '.join(states)}")

    def close(self) -> None:
        """Drop the groups."""
        self.players = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
