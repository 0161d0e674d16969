"""Finds an implementation by the one way of naming it: built in, by entry point, or package.module:attribute."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points

from reshard_conformance.contract import Claims, Implementation
from reshard_conformance.loading import LoadError, locate
from reshard_conformance.worlds import World
from reshard_conformance.worlds.gloo import GlooWorld
from reshard_conformance.worlds.nccl import LIMIT, NcclWorld, lacking
from reshard_conformance.worlds.sim import SimWorld

__all__ = ["BUILT_IN", "GROUP", "WORLDS", "RegistryError", "known", "load", "place_of", "world"]

#: Implementations whose adapters come with this package, each in the module of its name.
BUILT_IN = ("restripe", "golden")
#: The entry point group in which other distributions announce theirs.
GROUP = "reshard_conformance.implementations"
#: The names of the worlds.
WORLDS = ("sim", "gloo", "nccl")
MEMBERS = ("name", "version", "claims", "reshard", "clear_caches", "error_kind")


class RegistryError(ValueError):
    """No implementation or world of that name; says what to type."""


def known() -> dict[str, str]:
    """The names that can be given here, each with where it leads (package.module:attribute)."""
    places = {name: f"reshard_conformance.implementations.{name}:implementation" for name in BUILT_IN}
    return places | {point.name: point.value for point in entry_points(group=GROUP) if point.name not in places}


def place_of(name: str | None) -> str:
    """Where the implementation of that name is, as package.module:attribute; RegistryError when it is not known."""
    if not name:
        raise RegistryError(f"no implementation is named: type --implementation NAME, {choices()}")
    place = name if ":" in name else known().get(name)
    if place is None:
        raise RegistryError(f"implementation {name!r} is not known: type --implementation NAME, {choices()}")
    return place


def load(name: str | None) -> Implementation:
    """The implementation of that name; RegistryError when there is none or it lacks a member of the contract."""
    try:
        found = locate(place_of(name))
    except LoadError as error:
        raise RegistryError(f"implementation {name!r} cannot be loaded: {error}") from error
    missing = [member for member in MEMBERS if not hasattr(found, member)]
    if missing:
        raise RegistryError(f"implementation {name!r}: {found!r} lacks {', '.join(missing)} of the contract")
    if not isinstance(getattr(found, "claims", None), Claims):
        raise RegistryError(f"implementation {name!r}: expected its claims to be a contract.Claims")
    return found  # type: ignore[return-value]  # its members were looked up one by one


def world(name: str, gpus: Sequence[int] | None = None, *, alone: bool = True, limit: float = LIMIT) -> World:
    """A new world of that name, nccl on these GPUs (all when None), alone on them or not; RegistryError when there is none here.

    limit: seconds after which nccl's ranks are killed in a step.
    """
    if name == "sim":
        return SimWorld(load)
    if name == "gloo":
        return GlooWorld(place_of)
    if name == "nccl":
        missing = lacking()
        if missing:
            raise RegistryError(missing)
        return NcclWorld(place_of, gpus, limit=limit, alone=alone)
    raise RegistryError(f"world {name!r} is not known: type --world with one of {', '.join(WORLDS)}")


def choices() -> str:
    return f"where NAME is one of {', '.join(known())}, or package.module:attribute"
