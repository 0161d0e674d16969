"""The benchmark of planning measures what it says; how long that takes is nobody's business here."""

from __future__ import annotations

from rich.console import Console

from restripe.bench.planning import SHAPE, lookups, measure, moves, table
from restripe.group.registry import states


def test_every_move_and_every_look_up_is_timed() -> None:
    found = measure(8)
    assert found.ranks == 8
    assert found.messages == {"S(0) to S(0)": 1, "S(0) to R,S(0)": 1, "S(0) to S(1)": 4}
    assert set(found.plan_ms) == set(found.messages)
    assert set(found.lookup_us) == {"restripe.Mesh", "DeviceMesh", "refit"}
    assert all(time > 0 for time in (*found.plan_ms.values(), *found.lookup_us.values()))
    assert found.told()["plan_ms"] == found.plan_ms


def test_halves_of_any_even_world() -> None:
    for ranks in (2, 6, 64):
        for src, dst in moves(ranks).values():
            assert src.mesh.ranks == tuple(range(ranks // 2))
            assert set(dst.mesh.ranks) <= set(range(ranks // 2, ranks))
    assert len(SHAPE) == 2


def test_a_look_up_is_a_warm_call() -> None:
    known = {state.number for state in states()}
    for name, call in lookups(8):
        (calls,) = [state for state in states() if state.number not in known]
        before = calls.calls
        call()
        assert calls.calls == before + 1, name
        known.add(calls.number)


def test_a_line_for_each_world() -> None:
    console = Console(width=180)
    with console.capture() as capture:
        console.print(table([measure(2), measure(4)]))
    assert [line.split()[1] for line in capture.get().splitlines() if line.startswith("│")] == ["2", "4"]
