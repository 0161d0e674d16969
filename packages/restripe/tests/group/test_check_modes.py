"""Check modes and staging budgets: where they come from, and bad ones on one rank, which all ranks hear of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import restripe
from restripe import Resharder
from restripe.errors import PRECEDENCE, LayoutError, MissingTensorError
from restripe.group.call import CallOptions
from restripe.group.registry import state_of

from ..conftest import Worlds
from ..helpers.moves import Move, Side, bits
from ..helpers.world import Group, World

pytestmark = pytest.mark.usefixtures("own_registry")

MOVE = Move((6, 4), Side([0, 1], (0,)), Side([2, 1], (1,)))
CULPRIT = 1
BAD_MODES = ["sometimes", "First", 7, ["first"], {"first"}]
BAD_BUDGETS = [0, -1, "many", None, 0.5, [1], np.int64(5)]


def reshard(group: Group, **arguments: Any) -> None:
    """Reshard with new tensors; nothing may be written where the call is refused."""
    src, dst = MOVE.local_tensors(group.rank)
    before = None if dst is None else bits(dst)
    try:
        restripe.reshard(src, dst, group, **MOVE.arguments, **arguments)
    except Exception:
        assert dst is None or bits(dst) == before
        raise
    MOVE.assert_moved(group.rank, src, dst)


def drop_in(group: Group) -> None:
    """Call the drop-in, which has no argument for the mode."""
    src, dst = MOVE.local_tensors(group.rank)
    before = None if dst is None else bits(dst)
    try:
        MOVE.call_drop_in(group, src, dst)
    except Exception:
        assert dst is None or bits(dst) == before
        raise
    MOVE.assert_moved(group.rank, src, dst)


def assert_all_hear(world: World, body: Callable[[Group], object], text: str) -> None:
    """Assert that all ranks raise the culprit's error, after one exchange and with nothing sent."""
    world.forget_events()
    texts = world.assert_all_raise(body, LayoutError)
    assert len(set(texts)) == 1
    assert texts[0].startswith(f"rank {CULPRIT}: ")
    assert text in texts[0]
    assert [world.ops(rank) for rank in range(world.size)] == [["exchange"]] * world.size


@pytest.mark.requirement("RS-AGREE-1", "RS-AGREE-3", "RS-AGREE-6", "RS-ERROR-10", "RS-ERROR-11", "RS-ERROR-12")
@pytest.mark.parametrize("ran", [False, True], ids=["first call", "later call"])
@pytest.mark.parametrize("mode", BAD_MODES, ids=str)
def test_a_bad_mode_of_a_call_on_one_rank_is_an_error_on_all(worlds: Worlds, mode: Any, *, ran: bool) -> None:
    world = worlds(4, "always" if ran else None)
    if ran:
        world.run(reshard)
        world.run(reshard)
    for _ in range(2):
        assert_all_hear(
            world, lambda group: reshard(group, **({"check": mode} if group.rank == CULPRIT else {})), str(mode)
        )
    world.run(reshard)
    world.run(reshard)


@pytest.mark.requirement("RS-AGREE-1", "RS-AGREE-6", "RS-ERROR-11")
@pytest.mark.parametrize("call", [reshard, drop_in])
@pytest.mark.parametrize("mode", BAD_MODES, ids=str)
def test_a_bad_mode_of_a_group_on_one_rank_is_an_error_on_all(
    worlds: Worlds, mode: Any, call: Callable[[Group], None]
) -> None:
    world = worlds(4)
    world.groups[CULPRIT].check = mode
    assert_all_hear(world, call, str(mode))
    world.groups[CULPRIT].check = "first"
    world.run(call)
    world.run(call)


@pytest.mark.requirement("RS-AGREE-1", "RS-AGREE-6", "RS-ERROR-11")
@pytest.mark.parametrize("call", [reshard, drop_in])
def test_a_bad_mode_in_the_environment_of_one_rank_is_an_error_on_all(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, call: Callable[[Group], None]
) -> None:
    world = worlds(4)
    with monkeypatch.context() as patch:
        patch.setenv("RESTRIPE_CHECK", "sometimes")
        state_of(world.groups[CULPRIT])  # each rank is a process with an environment of its own
    assert_all_hear(world, call, "'sometimes'")
    world.groups[CULPRIT].check = "first"  # which comes before the environment
    world.run(call)


