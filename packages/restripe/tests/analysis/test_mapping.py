"""The layouts that degrees of parallelism give to tensors."""

from __future__ import annotations

import pytest

from restripe.analysis.mapping import Degrees, moves
from restripe.analysis.models import Parameter, parameters
from restripe.analysis.spelling import SpellingError, format_layout, format_ranks


def layouts_by_kind(model: str, train: str, generate: str) -> dict[str, tuple[str, str]]:
    """Return source and destination of each class of parameters in a model's last layer."""
    tensors = moves(parameters(model), Degrees.of(train), Degrees.of(generate))
    return {move.kind: (format_layout(move.src), format_layout(move.dst)) for move in tensors}


def test_degrees() -> None:
    assert Degrees.of("EP8xPP2") == Degrees(ep=8, pp=2)
    assert Degrees.of("TP4xEP1xDP2").ranks == 8
    assert Degrees.of("PP16xEP16").stage == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("EP8,PP2", "expected PP, DP, EP, ETP or TP with a number, each once and joined by x, such as EP8xPP2"),
        ("TP2xTP4", "each once"),
        ("", "such as EP8xPP2, got ''"),
        ("TP0", "expected degrees of 1 or more"),
        ("TP2xETP2", "expected TP or ETP, not both"),
    ],
)
def test_degrees_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpellingError, match=message):
        Degrees.of(text)


def test_dense() -> None:
    assert layouts_by_kind("qwen3-4b", "DP8", "TP8") == {
        "q": ("8:R", "8:S(0)"),
        "k, v": ("8:R", "8:S(0)"),
        "o": ("8:R", "8:S(1)"),
        "norms": ("8:R", "8:R"),
        "gate, up": ("8:R", "8:S(0)"),
        "down": ("8:R", "8:S(1)"),
    }
    layouts = layouts_by_kind("qwen3-4b", "TP2xDP4", "TP4xDP2")
    assert layouts["q"] == ("4x2:R,S(0)", "2x4:R,S(0)")
    assert layouts["norms"] == ("4x2:R,R", "2x4:R,R")


def test_experts_on_pipeline_stages() -> None:
    layouts = layouts_by_kind("qwen3-30b-a3b", "EP8xPP2", "TP8xDP2")
    assert layouts["expert gate, up"] == ("8:S(0)", "2x8:R,S(1)")
    assert layouts["expert down"] == ("8:S(0)", "2x8:R,S(2)")
    assert layouts["k, v"] == ("8:R", "2x4x2:R,S(0),R")
    assert layouts["q"] == layouts["embedding, head"] == ("8:R", "2x8:R,S(0)")
    assert layouts["router"] == ("8:R", "2x8:R,R")


def test_experts_in_one_stage() -> None:
    layouts = layouts_by_kind("qwen3-30b-a3b", "EP4xDP2", "TP4xEP1xDP2")
    assert layouts["expert gate, up"] == ("2x4:R,S(0)", "2x4:R,S(1)")
    assert layouts["k, v"] == ("2x4:R,R", "2x4:R,S(0)")
    layouts = layouts_by_kind("qwen3-30b-a3b", "EP4xETP2", "EP8")
    assert layouts["expert gate, up"] == ("4x2:S(0),S(1)", "8:S(0)")
    assert layouts["expert down"] == ("4x2:S(0),S(2)", "8:S(0)")
    assert layouts["q"] == ("8:R", "8:R")


def test_stages_hold_equal_shares_of_the_layers_and_the_generator_comes_after_them() -> None:
    tensors = moves(parameters("qwen3-30b-a3b"), Degrees.of("EP8xPP2"), Degrees.of("TP8xDP2"))
    stages = {move.name: format_ranks(move.src.mesh.ranks) for move in tensors}
    assert stages["embedding"] == stages["layers.23.q"] == "0-7"
    assert stages["head"] == stages["layers.24.q"] == "8-15"
    assert {format_ranks(move.dst.mesh.ranks) for move in tensors} == {"16-31"}


def test_mappings_that_do_not_fit() -> None:
    heads = [Parameter("k", "k", (6, 4), 0, split=0, ways=3)]
    for degree in (2, 4):
        with pytest.raises(SpellingError, match=f"k has 3 heads, which do not spread evenly over TP{degree}"):
            moves(heads, Degrees(), Degrees(tp=degree))
    with pytest.raises(SpellingError, match="expected at most 1 pipeline stages, one a layer, got PP2"):
        moves(heads, Degrees(pp=2), Degrees())


def test_meshes_know_their_hosts_where_these_are_given() -> None:
    (move, *_) = moves(parameters("qwen3-4b"), Degrees.of("DP3"), Degrees.of("TP2"), 2)
    assert (move.src.mesh.hosts, move.dst.mesh.hosts) == ((0, 0, 1), (1, 2))
