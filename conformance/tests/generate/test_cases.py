"""The cases that the generator draws: legal, of the claimed level, aimed at lagging classes, and repeatable by seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from reshard_conformance.case.files import DTYPES, Case, Side
from reshard_conformance.case.geometry import Geometry
from reshard_conformance.contract import Level
from reshard_conformance.generate.cases import Drawing, Space, batches, cases, scripts, view_cases
from reshard_conformance.generate.coverage import CLASSES, Coverage, case_level
from reshard_conformance.generate.meshes import renumber_ranks
from reshard_conformance.judge.oracle import expect_legal
from reshard_conformance.search.bench import LAG_MARGIN, MAX_GOALS

from ..helpers.draws import draw_examples

LEVELS = st.sampled_from(Level)
CASE = Case(5, (3, 4), "int8", Side((0, 4), ("S(0)",)), Side((3, 1, 0), ("R",)))


def space_at(claimed: Level, top: int = 8) -> Space:
    return Space(tuple(range(1 if claimed is Level.L3 else 2, top + 1)), claimed)


@settings(max_examples=300)
@given(st.data(), LEVELS)
def test_cases_are_legal_and_stay_at_their_level(data: st.DataObject, claimed: Level) -> None:
    wanted = data.draw(st.lists(st.sampled_from([kind.name for kind in CLASSES]), max_size=3))
    case = data.draw(cases(space_at(claimed), wanted))
    expect_legal(case)
    assert case_level(case) <= claimed


@given(st.data(), LEVELS)
def test_all_calls_of_a_script_fit_one_group_and_the_level(data: st.DataObject, claimed: Level) -> None:
    script = data.draw(scripts(space_at(claimed)))
    assert 1 <= len(script) <= 4
    for case in script:
        expect_legal(case)
        assert case.world_size == script[0].world_size
        assert case_level(case) <= claimed


@given(st.data(), LEVELS)
def test_batches_are_of_two_to_eight_cases_of_one_world(data: st.DataObject, claimed: Level) -> None:
    batch = data.draw(batches(space_at(claimed)))
    assert 2 <= len(batch) <= 8
    assert len({case.world_size for case in batch}) == 1
    assert all(case_level(case) <= claimed for case in batch)


@given(st.data())
def test_a_full_drawing_has_all_ranks_on_both_sides(data: st.DataObject) -> None:
    case = Drawing(data.draw, space_at(Level.L3), full=True).case()
    assert set(case.src.ranks) == set(case.dst.ranks) == set(range(case.world_size))


@given(view_cases(Space(), ("conjugate", "negative"), ("negative", "contiguous")))
def test_lazy_views_come_with_dtypes_that_have_them(script: tuple[Case, ...]) -> None:
    assert script[0].src.memory in {"conjugate", "negative"}
    expect_legal(script[0])


def test_one_seed_draws_the_same_and_another_does_not() -> None:
    strategy = scripts(Space(), ("idle ranks", "a dim of size 0"))
    assert draw_examples(strategy, 5, 60) == draw_examples(strategy, 5, 60)
    assert draw_examples(strategy, 5, 60) != draw_examples(strategy, 6, 60)


def test_every_size_dtype_memory_and_relation_is_drawn() -> None:
    all_cases = draw_examples(cases(Space()), 1, 1500)
    sides = [side for case in all_cases for side in (case.src, case.dst)]
    assert {case.world_size for case in all_cases} == set(range(1, 9))
    assert {len(side.mesh_shape) for side in sides} == {1, 2, 3}
    assert {len(case.shape) for case in all_cases} == set(range(6))
    assert {case.dtype for case in all_cases} == set(DTYPES)
    assert {side.memory for side in sides} == {"contiguous", "transposed", "sliced", "mixed"}
    assert {Geometry(case).relation for case in all_cases} == {"equal", "disjoint", "overlapping"}
    sizes = Counter(size for case in all_cases for size in case.shape)
    assert {0, 1, 2, 3, 5, 7, 11, 13} <= sizes.keys()


@pytest.mark.parametrize("claimed", Level)
@pytest.mark.parametrize("top", [3, 8])
def test_a_goal_is_met_most_of_the_time(claimed: Level, top: int) -> None:
    for kind in Coverage(claimed, space_at(claimed, top).sizes).classes:
        counted = Coverage(claimed, space_at(claimed, top).sizes)
        for case in draw_examples(cases(space_at(claimed, top), (kind.name,)), 1, 100):
            counted.add(case)
        assert counted.share(kind) >= max(0.4, kind.floor), kind.name


def draw_chunk(space: Space, number: int, rounds: int = 8, examples: int = 40) -> Coverage:
    """Return the coverage of a chunk as the suite draws it."""
    counted = Coverage(space.level, space.sizes)
    for part in range(rounds):
        wanted: Sequence[str] = counted.lagging(LAG_MARGIN)[:MAX_GOALS] if part else ()
        for script in draw_examples(scripts(space, wanted), number * rounds + part, examples):
            for case in script:
                counted.add(case)
    return counted


@pytest.mark.parametrize(
    ("claimed", "sizes"),
    [
        *((claimed, sizes) for claimed in Level for sizes in ((2,), (3,), (5,), tuple(range(2, 9)))),
        (Level.L3, (1,)),
        (Level.L3, (32,)),
    ],
)
def test_steering_reaches_every_floor_that_level_and_sizes_admit(claimed: Level, sizes: tuple[int, ...]) -> None:
    counted = Coverage(claimed, sizes)
    for number in range(3):
        part = draw_chunk(Space(sizes, claimed), number)
        counted.merge(part.total, part.counts)
    assert counted.lagging() == ()


def test_tensors_stay_small() -> None:
    sizes = []
    for case in draw_examples(cases(Space(elements=512)), 2, 500):
        count = 1
        for size in case.shape:
            count *= size
        sizes.append(count)
    assert sorted(sizes)[len(sizes) * 9 // 10] <= 512
    assert max(sizes) <= 512 * 64  # an even shape may have to be larger


def test_cases_shrink_to_something_small() -> None:
    smallest = find(cases(Space()), lambda case: not case.src.placements[0].startswith("R"))
    assert smallest.world_size <= 2
    assert len(smallest.shape) == 1
    assert smallest.dtype == "float32"
    assert smallest.src.memory == smallest.dst.memory == "contiguous"


@pytest.mark.parametrize(("sizes", "claimed"), [((), Level.L3), ((0,), Level.L3), ((1, 2), Level.L2)])
def test_a_space_without_cases_is_refused(sizes: tuple[int, ...], claimed: Level) -> None:
    with pytest.raises(ValueError, match=r"Space\.sizes: expected world sizes of at least"):
        Space(sizes, claimed)


def test_scripts_that_share_meshes_have_few_destinations_and_all_relations() -> None:
    free, shared = (draw_examples(scripts(Space((4,), few=few)), 1, 200) for few in (None, 5))
    several, few = ({script[0].dst.mesh for script in drawn_scripts} for drawn_scripts in (free, shared))
    assert 2 * len(few) < len(several)
    assert {Geometry(script[0]).relation for script in shared} == {"equal", "disjoint", "overlapping"}
    other = {script[0].dst.mesh for script in draw_examples(scripts(Space((4,), few=6)), 1, 200)}
    assert not other <= few


def test_ranks_are_renumbered_alike_in_all_cases_of_a_script() -> None:
    other = replace(CASE, src=CASE.dst, dst=CASE.src)
    renumbered, swapped = renumber_ranks((CASE, other), 5)
    assert (swapped.src, swapped.dst) == (renumbered.dst, renumbered.src)
    assert Geometry(renumbered).relation == Geometry(CASE).relation
    assert Geometry(renumbered).has_idle_rank == Geometry(CASE).has_idle_rank
    assert Geometry(renumbered).dst.is_ascending == Geometry(CASE).dst.is_ascending
