"""What a run of the suite plays: chunks, each decided by world, property and seed alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reshard_conformance.contract import Level, Profile
from reshard_conformance.models import MAPPINGS
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.search import Property

__all__ = ["EFFORTS", "SIZES", "Chunk", "plan", "played", "shown"]

#: How many times the fixed part of quick each effort plays.
EFFORTS = {"quick": 1, "full": 5, "soak": 50}
#: The world sizes of a run where none are asked for.
SIZES = {"sim": tuple(range(1, 9)), "gloo": tuple(range(2, 9)), "nccl": tuple(range(2, 9))}
#: What a world without devices cannot show.
DEVICES = {Profile.STREAMS, Profile.LARGE}
NONE = (0, 0, 0)
#: Chunks, rounds a chunk and examples a round of quick, by world and property; and of the properties not named.
AMOUNTS = {
    "sim": {
        "exact": (38, 8, 40),
        "models": (len(MAPPINGS), 1, 1),
        "traffic": (4, 1, 100),
        "memory": (3, 1, 100),
        "batches": (3, 1, 60),
        "submissions": (1, 1, 1),
        "lives": (4, 1, 60),
        "faults": (3, 1, 100),
        "disagreements": (2, 1, 100),
        "soak": NONE,
    },
    "gloo": {"exact": (6, 3, 25), "models": NONE, "submissions": (1, 1, 1), "soak": NONE},
    "nccl": {
        "exact": (12, 6, 30),
        "models": NONE,
        "traffic": (1, 1, 40),
        "memory": (1, 1, 40),
        "batches": (1, 1, 30),
        "submissions": (1, 1, 1),
        "lives": (1, 1, 12),
        "ordered": (1, 1, 30),
        "reused": (1, 1, 30),
        "soak": (1, 1, 1),
        "vast": (1, 1, 1),
        "vast-batch": (1, 1, 1),
    },
}
OTHERS = {"sim": (1, 1, 80), "gloo": (1, 1, 8), "nccl": (1, 1, 8)}
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
    worlds: Mapping[str, tuple[int, ...]], profiles: Sequence[Profile], level: Level, effort: str, seed: int
) -> tuple[Chunk, ...]:
    """The chunks of a run in these worlds (with their sizes): the fixed part, and a tenth of it under the fresh seed.

    What is played once has nothing fresh about it.
    """
    fixed: list[Chunk] = []
    fresh: list[Chunk] = []
    for world, sizes in worlds.items():
        for prop in shown(world, played(profiles, level)):
            number, rounds, examples = amount(world, prop)
            number *= EFFORTS[effort]
            fixed += [Chunk(world, prop.name, sizes, place, rounds, examples) for place in range(number)]
            most = rounds * examples
            left = -(-number * most // 10) if most > 1 else 0
            for place, start in enumerate(range(0, left, most or 1)):
                few = min(most, left - start)
                fresh.append(Chunk(world, prop.name, sizes, FRESH + (seed << 20) + place, 1, few, fresh=True))
    return (*fixed, *fresh)


def amount(world: str, prop: Property) -> tuple[int, int, int]:
    if world != "nccl" and prop.profile in DEVICES:
        return NONE
    return AMOUNTS[world].get(prop.name, OTHERS[world])


def shown(world: str, props: Sequence[Property]) -> list[Property]:
    """Those of the properties that the world can show."""
    return [prop for prop in props if amount(world, prop) != NONE]


def played(profiles: Sequence[Profile], level: Level) -> list[Property]:
    """The properties of these profiles that can be played at the level."""
    return [prop for prop in PROPERTIES.values() if prop.profile in profiles and prop.least <= level]
