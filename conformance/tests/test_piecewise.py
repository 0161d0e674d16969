"""What is drawn of strided and segmented shards: legal cases, what lags first, and every class of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from reshard_conformance.cases import Case, read_placement
from reshard_conformance.contract import Level, Profile
from reshard_conformance.coverage import Coverage
from reshard_conformance.generator import Space
from reshard_conformance.oracle import expect_legal
from reshard_conformance.piecewise import segmented, strided
from reshard_conformance.search import AIMS, MARGIN, limits

Strategy: TypeAlias = Callable[..., st.SearchStrategy[tuple[Case]]]
PROFILES = [(Profile.STRIDED, strided, "SS"), (Profile.SEGMENTED, segmented, "SG")]
LEVELS = (Level.L2, Level.L3)


def names(profile: Profile) -> list[str]:
    return [kind.name for kind in Coverage(Level.L3, (8,)).of(profile)]


def kinds(case: Case) -> set[str]:
    return {read_placement(text).kind for text in case.src.placements + case.dst.placements}


def drawn(strategy: st.SearchStrategy[tuple[Case]], number: int, examples: int) -> list[Case]:
    found: list[Case] = []

    @seed(number)
    @limits(examples)
    @given(strategy)
    def take(script: tuple[Case]) -> None:
        found.extend(script)

    take()
    return found


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
    for case in drawn(strategy(Space(), full=True), 2, 40):
        assert set(case.src.ranks) == set(case.dst.ranks) == set(range(case.world_size)), (profile, kind)


@pytest.mark.parametrize(("profile", "strategy", "kind"), PROFILES)
@pytest.mark.parametrize("top", [3, 8])
def test_a_goal_is_met_most_of_the_time(profile: Profile, strategy: Strategy, kind: str, top: int) -> None:
    for aim in Coverage(Level.L3, (top,)).of(profile):
        counted = Coverage(Level.L3, (top,))
        for case in drawn(strategy(Space((top,)), (aim.name,)), 1, 60):
            counted.add(case)
        assert counted.share(aim) >= 0.5, (aim.name, kind)


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
    for turn in range(8):
        wanted: Sequence[str] = counted.lagging(MARGIN, profile)[:AIMS] if turn else ()
        for case in drawn(strategy(Space(sizes, level), wanted), turn, 40):
            counted.add(case)
    assert counted.of(profile), kind
    assert counted.lagging(1.0, profile) == ()


def test_fsdp_over_tensor_parallelism_is_drawn_as_it_is() -> None:
    """Beside much else: a factor that is the size of the mesh dim whose shard follows."""
    found = drawn(strided(Space()), 3, 300)
    sides = [side for case in found for side in (case.src, case.dst)]
    alike = [
        side
        for side in sides
        for size, first, later in zip(side.mesh_shape[1:], side.placements[:-1], side.placements[1:], strict=True)
        if first.startswith("SS") and later.startswith("S(") and read_placement(first).factor == size > 1
    ]
    assert len(alike) > 10
