"""What a run of the suite plays: chunks, each decided by world, property and seed alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from reshard_conformance.contract import Profile
from reshard_conformance.models import MAPPINGS
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.search import Property

__all__ = ["EFFORTS", "SIZES", "Chunk", "plan"]

#: How many times the fixed part of quick each effort plays.
EFFORTS = {"quick": 1, "full": 5, "soak": 50}
#: The world sizes of a run where none are asked for.
SIZES = {"sim": tuple(range(1, 9)), "gloo": tuple(range(2, 9))}
#: Chunks, rounds a chunk and examples a round of quick, by property and world.
AMOUNTS = {
    "exact": {"sim": (40, 8, 40), "gloo": (6, 3, 25)},
    "models": {"sim": (len(MAPPINGS), 1, 1), "gloo": (0, 0, 0)},
}
#: The same for all other properties.
FEW = {"sim": (1, 1, 60), "gloo": (1, 1, 8)}
#: Seeds of the fixed part stay below this.
FRESH = 1 << 40


@dataclass(frozen=True)
class Chunk:
    """A piece of a run: `rounds` searches of `examples` draws each.

    sizes: the world sizes to draw from. fresh: whether it belongs to the part under a fresh seed.
    """

    world: str
    prop: str
    sizes: tuple[int, ...]
    seed: int
    rounds: int
    examples: int
    fresh: bool = False


def plan(
    worlds: Mapping[str, tuple[int, ...]], profiles: Sequence[Profile], effort: str, seed: int
) -> tuple[Chunk, ...]:
    """The chunks of a run in these worlds (with their sizes): the fixed part, and a tenth of it under the fresh seed."""
    return (*chunks(worlds, profiles, EFFORTS[effort]), *chunks(worlds, profiles, EFFORTS[effort], seed))


def chunks(
    worlds: Mapping[str, tuple[int, ...]], profiles: Sequence[Profile], times: int, fresh: int | None = None
) -> Iterator[Chunk]:
    first = 0 if fresh is None else FRESH + (fresh << 20)
    for world, sizes in worlds.items():
        for prop in of(profiles):
            number, rounds, examples = AMOUNTS.get(prop.name, FEW)[world]
            number = number * times if fresh is None else -(-number * times // 10)
            for place in range(number):
                yield Chunk(world, prop.name, sizes, first + place, rounds, examples, fresh is not None)


def of(profiles: Sequence[Profile]) -> list[Property]:
    """The properties of these profiles."""
    return [prop for prop in PROPERTIES.values() if prop.profile in profiles]
