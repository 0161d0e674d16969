"""Ownership maps: a tensor as a rectangle, cut into the parts that its ranks hold."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from restripe.analysis.drawing.colours import DARK, PALE, Colours, draw_disc
from restripe.layout.chunked import Interval, Region

Box = tuple[Interval, Interval]
WIDTH, HEIGHT = 250.0, 250.0  # of a map, in points: discs have to fit into it


class Piece(NamedTuple):
    """A part of the tensor, the rank that provides it, and the rank that receives it."""

    provider: int
    receiver: int
    region: Region


@dataclass(frozen=True)
class View:
    """The two tensor dims that a map shows: down and across; None where the tensor has no such dim."""

    shape: tuple[int, ...]
    down: int | None
    across: int | None

    @classmethod
    def of(cls, shape: tuple[int, ...], regions: Sequence[Region]) -> View:
        """Return the view of the first two dims that are cut; where fewer are, the first others fill up."""
        whole = [((0, size),) for size in shape]
        cut = [dim for dim in range(len(shape)) if any(region[dim] != whole[dim] for region in regions)]
        shown = sorted([*cut, *(dim for dim in range(len(shape)) if dim not in cut)][:2])
        return cls(shape, *[*shown, None, None][:2])

    def boxes(self, region: Region) -> Iterator[Box]:
        """Yield the boxes of the region in the two dims of the view."""
        if all(region):
            yield from product(*(((0, 1),) if dim is None else region[dim] for dim in (self.down, self.across)))

    def size(self, dim: int | None) -> int:
        """Return the number of elements along a dim, and 1 where the tensor has no such dim."""
        return 1 if dim is None else max(self.shape[dim], 1)


def holders_by_box(view: View, regions: Mapping[int, Region]) -> dict[Box, list[int]]:
    """Return the ranks that hold each box."""
    holders: defaultdict[Box, list[int]] = defaultdict(list)
    for rank, region in sorted(regions.items()):
        for box in view.boxes(region):
            holders[box].append(rank)
    return dict(holders)


def draw_map(axes: Axes, view: View, regions: Mapping[int, Region], pieces: Sequence[Piece], colours: Colours) -> None:
    """Draw one side of a move.

    Args:
        regions: the region that each rank holds.
        pieces: parts with the ranks that provide and receive them; a part has its provider's tint.
    """
    parts: defaultdict[int, list[Box]] = defaultdict(list)
    for piece in pieces:
        for box in view.boxes(piece.region):
            _rectangle(axes, box, facecolor=colours.tint(piece.provider), edgecolor="white", linewidth=0.5, zorder=2)
            parts[piece.receiver].append(box)
    holders = holders_by_box(view, regions)
    line = min(1.3, 20 / max(len(holders), 1))
    for box, ranks in holders.items():
        _rectangle(axes, box, facecolor="none", edgecolor=DARK, linewidth=line, zorder=3)
        _discs(axes, view, box, ranks, parts, colours)
    _rectangle(axes, ((0, view.size(view.down)), (0, view.size(view.across))), facecolor=PALE, zorder=1)
    _frame(axes, view, list(holders))


def _rectangle(axes: Axes, box: Box, **style: Any) -> None:
    (top, bottom), (left, right) = box
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, **style))


def _discs(
    axes: Axes, view: View, box: Box, ranks: Sequence[int], parts: Mapping[int, list[Box]], colours: Colours
) -> None:
    """Draw the discs of a box's holders, joined by a line where they receive it.

    Where each of them receives another part of the box, its disc stands on that part; else discs stand in rows.
    """
    received = [[part for part in parts.get(rank, ()) if _inside(part, box)] for rank in ranks]
    hulls = [_hull(rank_parts) for rank_parts in received if rank_parts]
    if len(ranks) > 1 and len(set(hulls)) == len(ranks):
        centres = [_middle(hull) for hull in hulls]
        size = min(_size(view, hull, 1, 1) for hull in hulls)
    else:
        centres, size = _disc_rows(view, box, len(ranks))
    if len(ranks) > 1 and hulls:
        axes.plot(*zip(*centres, strict=True), color=DARK, linewidth=1.6, zorder=4)
    for rank, centre in zip(ranks, centres, strict=True):
        draw_disc(axes, centre, rank, colours, size)


def _disc_rows(view: View, box: Box, count: int) -> tuple[list[tuple[float, float]], float]:
    """Return the centres of so many discs in rows that fill the box, and the largest size that fits."""
    tall, wide = _points(view, box)
    columns = max(1, min(count, round(math.sqrt(count * wide / tall))))
    rows = -(-count // columns)
    size = _size(view, box, rows, columns)
    down = min(tall / rows, 1.35 * size) / HEIGHT * view.size(view.down)
    across = min(wide / columns, 1.35 * size) / WIDTH * view.size(view.across)
    x, y = _middle(box)
    grid = (divmod(number, columns) for number in range(count))
    return [
        (x + (column - (columns - 1) / 2) * across, y + (row - (rows - 1) / 2) * down) for row, column in grid
    ], size


def _size(view: View, box: Box, rows: int, columns: int) -> float:
    """Return the size in points of discs in so many rows and columns of a box."""
    tall, wide = _points(view, box)
    return min(21.0, 0.84 * tall / rows, 0.84 * wide / columns)


def _points(view: View, box: Box) -> tuple[float, float]:
    """Return the height and the width of a box in points."""
    (top, bottom), (left, right) = box
    return HEIGHT * (bottom - top) / view.size(view.down), WIDTH * (right - left) / view.size(view.across)


def _middle(box: Box) -> tuple[float, float]:
    (top, bottom), (left, right) = box
    return (left + right) / 2, (top + bottom) / 2


def _inside(part: Box, box: Box) -> bool:
    return all(low <= lo and hi <= high for (lo, hi), (low, high) in zip(part, box, strict=True))


def _hull(boxes: Sequence[Box]) -> Box:
    """Return the smallest box around several boxes."""
    tops, lefts = zip(*boxes, strict=True)
    return _span(tops), _span(lefts)


def _span(intervals: Sequence[Interval]) -> Interval:
    return min(lo for lo, _ in intervals), max(hi for _, hi in intervals)


def _frame(axes: Axes, view: View, boxes: Sequence[Box]) -> None:
    """Set the limits of the axes, and ticks where the tensor is cut."""
    axes.set_xlim(0, view.size(view.across))
    axes.set_ylim(view.size(view.down), 0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=3, labelsize=8)
    axes.set_yticks(_ticks({edge for rows, _ in boxes for edge in rows}) if view.down is not None else [])
    axes.set_xticks(_ticks({edge for _, columns in boxes for edge in columns}) if view.across is not None else [])
    axes.set_ylabel("" if view.down is None else f"dim {view.down}: {view.shape[view.down]:,} elements")
    axes.set_xlabel("" if view.across is None else f"dim {view.across}: {view.shape[view.across]:,} elements")


def _ticks(edges: set[int], most: int = 5) -> list[int]:
    """Return at most about `most` of the edges, evenly chosen, with the first and the last among them."""
    ordered = sorted(edges)
    step = max(1, math.ceil((len(ordered) - 1) / (most - 1)))
    return [*ordered[: -max(1, step // 2 + 1) : step], *ordered[-1:]] if ordered else []
