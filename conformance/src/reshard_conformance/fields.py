"""What a single field of a case may be: the error that says otherwise, and the checks that raise it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

#: Ranks as nested tuples, row-major; the innermost tuples hold ints.
NestedInts: TypeAlias = tuple[Any, ...]


class CaseError(ValueError):
    """A step that does not follow format 1; names the file, the line, the field and what was expected there."""

    def __init__(self, field: str, expected: str, actual: object, place: str = "") -> None:
        self.field, self.expected, self.actual, self.place = field, expected, actual, place
        where = f"{place}: " if place else ""
        super().__init__(f"{where}field {field!r}: expected {expected}, got {actual!r}")

    def inside(self, field: str) -> CaseError:
        """The same error, its field seen from the object that holds it."""
        return CaseError(f"{field}.{self.field}", self.expected, self.actual, self.place)

    def at(self, place: str) -> CaseError:
        """The same error, with the file and line where it is."""
        return CaseError(self.field, self.expected, self.actual, place)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        raise CaseError(next(name for name in names if names.count(name) > 1), "to be given once", "it twice")
    return fields


def frozen(value: Any) -> Any:
    return tuple(frozen(item) for item in value) if isinstance(value, list) else value


def leaves(mesh: NestedInts) -> Iterator[int]:
    for item in mesh:
        if isinstance(item, tuple):
            yield from leaves(item)
        else:
            yield item


def mesh_shape(mesh: object) -> tuple[int, ...] | None:
    """The shape of nested tuples of ints; None when they are ragged, empty, or hold anything else."""
    if not isinstance(mesh, tuple) or not mesh:
        return None
    if all(is_int(item) for item in mesh):
        return (len(mesh),)
    inner = {mesh_shape(item) for item in mesh}
    shape = inner.pop()
    return None if inner or shape is None else (len(mesh), *shape)


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def expect_object(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CaseError(field, "a JSON object", value)
    return value


def expect_keys(fields: dict[str, Any], required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    for key in fields:
        if key not in required + optional:
            raise CaseError(key, f"one of the keys {', '.join(required + optional)}", key)
    for key in required:
        if key not in fields:
            raise CaseError(key, "this key to be given", "nothing")


def expect_no_null(fields: dict[str, Any]) -> None:
    for key, value in fields.items():
        if value is None:
            raise CaseError(key, "a value, or no such key", None)


def expect_choice(field: str, value: Any, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise CaseError(field, f"one of {', '.join(choices)}", value)


def expect_int(field: str, value: Any, least: int) -> None:
    if not is_int(value) or value < least:
        raise CaseError(field, f"an integer of at least {least}", value)


def expect_tuple(field: str, value: Any, kind: type, expected: str) -> None:
    if not isinstance(value, tuple) or not all(isinstance(item, kind) for item in value):
        raise CaseError(field, expected, value)


def expect_sizes(field: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(is_int(size) and size >= 0 for size in value):
        raise CaseError(field, "a list of sizes of at least 0", value)


def expect_ranks(field: str, value: Any) -> None:
    good = isinstance(value, tuple) and bool(value) and all(is_int(rank) and rank >= 0 for rank in value)
    if not good or len(set(value)) != len(value):
        raise CaseError(field, "a list of distinct ranks, not empty", value)


def expect_members(field: str, ranks: tuple[int, ...], world_size: int) -> None:
    if not all(rank < world_size for rank in ranks):
        raise CaseError(field, f"ranks below the world size {world_size}", ranks)
