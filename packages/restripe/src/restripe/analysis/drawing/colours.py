"""The colour of each rank, and the disc that stands for a rank."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

Colour = tuple[float, float, float]
DARK, LIGHT, PALE = "#222222", "#ffffff", "#ececec"


class Colours:
    """The colours of ranks: evenly spaced over one colour map, in the order of the ranks."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks = sorted(set(ranks))
        last = max(len(self.ranks) - 1, 1)
        wheel = colormaps["turbo"]
        self._colours = {rank: to_rgb(wheel(0.06 + 0.86 * index / last)) for index, rank in enumerate(self.ranks)}

    def __getitem__(self, rank: int) -> Colour:
        return self._colours[rank]

    def tint(self, rank: int) -> Colour:
        """Return the rank's colour mixed with white, for areas: unlike transparency, it hides the areas below."""
        red, green, blue = (0.45 * part + 0.55 for part in self._colours[rank])
        return red, green, blue


def text_colour(colour: Colour | str) -> str:
    """Return black or white, whichever can be read on the colour."""
    red, green, blue = to_rgb(colour)
    return DARK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else LIGHT


def draw_disc(axes: Axes, at: tuple[float, float], rank: int, colours: Colours, size: float) -> None:
    """Draw a disc with the rank's number, `size` points wide; a disc below 9 points has no number."""
    axes.plot(*at, "o", ms=size, color=colours[rank], mec=DARK, mew=0.6, zorder=5, clip_on=False)
    if size >= 9:
        font = size * (0.55 if rank < 100 else 0.4)
        label = axes.text(*at, str(rank), fontsize=font, color=text_colour(colours[rank]), fontweight="bold", zorder=6)
        label.set(ha="center", va="center_baseline")
