"""The pytest plug-in: options that name an implementation and a world, and the packaged cases as parameters.

A test that takes the fixtures `reshard_case` and `reshard_replay` runs once for each packaged case file:

    def test_packaged_cases(reshard_case, reshard_replay):
        reshard_replay(reshard_case)

Every pytest of an environment that has the suite loads the plug-in, so heavy modules are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from reshard_conformance.worlds import World

__all__ = ["reshard_implementation", "reshard_replay", "reshard_world"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two options."""
    group = parser.getgroup("reshard", "conformance of an implementation of reshard")
    group.addoption("--reshard-implementation", metavar="NAME", help="a known name or package.module:attribute")
    group.addoption("--reshard-world", metavar="WORLD", default="sim", help="sim or gloo; sim by default")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that names the requirements which a test shows."""
    config.addinivalue_line(
        "markers", "requirement(id, ...): the requirements of the specification that this test shows"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `reshard_case` once per packaged case file."""
    if "reshard_case" in metafunc.fixturenames:
        from reshard_conformance.case.files import packaged_files  # noqa: PLC0415 - heavy, see above

        metafunc.parametrize("reshard_case", packaged_files(), ids=lambda path: path.stem)


@pytest.fixture(scope="session")
def reshard_implementation(request: pytest.FixtureRequest) -> str:
    """Return the name that --reshard-implementation gives."""
    name = request.config.getoption("--reshard-implementation")
    if not name:
        raise pytest.UsageError("no implementation is named: type --reshard-implementation NAME")
    return str(name)


@pytest.fixture(scope="session")
def reshard_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Yield the world that --reshard-world names, for the whole session."""
    from reshard_conformance import registry  # noqa: PLC0415 - heavy, see above

    with closing(registry.world(request.config.getoption("--reshard-world"))) as world:
        yield world


@pytest.fixture
def reshard_replay(reshard_implementation: str, reshard_world: World) -> Callable[[Path], None]:
    """Return a function that replays a case file: it fails where a step does, and skips a file whose profiles are not claimed."""
    from reshard_conformance.run.replay import replay_cases  # noqa: PLC0415 - heavy, see above

    def play(path: Path) -> None:
        steps = list(replay_cases(reshard_implementation, reshard_world, [path]))
        faults = [
            f"{step.name}: {step.outcome.verdict}: {'; '.join(step.outcome.faults)}"
            for step in steps
            if step.outcome is not None and step.outcome.verdict != "pass"
        ]
        if faults:
            pytest.fail("\n".join(faults), pytrace=False)
        if all(step.outcome is None for step in steps):
            missing = sorted({profile.value for step in steps for profile in step.missing})
            pytest.skip(f"not claimed: {', '.join(missing)}")

    return play
