"""Whole pictures of a tensor's or a model's move, saved as SVG or PNG."""

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
from restripe.analysis.spelling import SpellingError, format_layout, format_ranks
from restripe.analysis.traffic import fan_out_groups, numel, written_regions
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
    """Draw both ownership maps of a tensor and the matrix of its traffic.

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
        sources = {rank: plan.source for rank, plan in world.items() if plan.source is not None}
        destinations = {rank: plan.destination for rank, plan in world.items() if plan.destination is not None}
        colours = Colours(world)
        view = View.of(move.shape, [*sources.values(), *destinations.values()])
        own = [Piece(rank, rank, region) for rank, region in sources.items()] if move.src.replicas == 1 else []
        draw_map(left, view, sources, own, colours)
        draw_map(middle, view, destinations, _provided_pieces(world), colours)
        draw_matrix(right, sorted(sources), sorted(destinations), _sent_bytes(move, world), colours)
        left.set_title(
            f"Before: which ranks hold which part\n{format_layout(move.src)} on ranks {format_ranks(move.src.mesh.ranks)}",
            **TITLE,
        )
        middle.set_title(
            f"After, coloured by where it comes from\n{format_layout(move.dst)} on ranks {format_ranks(move.dst.mesh.ranks)}",
            **TITLE,
        )
        shape = " x ".join(map(str, move.shape)) or "0 dims"
        figure.suptitle(
            f"{move.name}: {shape}, {str(move.dtype).removeprefix('torch.')}", fontsize=12, fontweight="bold", y=0.975
        )
        figure.text(0.5, 0.015, f"{caption}\n{_describe_joined_discs(world)}", ha="center", fontsize=9, linespacing=1.5)
        save_figure(figure, path)


def draw_model(sent: Mapping[tuple[int, int], int], path: Path, title: str, caption: str) -> None:
    """Draw the matrix of the traffic of many tensors, which is in bytes by (sender, receiver)."""
    with rc_context(STYLE):
        figure = Figure(figsize=(6.6, 6.6))
        axes = figure.subplots(gridspec_kw={"left": 0.1, "right": 0.9, "bottom": 0.12, "top": 0.8})
        senders, receivers = (sorted({pair[end] for pair in sent}) for end in (0, 1))
        draw_matrix(axes, senders, receivers, sent, Colours([*senders, *receivers]))
        figure.suptitle(title, fontsize=12, fontweight="bold", y=0.975)
        figure.text(0.5, 0.03, caption, ha="center", fontsize=9)
        save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure as SVG or PNG by the file's ending; equal figures give equal bytes.

    Raises:
        SpellingError: the file ends in neither .svg nor .png.
    """
    if path.suffix not in KINDS:
        raise SpellingError(f"expected a picture's name to end in {' or '.join(KINDS)}, got {str(path)!r}")
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)


def _describe_joined_discs(world: Mapping[int, RankPlan]) -> str:
    """Explain the lines that join discs; return an empty text where there are none."""
    groups = [[world[rank] for rank in members] for members in fan_out_groups(world) if len(members) > 1]
    if not groups:
        return ""
    shared = all(sum(bool(written_regions(plan)) for plan in group) > 1 for group in groups)
    meaning = "each receives a part of it, then they exchange" if shared else "one receives it and passes it on"
    return f"joined ranks need the same: {meaning}"


def _provided_pieces(world: Mapping[int, RankPlan]) -> list[Piece]:
    """Return the parts of the destination shards with the ranks that provide them."""
    copied = [Piece(rank, rank, region) for rank, plan in world.items() for region in plan.copies]
    received = [Piece(message.peer, rank, message.region) for rank, plan in world.items() for message in plan.receives]
    return [*copied, *received]


def _sent_bytes(move: Move, world: Mapping[int, RankPlan]) -> dict[tuple[int, int], int]:
    """Return bytes by (sender, receiver), local copies included."""
    width = move.dtype.itemsize
    sent = {(rank, rank): width * sum(map(numel, plan.copies)) for rank, plan in world.items() if plan.copies}
    for rank, plan in world.items():
        sent.update({(rank, message.peer): width * numel(message.region) for message in plan.sends})
    return sent
