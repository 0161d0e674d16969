"""Steps as JSON: every step is read back as it was written, and errors name what does not follow the format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard_conformance.case.files import (
    DTYPES,
    MEMORIES,
    Batch,
    Case,
    CaseError,
    Clear,
    Destroy,
    Fault,
    Placement,
    Side,
    Step,
    StreamScenario,
    dump,
    load,
    packaged_files,
    parse,
    read_placement,
    save,
)
from reshard_conformance.case.steps import STREAM_USAGES

GOOD: dict[str, Any] = {
    "format": 1,
    "world_size": 4,
    "shape": [10],
    "dtype": "float32",
    "src": {"mesh": [0, 1, 2, 3], "placements": ["S(0)"]},
    "dst": {"mesh": [[0, 1], [2, 3]], "placements": ["R", "S(0)"], "memory": "sliced"},
    "expect": "equal",
}
FAULTY = GOOD | {"expect": "error:missing", "fault": {"side": "src", "ranks": [1], "what": "absent"}}

texts = st.text(max_size=5)
numbers = st.integers(0, 3)
placements = st.sampled_from(["R", "S(0)", "S(-1)", "SS(1,2)", "SG(-1,[3,0])", "P(sum)"])


@st.composite
def sides(draw: st.DrawFn) -> Side:
    width = draw(st.integers(1, 3))
    rows = st.lists(st.integers(-1, 9), min_size=width, max_size=width).map(tuple)
    mesh = draw(rows | st.lists(rows, min_size=1, max_size=3).map(tuple))
    return Side(mesh, tuple(draw(st.lists(placements, max_size=3))), draw(st.sampled_from(MEMORIES[:4])))


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    what = draw(st.sampled_from(["absent", "local_shape", "global_shape", "placements", "dtype", "device", "alias"]))
    values: dict[str, st.SearchStrategy[Any]] = {
        "local_shape": st.lists(numbers).map(tuple),
        "global_shape": st.lists(numbers).map(tuple),
        "placements": st.lists(placements).map(tuple),
        "dtype": st.sampled_from(DTYPES),
    }
    ranks = draw(st.lists(numbers, min_size=1, unique=True))
    return Fault(draw(st.sampled_from(["src", "dst"])), tuple(ranks), what, draw(values.get(what, st.none())))


@st.composite
def cases(draw: st.DrawFn, group: int | None = None) -> Case:
    fault = draw(st.none() | faults())
    kinds = st.sampled_from(["error:shape", "error:layout"])
    return Case(
        world_size=4,
        shape=tuple(draw(st.lists(numbers, max_size=3))),
        dtype=draw(st.sampled_from(DTYPES)),
        src=draw(sides()),
        dst=draw(sides()),
        expect=draw(kinds if fault else st.just("equal") | kinds),
        name=draw(texts),
        why=draw(texts),
        source=draw(texts),
        fault=fault,
        group=draw(numbers) if group is None else group,
    )


clears = st.builds(Clear, st.none() | st.lists(numbers, min_size=1, unique=True).map(tuple), st.booleans(), numbers)
batches = st.builds(Batch, st.lists(cases(group=1), min_size=1, max_size=3).map(tuple))
accepted = cases().map(lambda case: replace(case, expect="equal", fault=None))
scenarios = st.builds(
    lambda calls, usage: StreamScenario(tuple(case for case, _ in calls), tuple(stream for _, stream in calls), usage),
    st.lists(st.tuples(accepted, numbers), min_size=1, max_size=3),
    st.sampled_from(STREAM_USAGES),
)
steps: st.SearchStrategy[Step] = cases() | clears | batches | scenarios | st.builds(Destroy, numbers, st.booleans())


@settings(deadline=None, derandomize=True)
@given(steps)
def test_a_dumped_step_is_read_back(step: Step) -> None:
    assert parse(dump(step)) == step


@pytest.mark.parametrize("path", packaged_files(), ids=lambda path: path.stem)
def test_every_packaged_file_round_trips(path: Path, tmp_path: Path) -> None:
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    scripts = load(path)
    steps = [step for script in scripts for step in script]
    for line, step in zip(lines, steps, strict=True):
        assert json.loads(dump(step)) == json.loads(line)
        assert parse(dump(step)) == step
    save(tmp_path / path.name, steps)
    assert load(tmp_path / path.name) == scripts


def test_steps_know_their_cases_and_groups() -> None:
    case, other = parse(json.dumps(GOOD)), parse(json.dumps(GOOD | {"group": 2}))
    assert isinstance(case, Case)
    assert isinstance(other, Case)
    scenario = StreamScenario((other, case, other), (1, 2, 1), "given")
    steps: list[Step] = [case, other, Batch((other, other)), scenario, Clear(group=3), Destroy(1)]
    assert [step.cases for step in steps] == [(case,), (other,), (other, other), scenario.cases, (), ()]
    assert [step.groups for step in steps] == [(0,), (2,), (2,), (2, 0), (3,), (1,)]
    assert [step.group for step in steps] == [step.groups[0] for step in steps]


def test_files_of_every_kind_are_packaged() -> None:
    folders = {path.parent.name for path in packaged_files()}
    assert folders >= {"cases", "sequences", "faults", "strided", "segmented"}


def test_a_sequence_is_one_script_and_other_lines_are_many(tmp_path: Path) -> None:
    script = [parse(json.dumps(GOOD)), Clear((0, 1)), Destroy(0)]
    save(tmp_path / "seq_a.jsonl", script)
    assert load(tmp_path / "seq_a.jsonl") == [tuple(script)]
    save(tmp_path / "many.jsonl", script[:1] * 2)
    assert load(tmp_path / "many.jsonl") == [(script[0],), (script[0],)]


def changed(base: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with the value at a path of keys; the value `...` takes the key away."""
    head, _, rest = path.partition(".")
    fields = dict(base)
    if rest:
        fields[head] = changed(fields[head], rest, value)
    elif value is ...:
        del fields[head]
    else:
        fields[head] = value
    return fields


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("format", 2, "expected 1, got 2"),
        ("format", True, "expected 1, got True"),
        ("world_size", 0, "an integer of at least 1"),
        ("world_size", True, "an integer of at least 1"),
        ("world_size", "4", "an integer of at least 1"),
        ("world_size", ..., "this key to be given"),
        ("shape", [3, -1], "sizes of at least 0"),
        ("shape", 3, "sizes of at least 0"),
        ("shape", [2.0], "sizes of at least 0"),
        ("dtype", "float31", "one of float64"),
        ("dtype", ["float32"], "one of float64"),
        ("src", [0], "a JSON object"),
        ("src.mesh", [], "nested lists of ranks"),
        ("src.mesh", 3, "nested lists of ranks"),
        ("src.mesh", [[0], [1, 2]], "nested lists of ranks"),
        ("src.mesh", [[0], 1], "nested lists of ranks"),
        ("src.mesh", [0, True], "nested lists of ranks"),
        ("src.mesh", [{}], "nested lists of ranks"),
        ("src.mesh", ..., "this key to be given"),
        ("src.placements", ["S"], "a list of R, S(d)"),
        ("src.placements", ["SS(0,0)"], "a list of R, S(d)"),
        ("src.placements", ["SG(0,[])"], "a list of R, S(d)"),
        ("src.placements", ["SG(0,[2,-1])"], "a list of R, S(d)"),
        ("src.placements", ["P(mean)"], "a list of R, S(d)"),
        ("src.placements", "R", "a list of R, S(d)"),
        ("src.placements", [0], "a list of R, S(d)"),
        ("src.memory", "sparse", "one of contiguous, transposed, sliced"),
        ("dst.memory", None, "a value, or no such key"),
        ("dst.colour", 1, "one of the keys mesh"),
        ("expect", "maybe", "one of equal, error:placement"),
        ("expect", "error:unsupported", "one of equal, error:placement"),
        ("expect", ..., "this key to be given"),
        ("name", 3, "a text"),
        ("why", None, "a value, or no such key"),
        ("group", -1, "an integer of at least 0"),
        ("op", "wipe", "one of clear, batch, destroy, flow"),
        ("coulour", 1, "one of the keys format"),
    ],
)
def test_a_malformed_case_names_file_field_and_what_was_expected(path: str, value: object, expected: str) -> None:
    with pytest.raises(CaseError) as caught:
        parse(json.dumps(changed(GOOD, path, value)), "bad.json, line 3")
    assert str(caught.value).startswith("bad.json, line 3: ")
    assert f"field '{path}': expected" in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("fault.side", "middle", "one of src, dst"),
        ("fault.ranks", [], "distinct ranks, not empty"),
        ("fault.ranks", [1, 1], "distinct ranks, not empty"),
        ("fault.ranks", [[1]], "distinct ranks, not empty"),
        ("fault.ranks", [4], "ranks below the world size 4"),
        ("fault.what", "gone", "one of absent"),
        ("fault.what", "local_shape", "sizes of at least 0"),
        ("fault.what", "dtype", "one of float64"),
        ("fault.value", [1], "no such key beside a fault 'absent'"),
        ("fault.value", None, "a value, or no such key"),
        ("fault", None, "a value, or no such key"),
        ("expect", "equal", "error:KIND beside a fault"),
    ],
)
def test_a_malformed_fault_names_its_field(path: str, value: object, expected: str) -> None:
    with pytest.raises(CaseError) as caught:
        parse(json.dumps(changed(FAULTY, path, value)))
    field = "fault.value" if path == "fault.what" and value != "gone" else path
    assert f"field '{field}': expected" in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("step", "field"),
    [
        ({"op": "clear", "ranks": [0, 0]}, "ranks"),
        ({"op": "clear", "ranks": [], "all_groups": False}, "ranks"),
        ({"op": "clear", "all_groups": 1}, "all_groups"),
        ({"op": "clear", "name": "a"}, "name"),
        ({"op": "destroy"}, "group"),
        ({"op": "destroy", "group": None}, "group"),
        ({"op": "batch", "cases": []}, "cases"),
        ({"op": "batch", "cases": GOOD}, "cases"),
        ({"op": "batch", "cases": [{"format": 1, "op": "clear"}]}, "cases[0]"),
        ({"op": "batch", "cases": [GOOD, GOOD | {"world_size": 5}]}, "cases[1].world_size"),
        ({"op": "batch", "cases": [GOOD, GOOD | {"group": 1}]}, "cases[1].group"),
        ({"op": "batch", "cases": [GOOD, GOOD | {"dtype": "x"}]}, "cases[1].dtype"),
        ({"op": "flow", "cases": [], "streams": [], "scene": "given"}, "streams"),
        ({"op": "flow", "cases": [GOOD], "streams": [1, 2], "scene": "given"}, "streams"),
        ({"op": "flow", "cases": [GOOD], "streams": [-1], "scene": "given"}, "streams"),
        ({"op": "flow", "cases": [GOOD], "streams": [1], "scene": "hidden"}, "scene"),
        ({"op": "flow", "cases": [GOOD], "streams": [1]}, "scene"),
        (
            {"op": "flow", "cases": [GOOD, GOOD | {"world_size": 5}], "streams": [1, 1], "scene": "given"},
            "cases[1].world_size",
        ),
        ({"op": "flow", "cases": [FAULTY], "streams": [1], "scene": "given"}, "cases[0].expect"),
    ],
)
def test_a_malformed_step_names_its_field(step: dict[str, Any], field: str) -> None:
    with pytest.raises(CaseError, match=r"field '" + field.replace("[", r"\[").replace("]", r"\]") + "'"):
        parse(json.dumps({"format": 1} | step))


