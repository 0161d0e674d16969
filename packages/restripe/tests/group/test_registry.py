"""Which group's state is found, in which order all are cleared, and what becomes of a group that is gone."""

from __future__ import annotations

import gc
import threading
from collections import deque
from typing import Any

import pytest

import restripe
from restripe.errors import LayoutError
from restripe.group import registry
from restripe.group.communicators import Links
from restripe.group.registry import state, states

from ..helpers.recording import Failing, Plain, Recorder, hold, used

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.requirement("RS-CACHE-6")
def test_clearing_everything_goes_in_order_of_creation() -> None:
    log: list[str] = []
    groups = [used(name, log) for name in "bac"]
    state(groups[0])
    restripe.clear_caches()
    assert log == [f"{verb} {name}" for name in "bac" for verb in ("finalize", "destroy")]
    restripe.clear_caches()
    assert len(log) == 6


@pytest.mark.requirement("RS-CACHE-8")
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_collected_group_only_queues_its_release(elsewhere: bool) -> None:
    log: list[str] = []
    held = [used("a", log)]
    if elsewhere:
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
    held.clear()
    gc.collect()
    assert log == []
    assert states() == []
    assert log == ["abort a"]


@pytest.mark.requirement("RS-CACHE-8")
def test_two_threads_may_release_what_is_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Emptied(deque[Any]):
        """Another thread takes the last entry between the look and the grasp."""

        def __bool__(self) -> bool:
            return True

    monkeypatch.setattr(registry, "_orphans", Emptied())
    assert states() == []


@pytest.mark.requirement("RS-CACHE-9")
def test_a_new_group_under_an_old_id_is_a_new_group() -> None:
    ids, numbers = set(), set()
    for _ in range(50):
        group = Plain()
        ids.add(id(group))
        found = state(group)
        assert not found.live
        hold(group, Recorder("x", []))
        numbers.add(found.number)
    assert len(ids) < 50, "no id came twice, so this run showed nothing"
    assert len(numbers) == 50


@pytest.mark.requirement("RS-CACHE-9")
def test_groups_that_compare_equal_are_two_groups() -> None:
    class Alike:
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    one, other = Alike(), Alike()
    assert state(one) is state(one)
    assert state(one) is not state(other)


@pytest.mark.parametrize("stranger", [3, "group", (1, 2), [1]])
def test_what_cannot_be_a_group_is_refused(stranger: object) -> None:
    with pytest.raises(LayoutError, match=r"expected a torch process group or an object with a \.communicator"):
        restripe.Resharder(stranger, check="off").prepare([])


@pytest.mark.requirement("RS-CACHE-8")
def test_a_collected_group_s_graphs_are_released_too() -> None:
    log: list[str] = []
    held = [used("a", log)]
    state(held[0])._twins.append(Links(Recorder("graph", log), owned=True))  # type: ignore[arg-type]
    held.clear()
    gc.collect()
    assert states() == []
    assert sorted(log) == ["abort a", "abort graph"]


def test_a_failing_release_reaches_no_call_of_another_group() -> None:
    log: list[str] = []
    held = [used(name, log, Failing) for name in "ab"]
    held.clear()
    gc.collect()
    assert states() == []
    assert sorted(log) == ["abort a", "abort b"]


def test_at_exit_every_group_is_released_whatever_fails() -> None:
    log: list[str] = []
    groups = [used(name, log, Failing) for name in "ab"]
    registry._exit()
    assert len(states()) == len(groups)
    assert log == ["abort a", "abort b"]
