"""The commands of the guide print what it says they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from restripe.cli import app

DOCS = Path(__file__).parents[3] / "docs"
GUIDE = (DOCS / "guides" / "explain.md").read_text(encoding="utf-8")
SHOWN = [block.splitlines() for block in re.findall(r"^    \$ restripe (.*\n(?:    .*\n)*)", GUIDE, re.MULTILINE)]


def words(line: str) -> str:
    return " ".join(line.split())


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: " ".join(shown[0].split()[:3]))
def test_a_command_of_the_guide(shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(app, shlex.split(shown[0]), catch_exceptions=False)
    assert outcome.exit_code == 0
    printed = {words(line) for line in outcome.output.splitlines()}
    assert [line for line in shown[1:] if words(line) not in printed] == []
    assert len(shown) > 2


def test_the_pictures_are_there_and_small() -> None:
    pictures = re.findall(r"\]\(\.\./(pictures/[^)]*)\)", GUIDE)
    assert len(pictures) == 2
    assert all(0 < (DOCS / name).stat().st_size < 100_000 for name in pictures)