@pytest.mark.parametrize("text", ["", "[1]", "3", "{", '{"format": 1, "format": 1}'])
def test_text_without_one_object_is_refused(text: str) -> None:
    with pytest.raises(CaseError, match=r"^a\.json: field"):
        parse(text, "a.json")


@pytest.mark.parametrize(
    ("second", "field"),
    [(GOOD | {"world_size": 5}, "world_size"), ({"format": 1, "op": "clear", "ranks": [4]}, "ranks")],
)
def test_a_sequence_fits_one_set_of_ranks(tmp_path: Path, second: dict[str, Any], field: str) -> None:
    path = tmp_path / "seq_x.jsonl"
    path.write_text(json.dumps(GOOD) + "\n\n" + json.dumps(second) + "\n")
    with pytest.raises(CaseError, match=rf"seq_x\.jsonl, line 3: field '{field}'"):
        load(path)


@pytest.mark.parametrize("text", ["", '{"format": 1, "op": "clear"}'])
def test_a_sequence_without_a_case_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "seq_x.jsonl"
    path.write_text(text)
    with pytest.raises(CaseError, match=r"seq_x\.jsonl.*at least one case or batch"):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"gone\.json: field '\(whole file\)': expected a readable"):
        load(tmp_path / "gone.json")


def test_a_side_knows_its_ranks_row_major() -> None:
    side = Side(((3, 1), (0, 2), (5, 4)), ("R", "S(0)"))
    assert side.ranks == (3, 1, 0, 2, 5, 4)
    assert side.mesh_shape == (3, 2)


def test_placements_are_read() -> None:
    texts = ("R", "S(-2)", "SS(1,3)", "SG(-1,[4,0,12])", "P(sum)")
    assert [read_placement(text) for text in texts] == [
        Placement("R"),
        Placement("S", dim=-2),
        Placement("SS", dim=1, factor=3),
        Placement("SG", dim=-1, sizes=(4, 0, 12)),
        Placement("P", op="sum"),
    ]


def test_dtype_name_and_group_are_not_part_of_the_layout() -> None:
    case = parse(json.dumps(GOOD))
    other = parse(json.dumps(GOOD | {"dtype": "int8", "name": "x", "group": 1}))
    moved = parse(json.dumps(GOOD | {"shape": [11]}))
    assert isinstance(case, Case)
    assert isinstance(other, Case)
    assert isinstance(moved, Case)
    assert case.layout == other.layout != moved.layout
