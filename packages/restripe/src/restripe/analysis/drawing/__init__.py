"""Pictures of moves. They need the extra `plot`.

`figure` makes and saves pictures, `maps` draws the ranks that hold each part, `matrix` the bytes between ranks. In all of them a
disc stands for a rank, and a rank has one colour.
"""

from restripe.analysis.drawing.figure import draw_model, draw_pair

__all__ = ["draw_model", "draw_pair"]
