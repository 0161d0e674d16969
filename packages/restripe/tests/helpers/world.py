"""Ranks as threads over the suite's simulated communicators: a deadlock shows at once, and every call is on record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from reshard_conformance.trace import Event, Log, Tracer
from reshard_conformance.worlds.baton import Baton, Pool
from reshard_conformance.worlds.fabric import Fabric

from .posting import Posting

Result = TypeVar("Result")


class Group:
    """What restripe is handed: hashable by identity, weakly referenceable, with a communicator that can be replaced."""

    def __init__(self, communicator: Any, check: str | None = None) -> None:
        self.communicator, self.check = communicator, check

    @property
    def rank(self) -> int:
        return int(self.communicator.rank)


class World:
    """Some ranks, each with a group that lasts from run to run; `events` are all calls so far, by rank."""

    def __init__(self, pool: Pool, size: int, check: str | None = None) -> None:
        self.size = size
        self._baton: Baton[Any] = Baton(pool, size, self._stuck, limit=60.0)
        self._fabric = Fabric(self._baton.wait)
        self._logs = [Log() for _ in range(size)]
        self._serials = 0
        self.groups = self.make(check)

    def make(self, check: str | None = None) -> list[Group]:
        """Groups of all ranks, over communicators of their own; one a rank."""
        return [Group(communicator, check) for communicator in self.communicators()]

    def communicators(self) -> list[Any]:
        """New communicators over all ranks, one a rank. Odd ranks' take addresses: what a rank is given is its own matter."""
        serial, self._serials = self._serials, self._serials + 1
        traced = [
            Tracer(self._fabric.communicator(rank, self.size, serial), log, str(serial))
            for rank, log in enumerate(self._logs)
        ]
        return [Posting(one) if rank % 2 else one for rank, one in enumerate(traced)]

    def run(self, body: Callable[[Group], Result]) -> list[Result]:
        """Run the body on every rank; its results by rank. The first error is raised."""
        results = []
        for outcome in self.outcomes(body):
            if isinstance(outcome, Exception):
                raise outcome
            results.append(outcome)
        return results

    def outcomes(self, body: Callable[[Group], Result]) -> list[Result | Exception]:
        """Run the body on every rank; what it gave or raised, by rank."""

        def caught(group: Group) -> Result | Exception:
            try:
                return body(group)
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the outcome)
                return error

        return self._baton.run([lambda group=group: caught(group) for group in self.groups])  # type: ignore[misc]

    def refuses(self, body: Callable[[Group], object], kind: type[Exception]) -> list[str]:
        """Run the body, which every rank must refuse with this very type; the messages by rank."""
        outcomes = self.outcomes(body)
        assert [type(outcome) for outcome in outcomes] == [kind] * self.size, outcomes
        return [str(outcome) for outcome in outcomes]

    @property
    def events(self) -> dict[int, tuple[Event, ...]]:
        return {rank: tuple(log.events) for rank, log in enumerate(self._logs)}

    def ops(self, rank: int) -> list[str]:
        """The names of the rank's calls so far."""
        return [event.op for event in self._logs[rank].events]

    def forget(self) -> None:
        """Drop the record of the calls so far."""
        for log in self._logs:
            log.take()

    def _stuck(self, waiting: dict[int, str], *_: object) -> None:
        self._fabric.fail(f"deadlock: {waiting}")
