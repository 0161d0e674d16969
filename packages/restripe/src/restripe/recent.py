"""A table that keeps what was used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """At most `most` values by key; the one not used for longest goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        """The value of a key, which counts as used, or None."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def made(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made where it is not there."""
        value = self.get(key)
        if value is None:
            value = make()
            self.keep(key, value)
        return value

    def keep(self, key: Key, value: Value) -> None:
        """Take in a value as the one used last."""
        self._values[key] = value
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._values.clear()
