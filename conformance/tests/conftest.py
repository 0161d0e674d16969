"""Worlds that outlast a test, and plug-ins that rank processes can import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from reshard_conformance import registry
from reshard_conformance.worlds.gloo import GlooWorld
from reshard_conformance.worlds.sim import SimWorld

settings.register_profile("tests", deadline=None)  # how long a case takes is the machine's matter
settings.load_profile("tests")

PLUGINS = str(Path(__file__).parent / "helpers")


@pytest.fixture(scope="session")
def plugins() -> Iterator[str]:
    """The folder of plug-ins, on the path of this process and of those that it starts."""
    sys.path.insert(0, PLUGINS)
    yield PLUGINS
    sys.path.remove(PLUGINS)


@pytest.fixture(scope="session")
def sim() -> Iterator[SimWorld]:
    world = SimWorld(registry.load)
    yield world
    world.close()


@pytest.fixture(scope="session")
def gloo(plugins: str) -> Iterator[GlooWorld]:
    """Three processes: enough for a split that leaves some out."""
    world = GlooWorld(registry.place_of, size=3, limit=60.0)
    yield world
    world.close()
