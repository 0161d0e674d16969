"""Pictures of moves: the ranks that hold each part, and the bytes between ranks."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from restripe.analysis.drawing import draw_model, draw_pair
from restripe.analysis.mapping import Move
from restripe.analysis.spelling import SpellingError, layout
from restripe.analysis.traffic import plan_all_ranks


def drawn(path: Path, src: str, dst: str, *shape: int, ranks: str | None = None) -> list[str]:
    """Draw a move, and return the texts in the picture."""
    source = layout(src)
    move = Move("w", "", shape, torch.bfloat16, source, layout(dst, None, ranks, first=len(source.mesh.ranks)))
    draw_pair(move, plan_all_ranks(move.src, move.dst, shape), path, "a caption")
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))


def test_both_maps_and_the_matrix(tmp_path: Path) -> None:
    texts = drawn(tmp_path / "move.svg", "4:S(0)", "2x2:R,S(1)", 4096, 2560)
    assert "w: 4096 x 2560, bfloat16" in texts
    assert "4:S(0) on ranks 0-3" in texts
    assert "2x2:R,S(1) on ranks 4-7" in texts
    assert "Who sends how much to whom, in MB" in texts
    count = Counter(texts)
    assert all(count[str(rank)] == 2 for rank in (1, 2, 3, 4, 5, 6, 7))  # once on its map, once beside the matrix
    assert count["2.62"] == 8
    assert count["5.24"] == 8  # the sums of four rows and four columns
    assert "dim 1: 2,560 elements" in texts


@pytest.mark.parametrize(
    ("dst", "shape", "meaning"),
    [
        ("2x2:R,S(1)", (8, 8), "joined ranks need the same: each receives a part of it, then they exchange"),
        ("2:R", (), "joined ranks need the same: one receives it and passes it on"),
        ("4:S(0)", (8, 8), ""),
    ],
)
def test_joined_ranks_are_explained(tmp_path: Path, dst: str, shape: tuple[int, ...], meaning: str) -> None:
    texts = "\n".join(drawn(tmp_path / "move.svg", "2:R", dst, *shape))
    assert ("joined" in texts) == bool(meaning)
    assert meaning in texts


def test_bytes_that_stay_are_explained(tmp_path: Path) -> None:
    assert "rows send, columns receive, grey stays on the rank" in drawn(
        tmp_path / "move.svg", "2:S(0)", "2:S(1)", 8, 8, ranks="0-1"
    )


@pytest.mark.parametrize(
    ("src", "dst", "shape"),
    [
        ("2:R", "2:R", ()),
        ("2:S(0)", "3:S(0)", (7,)),
        ("3:S(1)", "2x2:S(0),R", (10, 7)),
        ("2x2:S(0),S(2)", "4:S(1)", (8, 8, 8)),
        ("2:S(0)", "2:S(0)", (0, 4)),
        ("2:S(0)", "2:S(0)", (1, 4)),
    ],
)
def test_every_kind_of_move_is_drawn(tmp_path: Path, src: str, dst: str, shape: tuple[int, ...]) -> None:
    assert "a caption" in drawn(tmp_path / "move.svg", src, dst, *shape)


def test_pictures_are_small_and_the_same_each_time(tmp_path: Path) -> None:
    picture, again = (tmp_path / name for name in ("picture.svg", "again.svg"))
    drawn(picture, "8:S(0)", "2x4:R,S(1)", 4096, 2560)
    drawn(again, "8:S(0)", "2x4:R,S(1)", 4096, 2560)
    assert picture.read_bytes() == again.read_bytes()
    assert picture.stat().st_size < 100_000


def test_a_model_s_matrix(tmp_path: Path) -> None:
    draw_model({(0, 2): 3_000_000, (1, 3): 1_000_000}, tmp_path / "model.png", "a model", "a caption")
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpellingError, match=r"expected a picture's name to end in .svg or .png, got .*move.pdf'"):
        drawn(tmp_path / "move.pdf", "2:S(0)", "2:S(1)", 8, 8)
