"""The examples of docs/ print what they say that they print."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "two_ranks.py"


@pytest.mark.requirement("RS-UPSTREAM-1", "RS-UPSTREAM-13")
def test_two_ranks_prints_what_its_docstring_shows() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    _, _, shown = (ast.get_docstring(ast.parse(EXAMPLE.read_text())) or "").partition("prints\n\n")
    assert done.stdout == dedent(shown) + "\n"
    assert done.stdout.count("\n") == 3
