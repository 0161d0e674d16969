"""The cases that the guides and the specification print do what is said of them."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from reshard_conformance.registry import world
from reshard_conformance.run.replay import replay_cases

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(?:^    .*\n)+", re.MULTILINE)


def printed(page: str) -> list[str]:
    """The indented blocks of a page that are cases."""
    blocks = [dedent(block) for block in BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))]
    return [block for block in blocks if block.startswith("{")]


@pytest.mark.parametrize(("page", "steps"), [("guides/write-a-case.md", [1, 3, 1]), ("spec/cases.md", [1])])
def test_printed_cases_pass(page: str, steps: list[int], tmp_path: Path) -> None:
    blocks = printed(page)
    assert len(blocks) == len(steps)
    for block, count in zip(blocks, steps, strict=True):
        file = tmp_path / ("seq_printed.jsonl" if count > 1 else "printed.json")
        file.write_text(block, encoding="utf-8")
        outcomes = [played.outcome for played in replay_cases("golden", world("sim"), [file])]
        assert [outcome and outcome.verdict for outcome in outcomes] == ["pass"] * count
