"""The traffic matrix: a row a sender, a column a receiver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb

from restripe.analysis.drawing.colours import DARK, PALE, Colours, disc, ink
from restripe.analysis.traffic import loads

SIDE = 250.0  # of the matrix, in points
PAD = 30.0  # from a panel to its title, in points: the receivers stand between
STAYS = "#b9b9b9"
SHADES = LinearSegmentedColormap.from_list("bytes", ["#dfe8f1", "#2f5f8f"])
UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "bytes"))


def unit(most: float) -> tuple[int, str]:
    """The largest unit in which the figure is at least 1."""
    return next(((size, name) for size, name in UNITS if most >= size), UNITS[-1])


def brief(size: int, scale: int) -> str:
    """A size in a unit, in at most four characters; nothing for what is too small to be shown so."""
    shown = size / scale
    if shown < 0.005:
        return ""
    return f"{shown:.{0 if scale == 1 or shown >= 99.95 else 1 if shown >= 9.995 else 2}f}"


def draw_matrix(
    axes: Axes, senders: Sequence[int], receivers: Sequence[int], sent: Mapping[tuple[int, int], int], colours: Colours
) -> None:
    """Bytes by (sender, receiver), with the sums of rows and columns; where both are the same, the bytes stay on the rank."""
    most = max(sent.values(), default=1)
    sums = loads(crossings(sent))
    scale, name = unit(max((*sums[0].values(), *sums[1].values()), default=most))
    fits = max(len(senders), len(receivers)) <= 16
    row, column = ({rank: place for place, rank in enumerate(ranks)} for ranks in (senders, receivers))
    font = min(9.0, 110 / max(len(receivers), 1))
    shades = {pair: STAYS if pair[0] == pair[1] else to_hex(SHADES(size / most)) for pair, size in sent.items()}
    grid = [[to_rgb(shades.get((sender, receiver), PALE)) for receiver in receivers] for sender in senders]
    axes.imshow(grid, extent=(0, len(receivers), len(senders), 0), aspect="auto", interpolation="nearest")
    for pair, shade in shades.items() if fits else ():
        middle = column[pair[1]] + 0.5, row[pair[0]] + 0.5
        _number(axes, middle, brief(sent[pair], scale), font, ink(shade))
    _frame(axes, senders, receivers, colours)
    if fits:
        right, below = 1.06 * len(column), 1.045 * len(row)
        for rank, place in row.items():
            _number(axes, (right, place + 0.5), brief(sums[0][rank], scale), font, DARK)
        for rank, place in column.items():
            _number(axes, (place + 0.5, below), brief(sums[1][rank], scale), font, DARK)
        _number(axes, (right, below), "sum", font, DARK)
    stays = ", grey stays on the rank" if len(crossings(sent)) < len(sent) else ""
    title = f"Who sends how much to whom, in {name}\nrows send, columns receive{stays}"
    axes.set_title(title, fontsize=10, pad=PAD, linespacing=1.5)


def crossings(sent: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """What goes from one rank to another."""
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
        for place in range(rows + 1):
            axes.axhline(place, color="white", linewidth=1)
        for place in range(columns + 1):
            axes.axvline(place, color="white", linewidth=1)
    for place, rank in enumerate(senders):
        disc(axes, (-13 / SIDE * columns, place + 0.5), rank, colours, min(21.0, 0.84 * SIDE / rows))
    for place, rank in enumerate(receivers):
        disc(axes, (place + 0.5, -13 / SIDE * rows), rank, colours, min(21.0, 0.84 * SIDE / columns))
