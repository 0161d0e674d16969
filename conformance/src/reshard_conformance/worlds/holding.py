"""Calls that a communicator holds back while a `group()` is open, and hands in together at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

__all__ = ["Holding"]

Call = TypeVar("Call")


class Holding(Generic[Call]):
    """The calls of one communicator. submit: hands calls in together; one alone where no group is open."""

    def __init__(self, submit: Callable[[list[Call]], None]) -> None:
        self.submit = submit
        self.held: list[Call] = []
        self.depth = 0

    @contextmanager
    def group(self) -> Iterator[None]:
        """Hold back what is taken inside; of nested groups the outermost hands in. On an exception nothing is."""
        self.depth += 1
        try:
            yield
        except BaseException:
            self.held.clear()
            raise
        finally:
            self.depth -= 1
        if not self.depth:
            calls, self.held = self.held, []
            self.submit(calls)

    def take(self, call: Call) -> None:
        """Hold a call back, or hand it in at once."""
        if self.depth:
            self.held.append(call)
        else:
            self.submit([call])
