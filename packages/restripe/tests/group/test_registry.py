"""The registry of group states: state of a group, order of a clear of all groups, release of collected groups."""

from __future__ import annotations

import gc
import threading
from collections import deque
from typing import Any

import pytest

import restripe
from restripe.errors import LayoutError
from restripe.group import registry
from restripe.group.communicators import Communicators
from restripe.group.registry import all_states, state_of

from ..helpers.recording import (
    BareGroup,
    RecordingCommunicator,
    UnabortableCommunicator,
    give_communicator,
    group_owning,
)

pytestmark = pytest.mark.usefixtures("own_registry")


@pytest.mark.requirement("RS-CACHE-6")
def test_all_groups_are_cleared_in_order_of_creation() -> None:
    log: list[str] = []
    groups = [group_owning(name, log) for name in "bac"]
    state_of(groups[0])
    restripe.clear_caches()
    assert log == [f"{verb} {name}" for name in "bac" for verb in ("finalize", "destroy")]
    restripe.clear_caches()
    assert len(log) == 6


@pytest.mark.requirement("RS-CACHE-8")
@pytest.mark.parametrize("elsewhere", [False, True], ids=["this thread", "another thread"])
def test_collecting_a_group_queues_its_release_and_touches_no_communicator(elsewhere: bool) -> None:
    log: list[str] = []
    groups = [group_owning("a", log)]
    if elsewhere:
        thread = threading.Thread(target=groups.clear)
        thread.start()
        thread.join()
    groups.clear()
    gc.collect()
    assert log == []
    assert all_states() == []
    assert log == ["abort a"]


@pytest.mark.requirement("RS-CACHE-8")
def test_the_next_use_of_any_group_releases_what_collected_groups_left() -> None:
    log: list[str] = []
    groups, other = [group_owning("a", log)], BareGroup()
    groups.clear()
    gc.collect()
    state_of(other)
    assert log == ["abort a"]


@pytest.mark.requirement("RS-CACHE-8")
def test_two_threads_may_release_orphans_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class EmptiedMeanwhile(deque[Any]):
        """A queue of which another thread takes the last entry between the test for entries and the popleft."""

        def __bool__(self) -> bool:
            return True

    monkeypatch.setattr(registry, "_orphans", EmptiedMeanwhile())
    assert all_states() == []


@pytest.mark.requirement("RS-CACHE-9")
def test_a_new_group_at_the_id_of_a_collected_one_has_a_state_of_its_own() -> None:
    ids, numbers = set(), set()
    for _ in range(50):
        group = BareGroup()
        ids.add(id(group))
        state = state_of(group)
        assert not state.live
        give_communicator(group, RecordingCommunicator("x", []))
        numbers.add(state.number)
    assert len(ids) < 50, "no id came twice, so this run showed nothing"
    assert len(numbers) == 50


@pytest.mark.requirement("RS-CACHE-9")
def test_groups_that_compare_equal_have_different_states() -> None:
    class EqualToAll:
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    one, other = EqualToAll(), EqualToAll()
    assert state_of(one) is state_of(one)
    assert state_of(one) is not state_of(other)


@pytest.mark.parametrize("value", [3, "group", (1, 2), [1]])
def test_a_value_that_cannot_be_a_group_is_refused(value: object) -> None:
    with pytest.raises(LayoutError, match=r"expected a torch process group or an object with a \.communicator"):
        restripe.Resharder(value, check="off").prepare([])


@pytest.mark.requirement("RS-CACHE-8")
def test_communicators_for_graphs_of_a_collected_group_are_released_too() -> None:
    log: list[str] = []
    groups = [group_owning("a", log)]
    base: Any = RecordingCommunicator("graph", log)
    state_of(groups[0])._for_graphs.append(Communicators(base, owned=True))
    groups.clear()
    gc.collect()
    assert all_states() == []
    assert sorted(log) == ["abort a", "abort graph"]


def test_a_failing_release_of_a_collected_group_raises_in_no_call() -> None:
    log: list[str] = []
    groups = [group_owning(name, log, UnabortableCommunicator) for name in "ab"]
    groups.clear()
    gc.collect()
    assert all_states() == []
    assert sorted(log) == ["abort a", "abort b"]


def test_at_exit_every_group_is_released_whatever_fails() -> None:
    log: list[str] = []
    groups = [group_owning(name, log, UnabortableCommunicator) for name in "ab"]
    registry._abort_all()
    assert len(all_states()) == len(groups)
    assert log == ["abort a", "abort b"]
