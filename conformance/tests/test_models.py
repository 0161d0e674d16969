"""The tables of models and mappings, and every parameter class of every mapping played on simulated ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from reshard_conformance import registry
from reshard_conformance.cases import Case, Side, read_placement
from reshard_conformance.models import DENSE, EXPERTS, MAPPINGS, Fleet, Mapping, Spread, cases
from reshard_conformance.worlds.sim import SimWorld

BY_NAME = {mapping.name: mapping for mapping in MAPPINGS}

# What the ranks of both sides do with each class, said a second time: trainer -> generator, one placement a mesh dim.
TABLE = {
    "DP8 to TP8": {
        "R -> S(0)": ("q", "k", "v", "gate", "up"),
        "R -> S(1)": ("o", "down"),
        "R -> R": ("norm", "q and k norm"),
    },
    "TP2xDP4 to TP4xDP2": {
        "R S(0) -> R S(0)": ("q", "k", "v", "gate", "up"),
        "R S(1) -> R S(1)": ("o", "down"),
        "R R -> R R": ("norm", "q and k norm"),
    },
    "EP8xPP2 to TP8xDP2": {
        "S(0) -> R S(1)": ("gate", "up"),
        "S(0) -> R S(2)": ("down",),
        "R -> R S(0)": ("embedding", "q", "head"),
        "R -> R S(0) R": ("k", "v"),
        "R -> R S(1)": ("o",),
        "R -> R R": ("norm", "q and k norm", "router"),
    },
    "EP4xDP2 to TP4xEP1xDP2": {
        "R S(0) -> R S(1)": ("gate", "up"),
        "R S(0) -> R S(2)": ("down",),
        "R R -> R S(0)": ("embedding", "q", "head"),
        "R R -> R S(0) R": ("k", "v"),
        "R R -> R S(1)": ("o",),
        "R R -> R R": ("norm", "q and k norm", "router"),
    },
    "EP4xETP2 to EP8": {
        "S(0) S(1) -> S(0)": ("gate", "up"),
        "S(0) S(2) -> S(0)": ("down",),
        "R R -> R": ("embedding", "q", "k", "v", "o", "norm", "q and k norm", "router", "head"),
    },
}


@pytest.fixture(scope="module")
def world() -> Iterator[SimWorld]:
    sim = SimWorld(registry.load)
    yield sim
    sim.close()


def case_of(mapping: str, parameter: str) -> Case:
    name = f"{mapping}: {parameter}"
    return next(case for case in cases(BY_NAME[mapping]) if case.name == name)


def rests(shape: tuple[int, ...], side: Side) -> list[int]:
    """What is left over at each cut of the side; all 0 where its shards are even."""
    lengths, found = list(shape), []
    for text, parts in zip(side.placements, side.mesh_shape, strict=True):
        placement = read_placement(text)
        if placement.kind == "S":
            found.append(lengths[placement.dim] % parts)
            lengths[placement.dim] //= parts
    return found


def test_dense_model_has_the_size_that_is_published_for_it() -> None:
    assert DENSE.tensors == 36 * 11 == 396
    assert f"{2 * DENSE.numel / 1e9:.2f} GB" == "7.27 GB"


def test_mixture_of_experts_has_the_size_that_is_published_for_it() -> None:
    assert EXPERTS.tensors == 48 * 12 + 3
    assert EXPERTS.numel == 30_532_122_624


def test_every_class_of_every_mapping_is_a_case_and_twice_where_two_stages_have_it() -> None:
    found = {mapping.name: len(list(cases(mapping))) for mapping in MAPPINGS}
    assert found == {
        "DP8 to TP8": 9,
        "TP2xDP4 to TP4xDP2": 9,
        "EP8xPP2 to TP8xDP2": 2 * 10 + 2,
        "EP4xDP2 to TP4xEP1xDP2": 12,
        "EP4xETP2 to EP8": 12,
    }


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: mapping.name)
def test_placements_are_those_of_the_table(mapping: Mapping) -> None:
    wanted = {name: way for way, names in TABLE[mapping.name].items() for name in names}
    found = {
        case.name.removeprefix(f"{mapping.name}: ").partition(", stage")[0]: " ".join(
            (*case.src.placements, "->", *case.dst.placements)
        )
        for case in cases(mapping)
    }
    assert found == wanted


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: mapping.name)
def test_shards_stay_even_when_every_dim_is_16_times_smaller(mapping: Mapping) -> None:
    for case in cases(mapping):
        assert not any(rests(case.shape, case.src) + rests(case.shape, case.dst)), case.name
        assert min(case.shape) >= 8, case.name


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: mapping.name)
def test_trainer_ranks_come_before_generator_ranks_and_one_stage_trains(mapping: Mapping) -> None:
    stage = mapping.trainer.size // mapping.trainer.stages
    for case in cases(mapping):
        first = case.src.ranks[0]
        assert first % stage == 0, case.name
        assert case.src.ranks == tuple(range(first, first + stage)), case.name
        assert case.dst.ranks == tuple(range(mapping.trainer.size, mapping.world_size)), case.name


def test_embedding_is_in_the_first_stage_and_the_head_in_the_last() -> None:
    assert case_of("EP8xPP2 to TP8xDP2", "embedding, stage 0").src.ranks == tuple(range(8))
    assert case_of("EP8xPP2 to TP8xDP2", "head, stage 1").src.ranks == tuple(range(8, 16))


def test_neighbours_share_a_key_value_head_where_ranks_outnumber_heads() -> None:
    case = case_of("EP8xPP2 to TP8xDP2", "k, stage 1")
    assert case.shape == (512 // 16, 2048 // 16)
    first, second = (16, 17), (18, 19)
    assert case.dst.mesh[0][:2] == (first, second)
    assert case.dst.placements == ("R", "S(0)", "R")


def test_experts_are_dealt_out_and_cut() -> None:
    case = case_of("EP4xETP2 to EP8", "down")
    assert case.src == Side(((0, 1), (2, 3), (4, 5), (6, 7)), ("S(0)", "S(2)"))
    assert case.dst == Side(tuple(range(8, 16)), ("S(0)",))
    assert case.shape == (8, 128, 48)


def test_a_scale_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"4B dense q: \(4096, 2560\) is not divisible by 3"):
        list(cases(MAPPINGS[0], scale=3))


def test_a_scale_of_1_gives_the_model_as_it_is() -> None:
    shapes = {case.shape for case in cases(MAPPINGS[0], scale=1)}
    assert shapes == {parameter.shape for parameter in DENSE.parameters}


def test_a_mapping_of_unknown_parameters_is_refused() -> None:
    stranger = Fleet((8,), {"experts": Spread((8,), ("S(0)",))})
    with pytest.raises(ValueError, match="4B dense has no parameters 'experts'"):
        replace(MAPPINGS[0], trainer=stranger)


def test_a_mesh_that_does_not_fill_its_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fill a stage of 8 ranks"):
        Fleet((8,), {"q": Spread((4,), ("S(0)",))})


@pytest.mark.requirement("RS-EXACT-1", "RS-LAYOUT-2", "RS-LAYOUT-3")
@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: mapping.name)
@pytest.mark.parametrize("implementation", ["restripe", "golden"])
def test_every_parameter_arrives(world: SimWorld, implementation: str, mapping: Mapping) -> None:
    with world.open(mapping.world_size, implementation) as session:
        for case in cases(mapping):
            outcome = session.play(case)
            assert outcome.verdict == "pass", (case.name, outcome.faults)
