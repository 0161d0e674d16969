"""The page that maps upstream's names to restripe's names only what exists."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "upstream.md"
ROWS = re.findall(r"^\| (`.*?) \| (.*?) \|$", PAGE.read_text().split("## Departures")[0], re.MULTILINE)
NAMES = sorted({name for _, ours in ROWS for name in re.findall(r"`(\w+(?:\.\w+)+)`", ours)})


def test_the_page_has_names() -> None:
    assert len(NAMES) > 30


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_map_exists(name: str) -> None:
    """From the longest module that the name begins with, down its attributes; a field of a class is in its annotations."""
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(["restripe", *parts[:depth]]))
        except ModuleNotFoundError:
            continue
        for part in parts[depth:]:
            found = (
                found.__annotations__[part] if part in vars(found).get("__annotations__", {}) else getattr(found, part)
            )
        return
    pytest.fail(f"restripe has no module {parts[0]}")
