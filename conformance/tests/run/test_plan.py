"""What a run plays: everything that is claimed, the same each time, and a fresh tenth."""

from __future__ import annotations

import pytest

from reshard_conformance.contract import Level, Profile
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.run.plan import EFFORTS, NCCL_LAYOUTS, WORLD_SIZES, Chunk, plan_chunks, playable_properties

WORLDS = {"sim": WORLD_SIZES["sim"], "gloo": WORLD_SIZES["gloo"]}
ALL = tuple(Profile)


def examples(chunks: list[Chunk]) -> int:
    return sum(chunk.rounds * chunk.examples for chunk in chunks)


@pytest.mark.parametrize("effort", EFFORTS)
def test_the_fixed_part_does_not_depend_on_the_seed(effort: str) -> None:
    one, other = (plan_chunks(WORLDS, ALL, Level.L3, effort, seed) for seed in (1, 2))
    fixed = [chunk for chunk in one if not chunk.fresh]
    assert fixed == [chunk for chunk in other if not chunk.fresh]
    assert {chunk.seed for chunk in one if chunk.fresh}.isdisjoint(chunk.seed for chunk in other if chunk.fresh)
    assert {chunk.seed for chunk in one if chunk.fresh}.isdisjoint(chunk.seed for chunk in fixed)


@pytest.mark.parametrize("world", WORLDS)
def test_the_fresh_part_is_a_tenth_of_each_property(world: str) -> None:
    chunks = [chunk for chunk in plan_chunks(WORLDS, ALL, Level.L3, "quick", 3) if chunk.world == world]
    for prop in PROPERTIES:
        fixed = examples([chunk for chunk in chunks if chunk.prop == prop and not chunk.fresh])
        fresh = examples([chunk for chunk in chunks if chunk.prop == prop and chunk.fresh])
        single = all(chunk.rounds * chunk.examples <= 1 for chunk in chunks if chunk.prop == prop)
        assert fresh == (0 if single else -(-fixed // 10)), prop  # what is played once has nothing fresh about it


def test_every_property_of_a_profile_is_played_in_sim_but_for_those_of_devices() -> None:
    for profile in set(Profile) - {Profile.STREAMS, Profile.LARGE}:
        chunks = plan_chunks({"sim": (8,)}, (profile,), Level.L3, "quick", 0)
        props = {name for name, prop in PROPERTIES.items() if prop.profile is profile and name != "soak"}
        assert {chunk.prop for chunk in chunks if not chunk.fresh and chunk.examples} == props


def test_more_effort_plays_more_of_the_same_kind() -> None:
    quick, full = (
        [c for c in plan_chunks(WORLDS, ALL, Level.L3, effort, 0) if not c.fresh] for effort in ("quick", "full")
    )
    assert examples(full) == EFFORTS["full"] * examples(quick)
    assert set(quick) <= set(full)
    assert len(set(full)) == len(full)


def test_no_seed_is_used_twice_for_a_property() -> None:
    chunks = [chunk for chunk in plan_chunks(WORLDS, ALL, Level.L3, "quick", 5) if chunk.examples]
    assert len({(chunk.world, chunk.prop, chunk.seed) for chunk in chunks}) == len(chunks)


def test_what_a_lower_level_lacks_is_left_out() -> None:
    lower = {prop.name for prop in playable_properties(ALL, Level.L2)}
    assert lower < {prop.name for prop in playable_properties(ALL, Level.L3)}
    assert "lazy-views" not in lower
    assert "exact" in lower


def on_devices(sizes: tuple[int, ...] = WORLD_SIZES["nccl"], layouts: int = NCCL_LAYOUTS) -> list[Chunk]:
    return list(plan_chunks({"nccl": sizes}, ALL, Level.L3, "quick", 5, layouts))


def scripts_of(chunks: list[Chunk], size: int) -> int:
    return examples([chunk for chunk in chunks if chunk.prop == "exact" and chunk.sizes == (size,) and not chunk.fresh])


def test_in_nccl_a_chunk_has_one_world_size_and_every_property_of_a_device_is_played() -> None:
    chunks = on_devices()
    assert {len(chunk.sizes) for chunk in chunks} == {1}
    assert {chunk.prop for chunk in chunks} == set(PROPERTIES) - {"models"}
    assert chunks[0].prop == "soak"


@pytest.mark.parametrize("layouts", [NCCL_LAYOUTS, 300])
def test_in_nccl_the_target_is_spread_over_all_sizes_most_of_it_over_small_worlds(layouts: int) -> None:
    chunks = on_devices(layouts=layouts)
    numbers = {size: scripts_of(chunks, size) for size in WORLD_SIZES["nccl"]}
    assert layouts <= sum(numbers.values()) < 1.6 * layouts
    assert all(numbers.values())
    assert sum(numbers[size] for size in (2, 3, 4)) > sum(numbers.values()) / 2
    fresh = examples([chunk for chunk in chunks if chunk.fresh])
    assert layouts / 10 <= fresh < layouts / 10 + 3


def test_in_nccl_one_size_gets_the_whole_target() -> None:
    assert scripts_of(on_devices((2,)), 2) >= NCCL_LAYOUTS
    assert {chunk.sizes for chunk in on_devices((8,))} == {(8,)}
