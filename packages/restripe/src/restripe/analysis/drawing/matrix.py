"""The traffic matrix: a row for each sender, a column for each receiver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb

from restripe.analysis.drawing.colours import DARK, PALE, Colours, draw_disc, text_colour
from restripe.analysis.traffic import loads

SIDE = 250.0  # of the matrix, in points
PAD = 30.0  # from a panel to its title, in points: the receivers stand between
STAYS = "#b9b9b9"
SHADES = LinearSegmentedColormap.from_list("bytes", ["#dfe8f1", "#2f5f8f"])
UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))


def choose_unit(most: float) -> tuple[int, str]:
    """Return the size and the name of the largest unit in which the figure is at least 1."""
    return next(((size, name) for size, name in UNITS if most >= size), UNITS[-1])


def format_figure(size: int, scale: int) -> str:
    """Return a size in a unit, in at most four characters; an empty text where that would show 0."""
    shown = size / scale
    if shown < 0.005:
        return ""
    return f"{shown:.{0 if scale == 1 or shown >= 99.95 else 1 if shown >= 9.995 else 2}f}"


def draw_matrix(
    axes: Axes, senders: Sequence[int], receivers: Sequence[int], sent: Mapping[tuple[int, int], int], colours: Colours
) -> None:
    """Draw bytes by (sender, receiver) with the sums of rows and columns.

    Bytes from a rank to itself stay on the rank: they are grey and not summed up.
    """
    most = max(sent.values(), default=1)
    sums = loads(between_ranks(sent))
    scale, name = choose_unit(max((*sums[0].values(), *sums[1].values()), default=most))
    fits = max(len(senders), len(receivers)) <= 16
    row, column = ({rank: index for index, rank in enumerate(ranks)} for ranks in (senders, receivers))
    font = min(9.0, 110 / max(len(receivers), 1))
    shades = {pair: STAYS if pair[0] == pair[1] else to_hex(SHADES(size / most)) for pair, size in sent.items()}
    grid = [[to_rgb(shades.get((sender, receiver), PALE)) for receiver in receivers] for sender in senders]
    axes.imshow(grid, extent=(0, len(receivers), len(senders), 0), aspect="auto", interpolation="nearest")
    for pair, shade in shades.items() if fits else ():
        middle = column[pair[1]] + 0.5, row[pair[0]] + 0.5
        _number(axes, middle, format_figure(sent[pair], scale), font, text_colour(shade))
    _frame(axes, senders, receivers, colours)
    if fits:
        right, below = 1.06 * len(column), 1.045 * len(row)
        for rank, index in row.items():
            _number(axes, (right, index + 0.5), format_figure(sums[0][rank], scale), font, DARK)
        for rank, index in column.items():
            _number(axes, (index + 0.5, below), format_figure(sums[1][rank], scale), font, DARK)
        _number(axes, (right, below), "sum", font, DARK)
    stays = ", grey stays on the rank" if len(between_ranks(sent)) < len(sent) else ""
    title = f"Who sends how much to whom, in {name}\nrows send, columns receive{stays}"
    axes.set_title(title, fontsize=10, pad=PAD, linespacing=1.5)


def between_ranks(sent: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """Return the bytes between different ranks."""
    return {pair: size for pair, size in sent.items() if pair[0] != pair[1]}


def _number(axes: Axes, at: tuple[float, float], text: str, size: float, colour: str) -> None:
    if text:
        axes.text(*at, text, fontsize=size, color=colour, ha="center", va="center")


def _frame(axes: Axes, senders: Sequence[int], receivers: Sequence[int], colours: Colours) -> None:
    rows, columns = max(len(senders), 1), max(len(receivers), 1)
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    if max(rows, columns) <= 32:
        for index in range(rows + 1):
            axes.axhline(index, color="white", linewidth=1)
        for index in range(columns + 1):
            axes.axvline(index, color="white", linewidth=1)
    for index, rank in enumerate(senders):
        draw_disc(axes, (-13 / SIDE * columns, index + 0.5), rank, colours, min(21.0, 0.84 * SIDE / rows))
    for index, rank in enumerate(receivers):
        draw_disc(axes, (index + 0.5, -13 / SIDE * rows), rank, colours, min(21.0, 0.84 * SIDE / columns))
