"""Where degrees of parallelism put each tensor."""

from __future__ import annotations

import pytest

from restripe.analysis.mapping import Degrees, moves
from restripe.analysis.models import Parameter, parameters
from restripe.analysis.spelling import SpellingError, told, written


def placed(model: str, train: str, generate: str) -> dict[str, tuple[str, str]]:
    """The layouts of each class of parameters of a model's last layer."""
    found = moves(parameters(model), Degrees.of(train), Degrees.of(generate))
    return {move.kind: (written(move.src), written(move.dst)) for move in found}


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
    assert placed("qwen3-4b", "DP8", "TP8") == {
        "q": ("8:R", "8:S(0)"),
        "k, v": ("8:R", "8:S(0)"),
        "o": ("8:R", "8:S(1)"),
        "norms": ("8:R", "8:R"),
        "gate, up": ("8:R", "8:S(0)"),
        "down": ("8:R", "8:S(1)"),
    }
    found = placed("qwen3-4b", "TP2xDP4", "TP4xDP2")
    assert found["q"] == ("4x2:R,S(0)", "2x4:R,S(0)")
    assert found["norms"] == ("4x2:R,R", "2x4:R,R")


def test_experts_on_pipeline_stages() -> None:
    found = placed("qwen3-30b-a3b", "EP8xPP2", "TP8xDP2")
    assert found["expert gate, up"] == ("8:S(0)", "2x8:R,S(1)")
    assert found["expert down"] == ("8:S(0)", "2x8:R,S(2)")
    assert found["k, v"] == ("8:R", "2x4x2:R,S(0),R")
    assert found["q"] == found["embedding, head"] == ("8:R", "2x8:R,S(0)")
    assert found["router"] == ("8:R", "2x8:R,R")


def test_experts_in_one_stage() -> None:
    found = placed("qwen3-30b-a3b", "EP4xDP2", "TP4xEP1xDP2")
    assert found["expert gate, up"] == ("2x4:R,S(0)", "2x4:R,S(1)")
    assert found["k, v"] == ("2x4:R,R", "2x4:R,S(0)")
    found = placed("qwen3-30b-a3b", "EP4xETP2", "EP8")
    assert found["expert gate, up"] == ("4x2:S(0),S(1)", "8:S(0)")
    assert found["expert down"] == ("4x2:S(0),S(2)", "8:S(0)")
    assert found["q"] == ("8:R", "8:R")


def test_stages_hold_equal_shares_of_the_layers_and_the_generator_comes_after_them() -> None:
    found = moves(parameters("qwen3-30b-a3b"), Degrees.of("EP8xPP2"), Degrees.of("TP8xDP2"))
    stages = {move.name: told(move.src.mesh.ranks) for move in found}
    assert stages["embedding"] == stages["layers.23.q"] == "0-7"
    assert stages["head"] == stages["layers.24.q"] == "8-15"
    assert {told(move.dst.mesh.ranks) for move in found} == {"16-31"}


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
