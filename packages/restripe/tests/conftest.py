"""Simulated worlds for the tests: their threads outlast a test."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from reshard_conformance.worlds.baton import Pool
from restripe.group import registry

from .helpers.world import World

settings.register_profile("tests", deadline=None)  # how long a case takes is the machine's matter
settings.load_profile("tests")

Worlds = Callable[..., World]


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture
def worlds(pool: Pool) -> Worlds:
    """Make a world of so many ranks, whose groups may name a check mode."""

    def make(size: int, check: str | None = None) -> World:
        return World(pool, size, check)

    return make


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of the test's own: clearing everything must not reach the ranks of other tests."""
    monkeypatch.setattr(registry, "_states", {})
    monkeypatch.setattr(registry, "_orphans", deque())
