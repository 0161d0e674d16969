"""Pictures; they need the extra `plot`. `figure` makes and saves them, `maps` draws who owns what, `matrix` who sends how much.

The same everywhere: a disc is a rank, and one rank has one colour.
"""

from restripe.analysis.drawing.figure import draw_model, draw_pair

__all__ = ["draw_model", "draw_pair"]
