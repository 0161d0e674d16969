"""Calls inside a group are submitted together, and not at all after an exception."""

from __future__ import annotations

import pytest

from reshard_conformance.worlds.deferred import DeferredCalls


@pytest.fixture
def submitted() -> list[list[str]]:
    return []


@pytest.fixture
def deferred(submitted: list[list[str]]) -> DeferredCalls[str]:
    return DeferredCalls(submitted.append)


def test_a_single_call_is_submitted_at_once(deferred: DeferredCalls[str], submitted: list[list[str]]) -> None:
    deferred.add("a")
    deferred.add("b")
    assert submitted == [["a"], ["b"]]


def test_the_outermost_group_submits(deferred: DeferredCalls[str], submitted: list[list[str]]) -> None:
    with deferred.group():
        deferred.add("a")
        with deferred.group():
            deferred.add("b")
        assert not submitted
        deferred.add("c")
    deferred.add("d")
    assert submitted == [["a", "b", "c"], ["d"]]


def test_after_an_exception_nothing_is_submitted(deferred: DeferredCalls[str], submitted: list[list[str]]) -> None:
    def fail() -> None:
        with deferred.group():
            deferred.add("a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not submitted
    with deferred.group():
        deferred.add("b")
    assert submitted == [["b"]]
