"""Worlds run ranks: a world opens sessions, and a session plays steps on one set of ranks, whose caches persist."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from reshard_conformance.case.files import Step
from reshard_conformance.contract import Implementation
from reshard_conformance.judge.outcomes import Outcome

__all__ = ["Session", "World"]


class Session(Protocol):
    """One set of ranks with their numbered groups and the implementation's caches, which persist from step to step.

    After a step that did not pass, all groups are replaced, so that a failure does not affect the next step.
    """

    def play(self, step: Step, *, check: str | None = None, lockstep: bool = False, memory: bool = False) -> Outcome:
        """Play the step on all ranks and judge their reports.

        check: the agreement mode ("first" when None; a case with a fault plays with "always").
        lockstep: golden runs beside the implementation, and both destinations are compared byte by byte.
        memory: measure the peak of bytes that the implementation allocates in the call.
        Raises CaseError for a step that cannot be played (another world size; equality expected of an illegal layout).
        """

    def close(self) -> None:
        """End the session."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class World(Protocol):
    """A kind of ranks: threads, processes, or processes on GPUs."""

    @property
    def name(self) -> str:
        """The world's name on the command line."""

    @property
    def max_size(self) -> int:
        """The maximum number of ranks of a session."""

    @property
    def versions(self) -> Mapping[int, Mapping[str, str]]:
        """The versions of libraries and devices that ranks in other processes have reported, by rank."""

    def open(self, size: int, implementation: str | Implementation, *, traced: bool = True) -> Session:
        """Start a session of `size` ranks.

        traced: the trace is judged, so all communication must use the group's `communicator`.
        """

    def close(self) -> None:
        """End the ranks."""
