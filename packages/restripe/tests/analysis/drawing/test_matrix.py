"""Figures of the traffic matrix are short and have one unit."""

from __future__ import annotations

import pytest

from restripe.analysis.drawing.colours import Colours, text_colour
from restripe.analysis.drawing.matrix import between_ranks, choose_unit, format_figure


@pytest.mark.parametrize(
    ("size", "scale", "text"),
    [
        (655_360, 10**6, "0.66"),
        (4_999, 10**6, ""),
        (12_582_912, 10**6, "12.6"),
        (268_435_456, 10**6, "268"),
        (30, 1, "30"),
    ],
)
def test_figures(size: int, scale: int, text: str) -> None:
    assert format_figure(size, scale) == text


def test_units() -> None:
    assert [choose_unit(most) for most in (2_621_440, 1_000, 999, 0)] == [
        (10**6, "MB"),
        (10**3, "kB"),
        (1, "bytes"),
        (1, "bytes"),
    ]


def test_what_stays_does_not_cross() -> None:
    assert between_ranks({(0, 0): 4, (0, 1): 2}) == {(0, 1): 2}


def test_every_rank_has_a_colour_that_its_number_can_be_read_on() -> None:
    colours = Colours(range(16))
    assert len({colours[rank] for rank in range(16)}) == 16
    assert (text_colour("#ffffff"), text_colour("#000000")) == ("#222222", "#ffffff")
