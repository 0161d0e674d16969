"""Spellings on the command line are read, and layouts are written back as they were read."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from restripe.analysis import spelling
from restripe.analysis.spelling import SpellingError
from restripe.layout.mesh import Layout, Mesh
from restripe.layout.segmented import Segmented

from ..helpers.drawings import Drawn, drawings


def test_the_forms_of_a_layout() -> None:
    expected = Layout(Mesh((2, 4), tuple(range(8, 16))), (Replicate(), Shard(0)))
    assert spelling.layout("2x4:R,S(0)", None, "8-15") == expected
    assert spelling.layout("2x4:R, S0", first=8) == expected
    assert spelling.layout("R,S(0)", "2x4", "8-11,12,13-15") == expected


@settings(max_examples=300, deadline=None, derandomize=True)
@given(drawings())
def test_a_layout_is_read_as_it_was_written(drawn: Drawn) -> None:
    for layout in drawn.layouts():
        assert spelling.layout(spelling.format_layout(layout), None, spelling.format_ranks(layout.mesh.ranks)) == layout


def test_strided_and_segmented_shards() -> None:
    layout = spelling.layout("2x2x2:SS(-1,4), S(1),SG(0, [6,2,2])")
    assert layout.placements == (_StridedShard(-1, split_factor=4), Shard(1), Segmented(0, (6, 2, 2)))
    assert spelling.format_layout(layout) == "2x2x2:SS(-1,4),S(1),SG(0,[6,2,2])"


def test_shapes_and_dtypes() -> None:
    assert spelling.shape("4096x2560") == (4096, 2560)
    assert spelling.shape("0") == (0,)
    assert spelling.shape("scalar") == ()
    assert spelling.dtype("bfloat16") is torch.bfloat16


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (
            spelling.shape,
            "4096*2560",
            r"expected sizes joined by x, such as 4096x2560, or the word scalar, got '4096\*2560'",
        ),
        (spelling.dtype, "Tensor", "expected torch's name of a dtype, such as bfloat16 or float8_e4m3fn, got 'Tensor'"),
        (spelling.ranks, "7-3", "expected ranks such as 8-15 or 0,2,4-7, got '7-3'"),
        (spelling.placements, "R,P", r"expected R \(replicates\), S\(d\) or Sd .*, got 'P'"),
        (spelling.layout, "R,S(0)", r"expected a mesh and its placements, such as 2x4:R,S\(0\), got 'R,S\(0\)'"),
    ],
)
def test_what_cannot_be_read_is_answered_with_what_to_write(read: object, text: str, message: str) -> None:
    with pytest.raises(SpellingError, match=message):
        read(text)  # type: ignore[operator]


def test_a_mesh_is_given_once() -> None:
    with pytest.raises(SpellingError, match="and a mesh '2x4' besides"):
        spelling.layout("2x4:R,S(0)", "2x4")


def test_ranks_fill_hosts_in_order() -> None:
    assert spelling.layout("4:R").mesh.hosts is None
    assert spelling.layout("4:R", None, "7,0,8-9", host=4).mesh.hosts == (1, 0, 2, 2)
