"""The table of what was used last."""

from __future__ import annotations

from restripe.group.recent import Recent


def held(table: Recent[str, int], keys: str) -> dict[str, int | None]:
    return {key: table.get(key) for key in keys}


def test_the_value_not_used_for_longest_goes_first() -> None:
    table: Recent[str, int] = Recent(2)
    assert [table.made(key, lambda: n) for n, key in enumerate("ab")] == [0, 1]  # noqa: B023
    assert table.get("a") == 0
    assert table.made("c", lambda: 2) == 2
    assert held(table, "abc") == {"a": 0, "b": None, "c": 2}
    assert table.made("a", lambda: 9) == 0
    assert table.made("d", lambda: 3) == 3
    assert held(table, "acd") == {"a": 0, "c": None, "d": 3}
    assert len(table) == 2


def test_a_value_is_made_once_and_none_is_kept_of_one_that_fails() -> None:
    table: Recent[str, int] = Recent(2)
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return 1 // (len(made) - 1)

    for _ in range(3):
        try:
            table.made("a", make)
        except ZeroDivisionError:
            assert len(table) == 0
    assert len(made) == 2


def test_a_cleared_table_holds_nothing() -> None:
    table: Recent[str, int] = Recent(2)
    table.made("a", lambda: 1)
    table.clear()
    assert table.get("a") is None
    assert len(table) == 0
