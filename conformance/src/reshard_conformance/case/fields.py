"""Checks for the fields of a case, and the error that they raise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

#: Ranks as nested tuples, row-major; the innermost tuples hold ints.
NestedInts: TypeAlias = tuple[Any, ...]


class CaseError(ValueError):
    """A step that does not follow format 1.

    The message names the file and line, the field, the expected value and the actual one.
    """

    def __init__(self, field: str, expected: str, actual: object, location: str = "") -> None:
        self.field, self.expected, self.actual, self.location = field, expected, actual, location
        prefix = f"{location}: " if location else ""
        super().__init__(f"{prefix}field {field!r}: expected {expected}, got {actual!r}")

    def inside_field(self, field: str) -> CaseError:
        """Return the error with its field's path starting at the object that holds `field`."""
        return CaseError(f"{field}.{self.field}", self.expected, self.actual, self.location)

    def with_location(self, location: str) -> CaseError:
        """Return the error with the file and line of the step."""
        return CaseError(self.field, self.expected, self.actual, location)


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; raise CaseError for a key that stands in it twice."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        raise CaseError(next(name for name in names if names.count(name) > 1), "to be given once", "it twice")
    return fields


def read_object(
    name: str, kind: type[Any], fields: dict[str, Any], required: tuple[str, ...], optional: tuple[str, ...]
) -> Any:
    """Return the JSON object under the key `name` as an instance of `kind`; CaseErrors name the whole path."""
    part = expect_object(name, fields[name])
    try:
        expect_keys(part, required, optional)
        expect_no_null(part)
        return kind(**{key: lists_to_tuples(value) for key, value in part.items()})
    except CaseError as error:
        raise error.inside_field(name) from None


def lists_to_tuples(value: Any) -> Any:
    """Return the JSON value with every list as a tuple."""
    return tuple(lists_to_tuples(item) for item in value) if isinstance(value, list) else value


def flatten_mesh(mesh: NestedInts) -> Iterator[int]:
    """Yield the ranks of nested tuples, row-major."""
    for item in mesh:
        if isinstance(item, tuple):
            yield from flatten_mesh(item)
        else:
            yield item


def mesh_shape(mesh: object) -> tuple[int, ...] | None:
    """Return the shape of nested tuples of ints; None when they are ragged, empty, or hold anything else."""
    if not isinstance(mesh, tuple) or not mesh:
        return None
    if all(is_int(item) for item in mesh):
        return (len(mesh),)
    inner_shapes = {mesh_shape(item) for item in mesh}
    shape = inner_shapes.pop()
    return None if inner_shapes or shape is None else (len(mesh), *shape)


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


def expect_bool(field: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise CaseError(field, "true or false", value)


def expect_text(field: str, value: Any) -> None:
    if not isinstance(value, str):
        raise CaseError(field, "a text", value)


def expect_int(field: str, value: Any, minimum: int) -> None:
    if not is_int(value) or value < minimum:
        raise CaseError(field, f"an integer of at least {minimum}", value)


def expect_tuple(field: str, value: Any, kind: type, expected: str) -> None:
    if not isinstance(value, tuple) or not all(isinstance(item, kind) for item in value):
        raise CaseError(field, expected, value)


def expect_sizes(field: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(is_int(size) and size >= 0 for size in value):
        raise CaseError(field, "a list of sizes of at least 0", value)


def expect_ranks(field: str, value: Any) -> None:
    is_rank_list = isinstance(value, tuple) and bool(value) and all(is_int(rank) and rank >= 0 for rank in value)
    if not is_rank_list or len(set(value)) != len(value):
        raise CaseError(field, "a list of distinct ranks, not empty", value)


def expect_members(field: str, ranks: tuple[int, ...], world_size: int) -> None:
    if not all(rank < world_size for rank in ranks):
        raise CaseError(field, f"ranks below the world size {world_size}", ranks)
