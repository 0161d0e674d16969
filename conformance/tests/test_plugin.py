"""The pytest plug-in, in a pytest of somebody else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from reshard_conformance.case.files import packaged_files

pytest_plugins = ["pytester"]

TEST = """
import pytest

@pytest.mark.requirement("RS-EXACT-1")
def test_packaged_cases(reshard_case, reshard_replay):
    reshard_replay(reshard_case)
"""
OPTIONS = ("-p", "reshard_conformance.plugin", "-p", "no:cacheprovider", "--strict-markers")


@pytest.fixture
def elsewhere(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(TEST)
    return pytester


def test_packaged_cases_are_parameters(elsewhere: pytest.Pytester) -> None:
    result = elsewhere.runpytest_subprocess(*OPTIONS, "--reshard-implementation", "golden", "-rs")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] + outcomes["skipped"] == len(packaged_files())
    assert "failed" not in outcomes
    result.stdout.fnmatch_lines(["*not claimed: agreement*"])


def test_a_case_that_fails_is_a_test_that_fails(
    elsewhere: pytest.Pytester, plugins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    result = elsewhere.runpytest_subprocess(
        *OPTIONS, "--reshard-implementation", "strange:rounding", "-k", "uneven_10x3 or reversed_ranks_17"
    )
    assert result.parseoutcomes()["failed"] == 2
    result.stdout.fnmatch_lines(["*uneven_10x3*: fail: *elements differ*"])


def test_an_implementation_has_to_be_named(elsewhere: pytest.Pytester) -> None:
    result = elsewhere.runpytest_subprocess(*OPTIONS)
    result.stdout.fnmatch_lines(["*no implementation is named: type --reshard-implementation NAME*"])
    assert "passed" not in result.parseoutcomes()


def test_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, reshard_conformance.plugin; print('torch' in sys.modules or 'hypothesis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
