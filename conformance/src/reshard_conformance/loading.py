"""Finds what `package.module:attribute` names."""

from __future__ import annotations

import importlib

__all__ = ["LoadError", "locate"]


class LoadError(ValueError):
    """Nothing is there; says which part of the name leads nowhere."""


def locate(place: str) -> object:
    """The object at `package.module:attribute`, where the attribute may have dots."""
    module, _, attribute = place.partition(":")
    try:
        found: object = importlib.import_module(module)
    except ImportError as error:
        raise LoadError(f"{place}: module {module!r} cannot be imported ({error})") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise LoadError(f"{place}: {module!r} has no attribute {attribute!r}")
        found = getattr(found, part)
    return found
