"""Tables that do not grow without bound."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """At most `most` values by key; the one not used for longest goes first.

    Finding a value hashes its key once, since keys of meshes take long to hash; what is to go is looked for when it has to.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._now = 0
        self._entries: dict[Key, tuple[Value, list[int]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """The value of a key, which counts as used, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._now += 1
        entry[1][0] = self._now
        return entry[0]

    def made(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made where it is not there."""
        value = self.get(key)
        if value is None:
            value = make()
            self.keep(key, value)
        return value

    def keep(self, key: Key, value: Value) -> None:
        """Take in a value as the one used last."""
        self._now += 1
        self._entries[key] = value, [self._now]
        if len(self._entries) > self._most:
            del self._entries[min(self._entries, key=lambda one: self._entries[one][1])]

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()


def remember(table: dict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Take a value into a plain table, which begins anew where it is full: for what is found again at little cost."""
    if len(table) >= most:
        table.clear()
    table[key] = value
