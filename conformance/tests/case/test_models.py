"""The tables of models and mappings, and every parameter class of every mapping played on simulated ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from reshard_conformance import registry
from reshard_conformance.case.files import Case, Side, read_placement
from reshard_conformance.case.models import DENSE, EXPERTS, MAPPINGS, Deployment, Mapping, MeshLayout, mapping_cases
from reshard_conformance.worlds.sim import SimWorld

BY_NAME = {mapping.name: mapping for mapping in MAPPINGS}

# The layouts of every class, written down a second time: trainer -> generator, one placement a mesh dim.
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
    return next(case for case in mapping_cases(BY_NAME[mapping]) if case.name == name)


def remainders(shape: tuple[int, ...], side: Side) -> list[int]:
    """Return the remainder of each division of a tensor dim by a mesh dim; all 0 where the side's shards are even."""
    lengths, remainders = list(shape), []
    for text, parts in zip(side.placements, side.mesh_shape, strict=True):
        placement = read_placement(text)
        if placement.kind == "S":
            remainders.append(lengths[placement.dim] % parts)
            lengths[placement.dim] //= parts
    return remainders


def test_dense_model_has_its_published_size() -> None:
    assert DENSE.tensors == 36 * 11 == 396
    assert f"{2 * DENSE.numel / 1e9:.2f} GB" == "7.27 GB"


def test_mixture_of_experts_has_its_published_size() -> None:
    assert EXPERTS.tensors == 48 * 12 + 3
    assert EXPERTS.numel == 30_532_122_624


def test_every_class_of_every_mapping_is_a_case_for_each_stage_that_has_it() -> None:
    counts = {mapping.name: len(list(mapping_cases(mapping))) for mapping in MAPPINGS}
    assert counts == {
        "DP8 to TP8": 9,
        "TP2xDP4 to TP4xDP2": 9,
        "EP8xPP2 to TP8xDP2": 2 * 10 + 2,
        "EP4xDP2 to TP4xEP1xDP2": 12,
        "EP4xETP2 to EP8": 12,
    }


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: mapping.name)
def test_placements_are_those_of_the_table(mapping: Mapping) -> None:
    expected = {name: layouts for layouts, names in TABLE[mapping.name].items() for name in names}
    actual = {
        case.name.removeprefix(f"{mapping.name}: ").partition(", stage")[0]: " ".join(
            (*case.src.placements, "->", *case.dst.placements)
        )
        for case in mapping_cases(mapping)
    }
    assert actual == expected


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: mapping.name)
def test_shards_stay_even_when_every_dim_is_16_times_smaller(mapping: Mapping) -> None:
    for case in mapping_cases(mapping):
        assert not any(remainders(case.shape, case.src) + remainders(case.shape, case.dst)), case.name
        assert min(case.shape) >= 8, case.name


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: mapping.name)
def test_trainer_ranks_come_before_generator_ranks_and_one_stage_trains(mapping: Mapping) -> None:
    stage = mapping.trainer.size // mapping.trainer.stages
    for case in mapping_cases(mapping):
        first_rank = case.src.ranks[0]
        assert first_rank % stage == 0, case.name
        assert case.src.ranks == tuple(range(first_rank, first_rank + stage)), case.name
        assert case.dst.ranks == tuple(range(mapping.trainer.size, mapping.world_size)), case.name


def test_embedding_is_in_the_first_stage_and_the_head_in_the_last() -> None:
    assert case_of("EP8xPP2 to TP8xDP2", "embedding, stage 0").src.ranks == tuple(range(8))
    assert case_of("EP8xPP2 to TP8xDP2", "head, stage 1").src.ranks == tuple(range(8, 16))


def test_neighbours_share_a_key_value_head_where_ranks_outnumber_heads() -> None:
    case = case_of("EP8xPP2 to TP8xDP2", "k, stage 1")
    assert case.shape == (512 // 16, 2048 // 16)
    assert case.dst.mesh[0][:2] == ((16, 17), (18, 19))
    assert case.dst.placements == ("R", "S(0)", "R")


def test_experts_have_expert_and_tensor_parallelism() -> None:
    case = case_of("EP4xETP2 to EP8", "down")
    assert case.src == Side(((0, 1), (2, 3), (4, 5), (6, 7)), ("S(0)", "S(2)"))
    assert case.dst == Side(tuple(range(8, 16)), ("S(0)",))
    assert case.shape == (8, 128, 48)


def test_a_scale_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"4B dense q: \(4096, 2560\) is not divisible by 3"):
        list(mapping_cases(MAPPINGS[0], scale=3))


def test_a_scale_of_1_gives_the_model_as_it_is() -> None:
    shapes = {case.shape for case in mapping_cases(MAPPINGS[0], scale=1)}
    assert shapes == {parameter.shape for parameter in DENSE.parameters}


def test_a_mapping_of_unknown_parameters_is_refused() -> None:
    other_model = Deployment((8,), {"experts": MeshLayout((8,), ("S(0)",))})
    with pytest.raises(ValueError, match="4B dense has no parameters 'experts'"):
        replace(MAPPINGS[0], trainer=other_model)


def test_a_mesh_that_does_not_fill_its_stage_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fill a stage of 8 ranks"):
        Deployment((8,), {"q": MeshLayout((4,), ("S(0)",))})


@pytest.mark.requirement("RS-EXACT-1", "RS-LAYOUT-2", "RS-LAYOUT-3")
@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: mapping.name)
@pytest.mark.parametrize("implementation", ["restripe", "golden"])
def test_every_parameter_arrives(world: SimWorld, implementation: str, mapping: Mapping) -> None:
    with world.open(mapping.world_size, implementation) as session:
        for case in mapping_cases(mapping):
            outcome = session.play(case)
            assert outcome.verdict == "pass", (case.name, outcome.faults)
