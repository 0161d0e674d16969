"""What is called inside a group is handed in together, and not at all after an exception."""

from __future__ import annotations

import pytest

from reshard_conformance.worlds.holding import Holding


@pytest.fixture
def handed() -> list[list[str]]:
    return []


@pytest.fixture
def holding(handed: list[list[str]]) -> Holding[str]:
    return Holding(handed.append)


def test_a_call_alone_is_handed_in_at_once(holding: Holding[str], handed: list[list[str]]) -> None:
    holding.take("a")
    holding.take("b")
    assert handed == [["a"], ["b"]]


def test_the_outermost_group_hands_in(holding: Holding[str], handed: list[list[str]]) -> None:
    with holding.group():
        holding.take("a")
        with holding.group():
            holding.take("b")
        assert not handed
        holding.take("c")
    holding.take("d")
    assert handed == [["a", "b", "c"], ["d"]]


def test_after_an_exception_nothing_is_handed_in(holding: Holding[str], handed: list[list[str]]) -> None:
    def fail() -> None:
        with holding.group():
            holding.take("a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not handed
    with holding.group():
        holding.take("b")
    assert handed == [["b"]]
