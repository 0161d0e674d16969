"""Ownership maps of tensors of any number of dims."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from restripe.analysis.drawing.colours import Colours
from restripe.analysis.drawing.maps import Piece, View, draw_map, holders_by_box
from restripe.layout.chunked import Region

HALVES: dict[int, Region] = {0: (((0, 2),), ((0, 4),), ((0, 6),)), 1: (((2, 4),), ((0, 4),), ((0, 6),))}
BLOCKS: dict[int, Region] = {0: (((0, 4),), ((0, 4),), ((0, 3),)), 1: (((0, 4),), ((0, 4),), ((3, 6),))}


def test_the_dims_that_are_cut_are_shown() -> None:
    shape = (4, 4, 6)
    assert View.of(shape, [*HALVES.values(), *BLOCKS.values()]) == View(shape, 0, 2)
    assert View.of(shape, list(HALVES.values())) == View(shape, 0, 1)
    assert View.of((4,), [(((0, 4),),)]) == View((4,), 0, None)
    assert View.of((), [()]) == View((), None, None)


def test_boxes_and_who_holds_them() -> None:
    view = View((8, 2), 0, 1)
    spread: Region = (((0, 2), (4, 6)), ((0, 2),))
    assert holders_by_box(view, {3: spread, 1: spread, 2: (((2, 4),), ((0, 2),)), 5: ((), ((0, 2),))}) == {
        ((0, 2), (0, 2)): [1, 3],
        ((4, 6), (0, 2)): [1, 3],
        ((2, 4), (0, 2)): [2],
    }


def discs(view: View, regions: dict[int, Region], pieces: list[Piece]) -> set[tuple[float, float]]:
    """Return the centres of the discs, across and down."""
    axes = Figure().subplots()
    draw_map(axes, view, regions, pieces, Colours([0, 1, 2, 3]))
    centres: list[Any] = [line.get_xydata() for line in axes.lines if line.get_marker() == "o"]
    return {(float(x), float(y)) for ((x, y),) in centres}


def test_replicas_stand_on_the_parts_that_they_take() -> None:
    view, whole = View((8, 2), 0, 1), (((0, 8),), ((0, 2),))
    stripes = [Piece(2, 0, (((0, 4),), ((0, 2),))), Piece(3, 1, (((4, 8),), ((0, 2),)))]
    assert discs(view, {0: whole, 1: whole}, stripes) == {(1, 2), (1, 6)}


def test_replicas_of_several_boxes_stand_in_each() -> None:
    view, spread = View((8, 2), 0, 1), (((0, 2), (4, 6)), ((0, 2),))
    stripes = [
        Piece(2, 0, (((0, 1), (4, 5)), ((0, 2),))),
        Piece(3, 1, (((1, 2), (5, 6)), ((0, 2),))),
    ]
    assert discs(view, {0: spread, 1: spread}, stripes) == {(1, 0.5), (1, 1.5), (1, 4.5), (1, 5.5)}


def test_one_owner_stands_in_the_middle() -> None:
    assert discs(View((8, 2), 0, 1), {1: (((2, 4),), ((0, 2),))}, []) == {(1, 3)}
