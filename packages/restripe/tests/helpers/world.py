"""Ranks as threads over the suite's simulated communicators: a deadlock shows at once, and every call is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from typing import Any, TypeVar

from reshard_conformance.judge.trace import Event, EventLog, Tracer
from reshard_conformance.worlds.network import SimNetwork
from reshard_conformance.worlds.scheduler import RankScheduler, ThreadPool
from restripe.group.cache import CacheCounters, CallCache
from restripe.group.registry import state_of

from .address_transport import AddressTracer

Result = TypeVar("Result")


class Group:
    """A group as callers pass one: hashable by identity, weakly referenceable, its communicator can be replaced."""

    def __init__(self, communicator: Any, check: str | None = None) -> None:
        self.communicator, self.check = communicator, check

    @property
    def rank(self) -> int:
        return int(self.communicator.rank)


class World:
    """Some ranks, each with a group that lasts from run to run; `events` are all calls so far, by rank."""

    def __init__(self, pool: ThreadPool, size: int, check: str | None = None) -> None:
        self.size = size
        self._scheduler: RankScheduler[Any] = RankScheduler(pool, size, self._on_deadlock, limit=60.0)
        self._network = SimNetwork(self._scheduler.wait)
        self._logs = [EventLog() for _ in range(size)]
        self._serials = 0
        self.groups = self.make_groups(check)

    def make_groups(self, check: str | None = None) -> list[Group]:
        """Return a new group for each rank, over communicators of their own."""
        return [Group(communicator, check) for communicator in self.make_communicators()]

    def make_communicators(self) -> list[Any]:
        """Return new communicators over all ranks, one a rank.

        Those of odd ranks take addresses, those of even ranks tensors: ranks need not be alike in this.
        """
        serial, self._serials = self._serials, self._serials + 1
        traced = [
            Tracer(self._network.communicator(rank, self.size, serial), log, str(serial))
            for rank, log in enumerate(self._logs)
        ]
        return [AddressTracer(tracer) if rank % 2 else tracer for rank, tracer in enumerate(traced)]

    def take_addresses(self) -> None:
        """Give every rank a communicator that takes addresses."""
        for group in self.groups:
            if not isinstance(group.communicator, AddressTracer):
                group.communicator = AddressTracer(group.communicator)

    def run(self, body: Callable[[Group], Result]) -> list[Result]:
        """Run the body on every rank and return its results by rank. The first error is raised."""
        results = []
        for outcome in self.outcomes(body):
            if isinstance(outcome, Exception):
                raise outcome
            results.append(outcome)
        return results

    def outcomes(self, body: Callable[[Group], Result]) -> list[Result | Exception]:
        """Run the body on every rank and return its result or its exception, by rank."""

        def result_or_error(group: Group) -> Result | Exception:
            try:
                return body(group)
            except Exception as error:  # noqa: BLE001  (every exception is an outcome)
                return error

        return self._scheduler.run([lambda group=group: result_or_error(group) for group in self.groups])  # type: ignore[misc]

    def assert_all_raise(self, body: Callable[[Group], object], kind: type[Exception]) -> list[str]:
        """Run the body, which must raise exactly this type on every rank, and return the messages by rank."""
        outcomes = self.outcomes(body)
        assert [type(outcome) for outcome in outcomes] == [kind] * self.size, outcomes
        return [str(outcome) for outcome in outcomes]

    @property
    def events(self) -> dict[int, tuple[Event, ...]]:
        return {rank: tuple(log.events) for rank, log in enumerate(self._logs)}

    def ops(self, rank: int) -> list[str]:
        """Return the names of the rank's calls so far."""
        return [event.op for event in self._logs[rank].events]

    def exchanges(self) -> list[int]:
        """Return how many records each rank has exchanged so far."""
        return [self.ops(rank).count("exchange") for rank in range(self.size)]

    def forget_events(self) -> None:
        """Drop the record of the calls so far."""
        for log in self._logs:
            log.take()

    def count(self, body: Callable[[Group], object]) -> CacheCounters:
        """Run the body on every rank, and return what it adds to the counters of all ranks' call caches."""
        before = self._counters()
        self.run(body)
        return CacheCounters(*(now - earlier for now, earlier in zip(self._counters(), before, strict=True)))

    def _counters(self) -> list[int]:
        by_rank = [astuple(state_of(group).cache.counters) for group in self.groups]
        return [sum(values) for values in zip(*by_rank, strict=True)]

    def bound_caches(self, **bounds: int) -> None:
        """Give every rank a new call cache with these bounds."""
        for group in self.groups:
            state_of(group).cache = CallCache(**bounds)

    def _on_deadlock(self, waiting: dict[int, str], *_: object) -> None:
        self._network.fail(f"deadlock: {waiting}")
