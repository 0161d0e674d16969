"""Calls that a communicator defers while a `group()` is open, and submits together at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

__all__ = ["DeferredCalls"]

Call = TypeVar("Call")


class DeferredCalls(Generic[Call]):
    """The deferred calls of one communicator. submit: submits calls together; gets a single call outside of a group."""

    def __init__(self, submit: Callable[[list[Call]], None]) -> None:
        self.submit = submit
        self.calls: list[Call] = []
        self.depth = 0

    @contextmanager
    def group(self) -> Iterator[None]:
        """Defer calls until the outermost group ends, then submit them; on an exception drop them."""
        self.depth += 1
        try:
            yield
        except BaseException:
            self.calls.clear()
            raise
        finally:
            self.depth -= 1
        if not self.depth:
            calls, self.calls = self.calls, []
            self.submit(calls)

    def add(self, call: Call) -> None:
        """Defer a call, or submit it at once outside of a group."""
        if self.depth:
            self.calls.append(call)
        else:
            self.submit([call])
