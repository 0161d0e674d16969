"""Coverage classes and the geometry behind them, against torch and by example."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reshard_conformance.case.files import Case, Side
from reshard_conformance.case.geometry import Box, Geometry, SideGeometry, chunk_intervals, is_contiguous
from reshard_conformance.contract import Level, Profile
from reshard_conformance.generate.cases import Space, cases
from reshard_conformance.generate.coverage import CLASSES, Coverage, case_level
from reshard_conformance.judge.oracle import mesh_coordinate, torch_chunk

SPEC = Path(__file__).parents[3] / "docs" / "spec" / "coverage.md"
SHARDED = Side((0, 1), ("S(0)",))
WHOLE = Side((2,), ("R",))
BY_NAME = {kind.name: kind for kind in CLASSES}


def case(
    shape: tuple[int, ...], src: Side = SHARDED, dst: Side = WHOLE, *, size: int = 3, dtype: str = "float32"
) -> Case:
    return Case(size, shape, dtype, src, dst)


@given(st.integers(0, 40), st.integers(1, 9))
def test_chunks_are_those_of_torch(size: int, parts: int) -> None:
    sizes = [(high - low) for low, high in chunk_intervals((0, size), parts)]
    torch_sizes = [piece.numel() for piece in torch.arange(size).chunk(parts)]
    assert sizes[: len(torch_sizes)] == torch_sizes
    assert sum(sizes) == size
    assert len(sizes) == parts


@given(cases(Space()))
def test_every_rank_has_the_box_that_torch_chunk_leaves(drawn: Case) -> None:
    whole = torch.arange(math.prod(drawn.shape)).reshape(drawn.shape)
    for side in (drawn.src, drawn.dst):
        geometry = SideGeometry(side, drawn.shape)
        for rank in side.ranks:
            shard, coordinate = whole, mesh_coordinate(side, rank)
            for dim, parts, index in zip(geometry.dims, side.mesh_shape, coordinate or (), strict=True):
                shard = shard if dim is None else torch_chunk(shard, parts, dim, index)
            box = geometry.boxes[rank]
            assert torch.equal(whole[tuple(slice(low, high) for low, high in box)], shard)


@given(cases(Space()))
def test_the_shards_tile_the_tensor_and_are_held_by_as_many_ranks_each(drawn: Case) -> None:
    for side in (drawn.src, drawn.dst):
        geometry = SideGeometry(side, drawn.shape)
        shards = list(geometry.shards)
        assert sum(math.prod(high - low for low, high in shard) for shard in shards) == math.prod(drawn.shape)
        assert len(shards) * geometry.replicas == len(side.ranks)
        assert set(geometry.boxes.values()) == set(shards)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Box, Box]:
    parent = tuple((0, size) for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    lows = [draw(st.integers(0, high - 1)) for _, high in parent]
    return tuple((low, draw(st.integers(low + 1, high))) for low, (_, high) in zip(lows, parent, strict=True)), parent


@given(boxes())
def test_a_box_is_contiguous_where_its_view_in_torch_is(pair: tuple[Box, Box]) -> None:
    box, parent = pair
    whole = torch.zeros([high for _, high in parent])
    view = whole[tuple(slice(low, high) for low, high in box)]
    assert is_contiguous(box, parent) == view.is_contiguous()


@given(cases(Space()))
def test_a_side_is_strided_where_a_rank_has_a_non_contiguous_tensor(drawn: Case) -> None:
    from reshard_conformance.judge.inputs import make_inputs
    from reshard_conformance.judge.oracle import Truth

    truth = Truth(drawn, 0)
    for number, side in enumerate((drawn.src, drawn.dst)):
        buffers = [make_inputs(drawn, truth, rank)[number].buffer for rank in side.ranks]
        strided = any(buffer is not None and not buffer.tensor.is_contiguous() for buffer in buffers)
        computed = SideGeometry(side, drawn.shape).is_strided
        # of a mixed side, the widest shard may be a contiguous one
        assert computed == strided or (computed and side.memory == "mixed")


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("uneven on a sharded dim", case((3,)), case((4,))),
        ("an empty shard", case((1, 4)), case((0, 4))),
        (
            "several mesh dims on one tensor dim",
            case((8,), Side(((0, 1), (2, 3)), ("S(0)", "S(-1)")), size=4),
            case((8, 8), Side(((0, 1), (2, 3)), ("S(0)", "S(1)")), size=4),
        ),
        ("mesh of 2 dims", case((4,), Side(((0, 1),), ("R", "R"))), case((4,))),
        ("mesh of 3 dims", case((4,), Side((((0,),),), ("R", "R", "R"))), case((4,), Side(((0,),), ("R", "R")))),
        ("ranks not ascending", case((4,), Side((1, 0), ("S(0)",))), case((4,))),
        ("meshes disjoint", case((4,)), case((4,), dst=Side((1,), ("R",)))),
        ("meshes equal", case((4,), dst=Side((1, 0), ("R",))), case((4,))),
        ("meshes overlapping", case((4,), dst=Side((1,), ("R",))), case((4,), dst=Side((1, 0), ("R",)))),
        ("idle ranks", case((4,), size=4), case((4,))),
        ("source replicated", case((4,), Side((0, 1), ("R",))), case((4,), Side(((0,),), ("R", "R")))),
        ("destination replicated", case((4,), dst=Side((1, 2), ("R",))), case((4,))),
        ("tensor of 0 dims", case((), Side((0,), ("R",))), case((1,))),
        ("tensor of 4 or more dims", case((2, 1, 1, 1)), case((2, 1, 1))),
        ("a dim of size 0", case((2, 0)), case((2, 1))),
        ("a dim of size 1", case((2, 1)), case((2, 2))),
        (
            "non-contiguous source",
            case((4, 4), Side((0,), ("R",), "transposed")),
            case((4,), Side((0,), ("R",), "transposed")),
        ),
        (
            "non-contiguous destination",
            case((4, 1), dst=Side((2,), ("R",), "sliced")),
            case((1, 4), dst=Side((2,), ("R",), "sliced")),
        ),
        ("dtype outside NCCL's own", case((2,), dtype="bool"), case((2,), dtype="uint64")),
        ("negative shard dim", case((2,), Side((0, 1), ("S(-1)",))), case((2,))),
        ("strided source", case((4,), Side((0, 1), ("SS(0,2)",))), case((4,), dst=Side((2,), ("SS(0,2)",)))),
        ("strided destination", case((4,), dst=Side((2,), ("SS(0,2)",))), case((4,), Side((0, 1), ("SS(0,2)",)))),
        (
            "a strided shard of several runs",
            case((4,), Side((0, 1), ("SS(0,2)",))),
            case((4,), Side(((0,), (1,)), ("S(0)", "SS(0,2)"))),  # the runs of one rank touch
        ),
        ("uneven strided shards", case((5,), Side((0, 1), ("SS(0,2)",))), case((8,), Side((0, 1), ("SS(0,2)",)))),
        ("an empty strided shard", case((2,), Side((0, 1), ("SS(0,2)",))), case((3,), Side((0, 1), ("SS(0,2)",)))),
        (
            "a strided dim cut again",
            case((8,), Side(((0, 1),), ("SS(0,2)", "S(-1)"))),
            case((8,), Side(((0, 1),), ("S(0)", "SS(0,2)"))),
        ),
        (
            "several strided mesh dims on one tensor dim",
            case((8,), Side(((0, 1),), ("SS(0,2)", "SS(-1,3)"))),
            case((8, 8), Side(((0, 1),), ("SS(0,2)", "SS(-1,3)"))),
        ),
        ("a split factor beyond the dim", case((4,), Side((0,), ("SS(0,5)",))), case((4,), Side((0,), ("SS(0,4)",)))),
        ("segmented source", case((4,), Side((0,), ("SG(0,[4])",))), case((4,), dst=Side((2,), ("SG(0,[4])",)))),
        ("segmented destination", case((4,), dst=Side((2,), ("SG(0,[4])",))), case((4,), Side((0,), ("SG(0,[4])",)))),
        (
            "a segmented shard of several runs",
            case((6,), Side((0, 1), ("SG(0,[4,2])",))),
            case((6,), Side((0, 1), ("SG(0,[1,5])",)), size=2),  # 0, 1, 2, 3 and 4, 5
        ),
        (
            "a segment that its mesh dim does not divide",
            case((6,), Side((0, 1), ("SG(0,[3,3])",))),
            case((6,), Side((0, 1), ("SG(0,[4,2])",))),
        ),
        ("an empty segment", case((4,), Side((0,), ("SG(0,[4,0])",))), case((0,))),
        (
            "an empty segmented shard",
            case((2,), Side((0, 1), ("SG(0,[1,1])",))),
            case((3,), Side((0, 1), ("SG(0,[1,2])",))),
        ),
        (
            "a segmented dim cut again",
            case((8,), Side(((0, 1),), ("SG(0,[6,2])", "S(0)"))),
            case((8, 8), Side(((0, 1),), ("SG(0,[6,2])", "S(1)"))),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_class_contains_one_case_and_not_the_other(name: str, inside: Case, outside: Case) -> None:
    assert BY_NAME[name].contains(Geometry(inside))
    assert not BY_NAME[name].contains(Geometry(outside))


ROWS = Side((0, 1), ("S(0)",))
COLUMNS = Side((0, 1), ("S(1)",))
PAIR = Side((2, 3), ("R",))


@pytest.mark.parametrize(
    ("shape", "src", "dst", "striped"),
    [
        ((4, 6), ROWS, PAIR, True),
        ((5, 6), ROWS, PAIR, False),  # rows do not divide by the replicas
        ((4, 6), COLUMNS, PAIR, True),  # a source shard is sent whole columns wide, which is contiguous there
        ((4, 6), COLUMNS, Side(((2, 3), (4, 5)), ("S(1)", "R")), True),
        (
            (4, 6),
            Side((0, 1, 6), ("S(1)",)),
            Side(((2, 3), (4, 5)), ("S(1)", "R")),
            False,
        ),  # contiguous on neither side
        ((2, 6), Side((0, 1, 6), ("S(1)",)), Side(((2, 3), (4, 5)), ("S(1)", "R")), True),  # single rows always are
        ((4, 6), ROWS, Side((2, 3), ("S(0)",)), False),  # no replicas
        ((), Side((0,), ("R",)), PAIR, False),  # no dim to split
        ((0, 6), ROWS, PAIR, False),  # nothing to stripe
        ((2, 6), ROWS, Side(((2, 3), (4, 5), (6, 7)), ("S(0)", "R")), False),  # one row over two replicas
    ],
)
def test_is_striped_follows_upstreams_rule(shape: tuple[int, ...], src: Side, dst: Side, striped: bool) -> None:
    assert Geometry(Case(8, shape, "float32", src, dst)).is_striped == striped


def test_every_class_has_its_floor_of_the_design() -> None:
    floors = [round(100 * kind.floor) for kind in CLASSES if kind.profile is Profile.CORE]
    assert floors == [25, 8, 15, 30, 10, 15, 20, 10, 15, 10, 25, 25, 6, 1, 5, 3, 10, 15, 15, 10, 5]


@pytest.mark.skipif(not SPEC.is_file(), reason="the specification is in the repository, not in the sdist")
def test_the_specification_lists_the_same_classes() -> None:
    rows = re.findall(r"^\| (.+) \| (\d+) % \|$", SPEC.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(kind.name, f"{100 * kind.floor:.0f}") for kind in CLASSES]


@pytest.mark.parametrize(
    ("claimed", "sizes", "name", "admitted"),
    [
        (Level.L3, (2,), "uneven on a sharded dim", True),
        (Level.L1, (8,), "uneven on a sharded dim", False),
        (Level.L2, (2,), "uneven on a sharded dim", False),  # the other mesh needs a rank of its own
        (Level.L2, (3,), "uneven on a sharded dim", True),
        (Level.L3, (1,), "meshes disjoint", False),
        (Level.L0, (2,), "meshes disjoint", True),
        (Level.L2, (8,), "meshes equal", False),
        (Level.L3, (1,), "mesh of 3 dims", True),
        (Level.L0, (8,), "mesh of 3 dims", False),
    ],
)
def test_level_and_world_sizes_admit_classes(claimed: Level, sizes: tuple[int, ...], name: str, admitted: bool) -> None:
    assert BY_NAME[name].is_admitted(claimed, sizes) == admitted


@pytest.mark.parametrize(
    ("case_", "expected"),
    [
        (case((4,)), Level.L0),
        (case((4,), Side(((0, 1),), ("R", "S(0)"))), Level.L1),
        (case((4,), Side((1, 0), ("S(0)",))), Level.L1),
        (case((3,)), Level.L2),
        (case((4, 0)), Level.L2),
        (case((4,), size=4), Level.L3),
        (case((4,), dst=Side((1,), ("R",)), size=2), Level.L3),
        (case((4,), dtype="int16"), Level.L3),
        (case((4,), Side((0, 1), ("S(0)",), "sliced")), Level.L3),
    ],
)
def test_the_level_that_a_case_needs(case_: Case, expected: Level) -> None:
    assert case_level(case_) is expected


def test_coverage_counts_merges_and_names_lagging_classes() -> None:
    run, part = Coverage(Level.L0, (3,)), Coverage(Level.L0, (3,))
    for _ in range(3):
        run.add(case((4,)))
    part.add(case((1, 4), Side((0, 1), ("R",))))
    run.merge(part.total, part.counts)
    assert run.total == 4
    assert run.counts["meshes disjoint"] == 4
    assert run.share(BY_NAME["source replicated"]) == 0.25
    assert "meshes disjoint" not in run.lagging()
    assert run.lagging()[0] in {"destination replicated", "destination striped", "tensor of 0 dims"}
    assert "source replicated" not in run.lagging()
    assert "source replicated" in run.lagging(1.1)
    assert "uneven on a sharded dim" not in run.lagging()  # L0 has none


def test_an_empty_run_lags_everywhere() -> None:
    empty = Coverage(Level.L3, (8,))
    for profile in (Profile.CORE, Profile.STRIDED, Profile.SEGMENTED):
        assert set(empty.lagging(1.0, profile)) == {kind.name for kind in CLASSES if kind.profile is profile}
    assert set(empty.lagging(1.0, Profile.BATCH)) == set(empty.lagging())  # it has none of its own
