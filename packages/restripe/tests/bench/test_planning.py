"""The benchmark of planning measures what it says; no test minds how long that takes."""

from __future__ import annotations

from rich.console import Console

from restripe.bench.planning import SHAPE, measure, moves, table, warm_lookups
from restripe.group.registry import all_states


def test_every_move_and_every_look_up_is_timed() -> None:
    times = measure(8)
    assert times.ranks == 8
    assert times.messages == {"S(0) to S(0)": 1, "S(0) to R,S(0)": 1, "S(0) to S(1)": 4}
    assert set(times.plan_ms) == set(times.messages)
    assert set(times.lookup_us) == {"restripe.Mesh", "DeviceMesh", "refit"}
    assert all(time > 0 for time in (*times.plan_ms.values(), *times.lookup_us.values()))
    assert times.to_json()["plan_ms"] == times.plan_ms


def test_halves_of_any_even_world() -> None:
    for ranks in (2, 6, 64):
        for src, dst in moves(ranks).values():
            assert src.mesh.ranks == tuple(range(ranks // 2))
            assert set(dst.mesh.ranks) <= set(range(ranks // 2, ranks))
    assert len(SHAPE) == 2


def test_a_look_up_is_a_warm_call() -> None:
    earlier = {state.number for state in all_states()}
    for name, call in warm_lookups(8):
        (group_state,) = [state for state in all_states() if state.number not in earlier]
        calls_before = group_state.calls
        call()
        assert group_state.calls == calls_before + 1, name
        earlier.add(group_state.number)


def test_a_line_for_each_world() -> None:
    console = Console(width=180)
    with console.capture() as capture:
        console.print(table([measure(2), measure(4)]))
    assert [line.split()[1] for line in capture.get().splitlines() if line.startswith("│")] == ["2", "4"]
