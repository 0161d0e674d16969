"""Examples of hypothesis strategies, drawn as a search draws them."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import given, seed
from hypothesis import strategies as st

from reshard_conformance.search.bench import search_settings

Example = TypeVar("Example")


def draw_examples(strategy: st.SearchStrategy[Example], number: int, count: int) -> list[Example]:
    """Return the examples that a search under the seed `number` draws."""
    examples: list[Example] = []

    @seed(number)
    @search_settings(count)
    @given(strategy)
    def collect(example: Example) -> None:
        examples.append(example)

    collect()
    return examples