@pytest.mark.requirement("RS-AGREE-6")
def test_a_bad_mode_in_the_environment_is_no_fault_where_a_call_or_its_group_names_another(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESTRIPE_CHECK", "sometimes")
    worlds(4, "always").run(reshard)
    worlds(4).run(lambda group: reshard(group, check="first"))


@pytest.mark.requirement("RS-AGREE-5")
def test_where_nothing_is_exchanged_the_culprit_alone_raises(worlds: Worlds) -> None:
    world = worlds(4, "off")
    culprit = 3  # on which no other rank waits
    outcomes = world.outcomes(lambda group: reshard(group, **({"check": "often"} if group.rank == culprit else {})))
    assert [type(outcome) for outcome in outcomes] == [type(None)] * 3 + [LayoutError]
    assert str(outcomes[culprit]).startswith("rank 3: ")
    assert world.exchanges() == [0] * 4
    world.run(reshard)


@pytest.mark.requirement("RS-AGREE-4")
def test_a_bad_mode_of_a_call_that_was_agreed_on_raises_on_the_culprit_alone(worlds: Worlds) -> None:
    world = worlds(4)
    world.run(reshard)
    world.forget_events()
    outcomes = world.outcomes(lambda group: reshard(group, **({"check": "often"} if group.rank == 3 else {})))
    assert [type(outcome) for outcome in outcomes] == [type(None)] * 3 + [LayoutError]
    assert world.exchanges() == [0] * 4


@pytest.mark.requirement("RS-AGREE-1")
def test_a_bad_mode_is_refused_also_where_the_call_is_cached(worlds: Worlds) -> None:
    world = worlds(1)
    move = Move((4,), Side([0], (None,)), Side([0], (None,)))
    src, dst = move.local_tensors(0)

    def body(group: Group, **arguments: Any) -> None:
        restripe.reshard(src, dst, group, **move.arguments, **arguments)

    for _ in range(2):
        world.run(body)
    for _ in range(2):
        world.assert_all_raise(lambda group: body(group, check="often"), LayoutError)
    assert world.count(body).launches_reused == 1


@pytest.mark.requirement("RS-ERROR-9", "RS-ERROR-11")
def test_of_a_bad_mode_and_a_missing_tensor_on_two_ranks_the_first_of_the_table_is_raised(worlds: Worlds) -> None:
    world = worlds(4)

    def body(group: Group) -> None:
        src, dst = MOVE.local_tensors(group.rank)
        if group.rank == 2:
            dst = None
        restripe.reshard(src, dst, group, **MOVE.arguments, check="often" if group.rank == CULPRIT else None)  # type: ignore[arg-type]

    texts = world.assert_all_raise(body, min(LayoutError, MissingTensorError, key=PRECEDENCE.index))
    assert len(set(texts)) == 1


@pytest.mark.requirement("RS-AGREE-1", "RS-ERROR-11", "RS-ERROR-12")
@pytest.mark.parametrize("mode", BAD_MODES, ids=str)
def test_a_bad_mode_of_a_session_on_one_rank_is_an_error_on_all(worlds: Worlds, mode: Any) -> None:
    world = worlds(4)
    assert_all_hear(world, lambda group: prepare(group, check=mode), str(mode))
    world.run(lambda group: prepare(group).run(*tensors_by_name(group)))


@pytest.mark.requirement("RS-AGREE-1", "RS-ERROR-11", "RS-ERROR-12", "RS-BATCH-4")
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("budget", BAD_BUDGETS, ids=str)
def test_a_bad_staging_budget_on_one_rank_is_an_error_on_all(worlds: Worlds, budget: Any, *, graph: bool) -> None:
    world = worlds(4)
    assert_all_hear(world, lambda group: prepare(group, graph=graph, staging_bytes=budget), "staging budget")
    world.run(lambda group: prepare(group).run(*tensors_by_name(group)))


def prepare(group: Group, *, graph: bool = False, **options: Any) -> restripe.Refit:
    """Prepare the move, with these options on the culprit alone."""
    return Resharder(group, **(options if group.rank == CULPRIT else {})).prepare([MOVE.item()], graph=graph)


def tensors_by_name(group: Group) -> list[dict[str, Any]]:
    return [{"w": local} for local in MOVE.local_tensors(group.rank)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"check": "often"}, "often"),
        ({"staging_bytes": 0}, "at least 1 byte, got 0"),
        ({"staging_bytes": "many"}, "at least 1 byte, got 'many'"),
        ({"staging_bytes": float("inf")}, "at least 1 byte, got inf"),
        ({"staging_bytes": float("nan")}, "at least 1 byte, got nan"),
    ],
)
def test_options_refuse_bad_values_when_they_are_made(options: dict[str, Any], text: str) -> None:
    with pytest.raises(LayoutError, match=text):
        CallOptions(**options)


def test_a_staging_budget_of_another_kind_of_number_is_a_whole_number_of_bytes() -> None:
    for budget in (1e6, np.float64(1_000_000), 1_000_000.5):
        options = CallOptions(staging_bytes=budget)  # type: ignore[arg-type]
        assert type(options.staging_bytes) is int
        assert options == CallOptions(staging_bytes=1_000_000)


@pytest.mark.requirement("RS-AGREE-6")
def test_a_group_s_mode_may_change_between_calls(worlds: Worlds) -> None:
    world = worlds(2)
    move = Move((4,), Side([0], (None,)), Side([1], (None,)))
    for check, exchanges in (("first", 1), ("first", 0), ("always", 1), ("always", 1), ("off", 0), ("first", 0)):
        for group in world.groups:
            group.check = check
        world.forget_events()
        world.run(move.run_rank)
        assert world.exchanges() == [exchanges] * 2


@pytest.mark.requirement("RS-AGREE-1", "RS-AGREE-6")
def test_a_bad_mode_of_a_call_counts_as_the_one_that_its_group_has_now(worlds: Worlds) -> None:
    """The other ranks call in that mode, and so it decides about the exchange."""
    world, culprit = worlds(4), 3  # on which no other rank waits
    for group_mode, exchanges in (("always", 1), ("off", 0), ("always", 1), ("first", 0)):
        for group in world.groups:
            group.check = group_mode
        world.run(reshard)
        world.forget_events()
        outcomes = world.outcomes(lambda group: reshard(group, **({"check": "often"} if group.rank == culprit else {})))
        hearing = 4 if exchanges else 1
        assert [type(outcome) for outcome in outcomes] == [type(None)] * (4 - hearing) + [LayoutError] * hearing
        assert all(str(outcome).startswith("rank 3: ") for outcome in outcomes[4 - hearing :])
        assert world.exchanges() == [exchanges] * 4


@pytest.mark.requirement("RS-AGREE-1", "RS-AGREE-2")
def test_a_session_whose_budget_others_do_not_share_is_an_error_on_all(worlds: Worlds) -> None:
    world = worlds(3)
    for budgets in ([5, 5, 7], [5, 7, 7]):
        texts = world.outcomes(lambda group: Resharder(group, staging_bytes=budgets[group.rank]).prepare([]))  # noqa: B023
        assert len({str(text) for text in texts}) == 1
        assert "staging budget" in str(texts[0])
