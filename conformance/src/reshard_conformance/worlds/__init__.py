"""Where ranks run: a world opens sessions, a session plays steps on one set of ranks with caches kept."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from reshard_conformance.cases import Step
from reshard_conformance.contract import Implementation
from reshard_conformance.playing import Outcome

__all__ = ["Session", "World"]


class Session(Protocol):
    """One set of ranks, their groups by number, and the implementation's caches, kept from step to step.

    After a step that did not pass, groups are made anew, so that one failure does not colour the next step.
    """

    def play(self, step: Step, *, check: str | None = None, lockstep: bool = False, memory: bool = False) -> Outcome:
        """Let every rank make the step, and judge what they report.

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
    """A way of running ranks."""

    @property
    def name(self) -> str:
        """The world's name on the command line."""

    @property
    def max_size(self) -> int:
        """The most ranks that a session can have."""

    @property
    def versions(self) -> Mapping[int, Mapping[str, str]]:
        """What the ranks of processes of their own have run on so far, by rank."""

    def open(self, size: int, implementation: str | Implementation, *, traced: bool = True) -> Session:
        """Start a session of `size` ranks.

        traced: the trace is judged, so that everything has to go through the group's `communicator`.
        """

    def close(self) -> None:
        """Give back the ranks."""
