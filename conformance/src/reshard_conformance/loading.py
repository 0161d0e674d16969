"""Loads the object that `package.module:attribute` names."""

from __future__ import annotations

import importlib

__all__ = ["LoadError", "locate"]


class LoadError(ValueError):
    """An object that cannot be loaded; says which part of its name fails."""


def locate(place: str) -> object:
    """Return the object at `package.module:attribute`; the attribute may have dots."""
    module, _, attribute = place.partition(":")
    try:
        loaded: object = importlib.import_module(module)
    except ImportError as error:
        raise LoadError(f"{place}: module {module!r} cannot be imported ({error})") from error
    for part in attribute.split("."):
        if not hasattr(loaded, part):
            raise LoadError(f"{place}: {module!r} has no attribute {attribute!r}")
        loaded = getattr(loaded, part)
    return loaded
