"""What a run of the suite plays: chunks, each decided by world, property and seed alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reshard_conformance.contract import Level, Profile
from reshard_conformance.models import MAPPINGS
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.search import Property

__all__ = ["EFFORTS", "LAYOUTS", "SIZES", "Chunk", "plan", "played", "shown"]

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
        "strided": (5, 8, 40),
        "segmented": (5, 8, 40),
        "soak": NONE,
    },
    "gloo": {
        "exact": (6, 3, 25),
        "strided": (1, 5, 20),
        "segmented": (1, 5, 20),
        "models": NONE,
        "submissions": (1, 1, 1),
        "soak": NONE,
    },
    "nccl": {
        "models": NONE,
        "traffic": (2, 1, 30),
        "memory": (2, 1, 30),
        "batches": (2, 1, 20),
        "submissions": (1, 1, 1),
        "lives": (2, 1, 5),
        "cleared": (1, 1, 6),
        "dropped": (1, 1, 6),
        "partly-cleared": (1, 1, 6),
        "ordered": (2, 1, 15),
        "reused": (2, 1, 15),
        "soak": (1, 1, 1),
        "vast": (1, 1, 1),
        "vast-batch": (1, 1, 1),
    },
}
OTHERS = {"sim": (1, 1, 80), "gloo": (1, 1, 8), "nccl": (1, 1, 8)}
#: About how many layouts the steered property of core draws in a quick run in nccl, where a minute has to do for many of
#: them; and one in how many those of other profiles draw.
LAYOUTS, LESS = 2300, 8
#: How they are spread over world sizes: ranks that share a GPU take turns on it.
SHARES = {2: 6, 3: 6, 4: 6}
#: Scripts of one chunk there, and of one round of it; the scripts of a chunk share meshes, and so communicators.
CHUNK, ROUND = 330, 30
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
    worlds: Mapping[str, tuple[int, ...]],
    profiles: Sequence[Profile],
    level: Level,
    effort: str,
    seed: int,
    layouts: int = LAYOUTS,
) -> tuple[Chunk, ...]:
    """The chunks of a run in these worlds (with their sizes): the fixed part, and a tenth of it under the fresh seed.

    What is played once has nothing fresh about it. layouts: about how many a quick run draws in nccl.
    """
    fixed: list[Chunk] = []
    fresh: list[Chunk] = []
    for world, sizes in worlds.items():
        for place, prop in enumerate(shown(world, played(profiles, level))):
            if world == "nccl":
                fixed += on_devices(prop, place, sizes, EFFORTS[effort], layouts)
                fresh += fresh_on_devices(prop, sizes, seed, layouts)
                continue
            number, rounds, examples = amount(world, prop)
            number *= EFFORTS[effort]
            fixed += [Chunk(world, prop.name, sizes, place, rounds, examples) for place in range(number)]
            most = rounds * examples
            left = -(-number * most // 10) if most > 1 else 0
            for start in range(0, left, most or 1):
                few = min(most, left - start)
                fresh.append(Chunk(world, prop.name, sizes, fresh_seed(seed, start // most), 1, few, fresh=True))
    fixed.sort(key=lambda chunk: chunk.prop != "soak")  # it takes longest: others are played beside it
    return (*fixed, *fresh)


def fresh_seed(seed: int, place: int) -> int:
    return FRESH + (seed << 20) + place


def on_devices(prop: Property, place: int, sizes: tuple[int, ...], times: int, layouts: int) -> list[Chunk]:
    """The fixed chunks of a property in nccl, each of one world size: with another size come other communicators."""
    if not prop.steered:
        number, rounds, examples = amount("nccl", prop)
        turns = few_ranks(sizes)[: 1 if rounds * examples == 1 else None]
        return [
            Chunk("nccl", prop.name, (turns[(place + turn) % len(turns)],), turn, rounds, examples)
            for turn in range(number * times)
        ]
    chunks: list[Chunk] = []
    layouts = layouts if prop.profile is Profile.CORE else -(-layouts // LESS)
    for size, scripts in spread(sizes, layouts * times).items():
        number = -(-scripts // CHUNK)
        rounds = max(4, -(-scripts // (number * ROUND)))  # a round aims at what lags after those before it
        few = -(-scripts // (number * rounds))
        chunks += [Chunk("nccl", prop.name, (size,), len(chunks) + turn, rounds, few) for turn in range(number)]
    return chunks


def fresh_on_devices(prop: Property, sizes: tuple[int, ...], seed: int, layouts: int) -> list[Chunk]:
    """A tenth of the steered property of core in nccl, in small worlds."""
    turns = few_ranks(sizes) if prop.steered and prop.profile is Profile.CORE else ()
    examples = -(-layouts // (10 * max(1, len(turns))))
    return [
        Chunk("nccl", prop.name, (size,), fresh_seed(seed, place), 1, examples, fresh=True)
        for place, size in enumerate(turns)
    ]


def few_ranks(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The smaller of the world sizes, of several ranks if there are any."""
    several = tuple(size for size in sizes if size > 1) or sizes
    return tuple(size for size in several if size <= 4) or several[:1]


def spread(sizes: tuple[int, ...], scripts: int) -> dict[int, int]:
    """How many scripts each world size gets."""
    whole = sum(SHARES.get(size, 1) for size in sizes)
    return {size: -(-scripts * SHARES.get(size, 1) // whole) for size in sizes}


def amount(world: str, prop: Property) -> tuple[int, int, int]:
    """Chunks, rounds a chunk and examples a round of quick; those of a steered property in nccl follow from LAYOUTS."""
    if world != "nccl" and prop.profile in DEVICES:
        return NONE
    return AMOUNTS[world].get(prop.name, OTHERS[world])


def shown(world: str, props: Sequence[Property]) -> list[Property]:
    """Those of the properties that the world can show."""
    return [prop for prop in props if amount(world, prop) != NONE]


def played(profiles: Sequence[Profile], level: Level) -> list[Property]:
    """The properties of these profiles that can be played at the level."""
    return [prop for prop in PROPERTIES.values() if prop.profile in profiles and prop.least <= level]
