"""Whole pictures, written as SVG or PNG by the file's ending."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from restripe.analysis.drawing.colours import Colours
from restripe.analysis.drawing.maps import Piece, View, draw_map
from restripe.analysis.drawing.matrix import PAD, draw_matrix
from restripe.analysis.mapping import Move
from restripe.analysis.spelling import SpellingError, told, written
from restripe.analysis.traffic import numel, rebuilding, writes
from restripe.planning.plan import RankPlan

KINDS = (".svg", ".png")
TITLE = {"fontsize": 10, "linespacing": 1.5, "pad": PAD}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans", "sans-serif"],  # matplotlib brings the first one along
    "svg.fonttype": "none",  # texts stay texts: small, and found by a search
    "svg.hashsalt": "restripe",
}


def draw_pair(move: Move, world: Mapping[int, RankPlan], path: Path, caption: str) -> None:
    """Both ownership maps of a tensor and the traffic between its ranks.

    Args:
        world: the plans of all ranks of both meshes.
        caption: a line below.

    Raises:
        SpellingError: the file ends in neither .svg nor .png.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(12.8, 5.3))
        grid = {"left": 0.055, "right": 0.965, "bottom": 0.225, "top": 0.78, "wspace": 0.24}
        left, middle, right = figure.subplots(1, 3, gridspec_kw=grid)
        held = {rank: each.source for rank, each in world.items() if each.source is not None}
        wanted = {rank: each.destination for rank, each in world.items() if each.destination is not None}
        colours = Colours(world)
        view = View.of(move.shape, [*held.values(), *wanted.values()])
        own = [Piece(rank, rank, region) for rank, region in held.items()] if move.src.replicas == 1 else []
        draw_map(left, view, held, own, colours)
        draw_map(middle, view, wanted, _provided(world), colours)
        draw_matrix(right, sorted(held), sorted(wanted), _sent(move, world), colours)
        left.set_title(
            f"Before: which ranks hold which part\n{written(move.src)} on ranks {told(move.src.mesh.ranks)}", **TITLE
        )
        middle.set_title(
            f"After, coloured by where it comes from\n{written(move.dst)} on ranks {told(move.dst.mesh.ranks)}", **TITLE
        )
        shape = " x ".join(map(str, move.shape)) or "0 dims"
        figure.suptitle(
            f"{move.name}: {shape}, {str(move.dtype).removeprefix('torch.')}", fontsize=12, fontweight="bold", y=0.975
        )
        figure.text(0.5, 0.015, f"{caption}\n{_joined(world)}", ha="center", fontsize=9, linespacing=1.5)
        save(figure, path)


def draw_model(sent: Mapping[tuple[int, int], int], path: Path, title: str, caption: str) -> None:
    """The traffic of many tensors: bytes by (sender, receiver)."""
    with rc_context(STYLE):
        figure = Figure(figsize=(6.6, 6.6))
        axes = figure.subplots(gridspec_kw={"left": 0.1, "right": 0.9, "bottom": 0.12, "top": 0.8})
        senders, receivers = (sorted({pair[end] for pair in sent}) for end in (0, 1))
        draw_matrix(axes, senders, receivers, sent, Colours([*senders, *receivers]))
        figure.suptitle(title, fontsize=12, fontweight="bold", y=0.975)
        figure.text(0.5, 0.03, caption, ha="center", fontsize=9)
        save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Write the figure, the same bytes each time."""
    if path.suffix not in KINDS:
        raise SpellingError(f"expected a picture's name to end in {' or '.join(KINDS)}, got {str(path)!r}")
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _joined(world: Mapping[int, RankPlan]) -> str:
    """What it means that discs are joined; nothing where none are."""
    groups = [[world[rank] for rank in members] for members in rebuilding(world) if len(members) > 1]
    if not groups:
        return ""
    shared = all(sum(bool(writes(each)) for each in group) > 1 for group in groups)
    how = "each receives a part of it, then they exchange" if shared else "one receives it and passes it on"
    return f"joined ranks need the same: {how}"


def _provided(world: Mapping[int, RankPlan]) -> list[Piece]:
    """Who provides which part of the destination shards."""
    copied = [Piece(rank, rank, region) for rank, each in world.items() for region in each.copies]
    return [*copied, *(Piece(one.peer, rank, one.region) for rank, each in world.items() for one in each.receives)]


def _sent(move: Move, world: Mapping[int, RankPlan]) -> dict[tuple[int, int], int]:
    """Bytes by (sender, receiver), local copies included."""
    width = move.dtype.itemsize
    found = {(rank, rank): width * sum(map(numel, each.copies)) for rank, each in world.items() if each.copies}
    for rank, each in world.items():
        found.update({(rank, one.peer): width * numel(one.region) for one in each.sends})
    return found
