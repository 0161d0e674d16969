"""Drawn cases with strided and segmented shards: legal, aimed at lagging classes, and of every class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reshard_conformance.case.files import Case, read_placement
from reshard_conformance.contract import Level, Profile
from reshard_conformance.generate.cases import Space
from reshard_conformance.generate.coverage import Coverage
from reshard_conformance.generate.piecewise import segmented_cases, strided_cases
from reshard_conformance.judge.oracle import expect_legal
from reshard_conformance.search.bench import LAG_MARGIN, MAX_GOALS

from ..helpers.draws import draw_examples

Strategy: TypeAlias = Callable[..., st.SearchStrategy[tuple[Case]]]
PROFILES = [(Profile.STRIDED, strided_cases, "SS"), (Profile.SEGMENTED, segmented_cases, "SG")]
LEVELS = (Level.L2, Level.L3)


def names(profile: Profile) -> list[str]:
    return [kind.name for kind in Coverage(Level.L3, (8,)).classes_of(profile)]


def kinds(case: Case) -> set[str]:
    return {read_placement(text).kind for text in case.src.placements + case.dst.placements}


@pytest.mark.parametrize(("profile", "strategy", "kind"), PROFILES)
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), level=st.sampled_from(LEVELS), few=st.sampled_from((None, 7)))
def test_cases_are_legal_and_of_their_kind(
    profile: Profile, strategy: Strategy, kind: str, data: st.DataObject, level: Level, few: int | None
) -> None:
    wanted = data.draw(st.lists(st.sampled_from(names(profile)), max_size=3))
    (case,) = data.draw(strategy(Space((2, 3, 4, 8), level, few=few), wanted))
    expect_legal(case)
    assert kind in kinds(case)
    assert kinds(case) <= {"R", "S", kind}


@pytest.mark.parametrize(("profile", "strategy", "kind"), PROFILES)
def test_a_full_case_has_all_ranks_on_both_sides(profile: Profile, strategy: Strategy, kind: str) -> None:
    for (case,) in draw_examples(strategy(Space(), full=True), 2, 40):
        assert set(case.src.ranks) == set(case.dst.ranks) == set(range(case.world_size)), (profile, kind)


@pytest.mark.parametrize(("profile", "strategy", "kind"), PROFILES)
@pytest.mark.parametrize("top", [3, 8])
def test_a_goal_is_met_most_of_the_time(profile: Profile, strategy: Strategy, kind: str, top: int) -> None:
    for kind_class in Coverage(Level.L3, (top,)).classes_of(profile):
        counted = Coverage(Level.L3, (top,))
        for (case,) in draw_examples(strategy(Space((top,)), (kind_class.name,)), 1, 60):
            counted.add(case)
        assert counted.share(kind_class) >= 0.5, (kind_class.name, kind)


@pytest.mark.parametrize(("profile", "strategy", "kind"), PROFILES)
@pytest.mark.parametrize(
    ("level", "sizes"),
    [
        *((level, sizes) for level in LEVELS for sizes in ((2,), (3,), tuple(range(2, 9)))),
        (Level.L3, (1,)),
        (Level.L3, (32,)),
    ],
)
def test_steering_reaches_every_floor_that_level_and_sizes_admit(
    profile: Profile, strategy: Strategy, kind: str, level: Level, sizes: tuple[int, ...]
) -> None:
    counted = Coverage(level, sizes)
    for number in range(8):
        wanted: Sequence[str] = counted.lagging(LAG_MARGIN, profile)[:MAX_GOALS] if number else ()
        for (case,) in draw_examples(strategy(Space(sizes, level), wanted), number, 40):
            counted.add(case)
    assert counted.classes_of(profile), kind
    assert counted.lagging(1.0, profile) == ()


def test_fsdp_over_tensor_parallelism_is_drawn() -> None:
    """There the split factor is the size of the mesh dim whose plain shard follows."""
    all_cases = draw_examples(strided_cases(Space()), 3, 300)
    sides = [side for (case,) in all_cases for side in (case.src, case.dst)]
    fsdp_sides = [
        side
        for side in sides
        for size, strided, plain in zip(side.mesh_shape[1:], side.placements[:-1], side.placements[1:], strict=True)
        if strided.startswith("SS") and plain.startswith("S(") and read_placement(strided).factor == size > 1
    ]
    assert len(fsdp_sides) > 10
