"""Finds an implementation by the one way of naming it: built in, by entry point, or package.module:attribute."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points

from reshard_conformance.contract import Claims, Implementation
from reshard_conformance.loading import LoadError, locate
from reshard_conformance.worlds import World
from reshard_conformance.worlds.gloo import GlooWorld
from reshard_conformance.worlds.nccl import STEP_LIMIT, NcclWorld, missing_requirement
from reshard_conformance.worlds.sim import SimWorld

__all__ = ["BUILT_IN", "GROUP", "WORLDS", "RegistryError", "known", "load", "place_of", "world"]

#: Implementations whose adapters come with this package, each in the module of its name.
BUILT_IN = ("restripe", "golden")
#: The entry point group in which other distributions register theirs.
GROUP = "reshard_conformance.implementations"
#: The names of the worlds.
WORLDS = ("sim", "gloo", "nccl")
MEMBERS = ("name", "version", "claims", "reshard", "clear_caches", "error_kind")


class RegistryError(ValueError):
    """An unknown name of an implementation or a world; says what to type."""


def known() -> dict[str, str]:
    """Return the known names of implementations, each with its place (package.module:attribute)."""
    places = {name: f"reshard_conformance.implementations.{name}:implementation" for name in BUILT_IN}
    return places | {point.name: point.value for point in entry_points(group=GROUP) if point.name not in places}


def place_of(name: str | None) -> str:
    """Return the place of an implementation as package.module:attribute. Raises RegistryError for an unknown name."""
    if not name:
        raise RegistryError(f"no implementation is named: type --implementation NAME, {choices()}")
    place = name if ":" in name else known().get(name)
    if place is None:
        raise RegistryError(f"implementation {name!r} is not known: type --implementation NAME, {choices()}")
    return place


def load(name: str | None) -> Implementation:
    """Return the implementation of a name. Raises RegistryError where there is none, or one that lacks members of the contract."""
    try:
        implementation = locate(place_of(name))
    except LoadError as error:
        raise RegistryError(f"implementation {name!r} cannot be loaded: {error}") from error
    missing = [member for member in MEMBERS if not hasattr(implementation, member)]
    if missing:
        raise RegistryError(f"implementation {name!r}: {implementation!r} lacks {', '.join(missing)} of the contract")
    if not isinstance(getattr(implementation, "claims", None), Claims):
        raise RegistryError(f"implementation {name!r}: expected its claims to be a contract.Claims")
    return implementation  # type: ignore[return-value]  # its members were looked up one by one


def world(name: str, gpus: Sequence[int] | None = None, *, alone: bool = True, limit: float = STEP_LIMIT) -> World:
    """Return a new world. Raises RegistryError for an unknown name, or where this machine cannot run it.

    For nccl only: gpus, all when None; alone: no other world uses them; limit: seconds that a step may take.
    """
    if name == "sim":
        return SimWorld(cache(load))  # sessions are many, and a look at the entry points reads every distribution
    if name == "gloo":
        return GlooWorld(cache(place_of))
    if name == "nccl":
        missing = missing_requirement()
        if missing:
            raise RegistryError(missing)
        return NcclWorld(place_of, gpus, limit=limit, alone=alone)
    raise RegistryError(f"world {name!r} is not known: type --world with one of {', '.join(WORLDS)}")


def choices() -> str:
    return f"where NAME is one of {', '.join(known())}, or package.module:attribute"
