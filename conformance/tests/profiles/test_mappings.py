"""The property that plays real models, on implementations that are right and wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from reshard_conformance import registry
from reshard_conformance.case.files import Case
from reshard_conformance.case.models import MAPPINGS, mapping_cases
from reshard_conformance.contract import Level
from reshard_conformance.generate.cases import Space
from reshard_conformance.generate.coverage import case_level
from reshard_conformance.implementations.golden import Golden
from reshard_conformance.profiles.mappings import PROPERTIES
from reshard_conformance.search.bench import Bench, Finding
from reshard_conformance.worlds.sim import SimWorld

(MODELS,) = PROPERTIES


class Forgetful(Golden):
    """Golden, but it leaves alone whatever has a destination mesh of 3 dims."""

    def reshard(self, *arguments: Any, **options: Any) -> None:
        if arguments[4].ndim < 3:
            super().reshard(*arguments, **options)


@pytest.fixture
def world() -> Iterator[SimWorld]:
    with closing(SimWorld(registry.load)) as sim:
        yield sim


def played(world: SimWorld, number: int, claimed: Level = Level.L3) -> int:
    with closing(Bench(world, Golden(), Space((2,), claimed))) as bench:
        MODELS.search(bench, number, 1, ())
        return bench.scripts


def test_each_seed_plays_one_mapping(world: SimWorld) -> None:
    wanted = [len(list(mapping_cases(mapping))) for mapping in MAPPINGS]
    assert [played(world, number) for number in (5, 1, 2, 8, 4)] == wanted


def test_a_lower_level_is_spared_what_is_beyond_it(world: SimWorld) -> None:
    within = [case for case in mapping_cases(MAPPINGS[2]) if case_level(case) <= Level.L1]
    assert played(world, 2, Level.L1) == len(within) < len(list(mapping_cases(MAPPINGS[2])))


def test_a_shard_left_alone_is_found_and_named(world: SimWorld) -> None:
    with closing(Bench(world, Forgetful(), Space((2,)))) as bench, pytest.raises(Finding) as found:
        MODELS.search(bench, 2, 1, ())
    (case, *_) = found.value.script
    assert isinstance(case, Case)
    assert case.name == "EP8xPP2 to TP8xDP2: k, stage 0"
    assert found.value.verdict == "fail"
