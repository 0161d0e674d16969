"""Simulated worlds for the tests. Their threads are kept from test to test."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from reshard_conformance.worlds.scheduler import ThreadPool
from restripe.group import registry

from .helpers.world import World

settings.register_profile("tests", deadline=None)  # the time of a case depends on the machine
settings.load_profile("tests")

Worlds = Callable[..., World]


@pytest.fixture(scope="session")
def pool() -> Iterator[ThreadPool]:
    pool = ThreadPool()
    yield pool
    pool.close()


@pytest.fixture
def worlds(pool: ThreadPool) -> Worlds:
    """Return a function that makes a world of so many ranks, whose groups may name a check mode."""

    def make(size: int, check: str | None = None) -> World:
        return World(pool, size, check)

    return make


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a registry of its own, so that clearing all groups does not reach the ranks of other tests."""
    monkeypatch.setattr(registry, "_states", {})
    monkeypatch.setattr(registry, "_orphans", deque())
