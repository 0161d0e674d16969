"""The pytest layer: options that name an implementation and a world, and the packaged cases as parameters.

A test that takes the fixtures `reshard_case` and `reshard_replay` runs once for each packaged case file:

    def test_packaged_cases(reshard_case, reshard_replay):
        reshard_replay(reshard_case)

The plug-in is loaded into every pytest of an environment that has the suite, so what is heavy is imported where it is used.
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
    """The two options."""
    group = parser.getgroup("reshard", "conformance of an implementation of reshard")
    group.addoption("--reshard-implementation", metavar="NAME", help="a known name or package.module:attribute")
    group.addoption("--reshard-world", metavar="WORLD", default="sim", help="sim or gloo; sim by default")


def pytest_configure(config: pytest.Config) -> None:
    """The marker by which a test says what it shows."""
    config.addinivalue_line(
        "markers", "requirement(id, ...): the requirements of the specification that this test shows"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One call a packaged case file, by its name."""
    if "reshard_case" in metafunc.fixturenames:
        from reshard_conformance.cases import packaged  # noqa: PLC0415 - heavy, see above

        metafunc.parametrize("reshard_case", packaged(), ids=lambda path: path.stem)


@pytest.fixture(scope="session")
def reshard_implementation(request: pytest.FixtureRequest) -> str:
    """The name that --reshard-implementation gives."""
    name = request.config.getoption("--reshard-implementation")
    if not name:
        raise pytest.UsageError("no implementation is named: type --reshard-implementation NAME")
    return str(name)


@pytest.fixture(scope="session")
def reshard_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The world that --reshard-world names, kept for the whole session."""
    from reshard_conformance import registry  # noqa: PLC0415 - heavy, see above

    with closing(registry.world(request.config.getoption("--reshard-world"))) as world:
        yield world


@pytest.fixture
def reshard_replay(reshard_implementation: str, reshard_world: World) -> Callable[[Path], None]:
    """Plays a case file: fails where a step does, skips a file that needs profiles which are not claimed."""
    from reshard_conformance.replay import replay  # noqa: PLC0415 - heavy, see above

    def play(path: Path) -> None:
        steps = list(replay(reshard_implementation, reshard_world, [path]))
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
