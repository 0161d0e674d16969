"""Finds an implementation by the one way of naming it: built in, by entry point, or package.module:attribute."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

from reshard_conformance.contract import Claims, Implementation

__all__ = ["BUILT_IN", "GROUP", "RegistryError", "known", "load"]

#: Implementations whose adapters come with this package, each in the module of its name.
BUILT_IN = ("restripe", "golden")
#: The entry point group in which other distributions announce theirs.
GROUP = "reshard_conformance.implementations"
MEMBERS = ("name", "version", "claims", "reshard", "clear_caches", "error_kind")


class RegistryError(ValueError):
    """No implementation of that name; says what to type."""


def known() -> dict[str, str]:
    """The names that can be given here, each with where it leads (package.module:attribute)."""
    places = {name: f"reshard_conformance.implementations.{name}:implementation" for name in BUILT_IN}
    return places | {point.name: point.value for point in entry_points(group=GROUP) if point.name not in places}


def load(name: str | None) -> Implementation:
    """The implementation of that name; RegistryError when there is none or it lacks a member of the contract."""
    if not name:
        raise RegistryError(f"no implementation is named: type --implementation NAME, {choices()}")
    place = name if ":" in name else known().get(name)
    if place is None:
        raise RegistryError(f"implementation {name!r} is not known: type --implementation NAME, {choices()}")
    return checked(name, imported(name, place))


def imported(name: str, place: str) -> object:
    module, _, attribute = place.partition(":")
    try:
        found: object = importlib.import_module(module)
    except ImportError as error:
        raise RegistryError(f"implementation {name!r}: module {module!r} cannot be imported ({error})") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise RegistryError(f"implementation {name!r}: {module!r} has no attribute {attribute!r}")
        found = getattr(found, part)
    return found


def checked(name: str, found: object) -> Implementation:
    missing = [member for member in MEMBERS if not hasattr(found, member)]
    if missing:
        raise RegistryError(f"implementation {name!r}: {found!r} lacks {', '.join(missing)} of the contract")
    if not isinstance(getattr(found, "claims", None), Claims):
        raise RegistryError(f"implementation {name!r}: expected its claims to be a contract.Claims")
    return found  # type: ignore[return-value]  # its members were looked up one by one


def choices() -> str:
    return f"where NAME is one of {', '.join(known())}, or package.module:attribute"
