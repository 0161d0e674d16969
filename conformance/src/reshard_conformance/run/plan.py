"""The plan of a run: chunks, each determined by world, property and seed alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reshard_conformance.case.models import MAPPINGS
from reshard_conformance.contract import Level, Profile
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.search.bench import Property

__all__ = [
    "EFFORTS",
    "NCCL_LAYOUTS",
    "WORLD_SIZES",
    "Chunk",
    "plan_chunks",
    "playable_properties",
    "properties_shown_in",
]

#: The number of times that each effort plays the fixed part of quick.
EFFORTS = {"quick": 1, "full": 5, "soak": 50}
#: The default world sizes of a run.
WORLD_SIZES = {"sim": tuple(range(1, 9)), "gloo": tuple(range(2, 9)), "nccl": tuple(range(2, 9))}
#: Profiles that a world without devices cannot show.
DEVICE_PROFILES = {Profile.STREAMS, Profile.LARGE}
NOTHING = (0, 0, 0)
#: Chunks, rounds per chunk and examples per round of quick, by world and property.
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
        "soak": NOTHING,
    },
    "gloo": {
        "exact": (6, 3, 25),
        "strided": (1, 5, 20),
        "segmented": (1, 5, 20),
        "models": NOTHING,
        "submissions": (1, 1, 1),
        "soak": NOTHING,
    },
    "nccl": {
        "models": NOTHING,
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
#: The same three numbers for properties that AMOUNTS does not name.
DEFAULT_AMOUNTS = {"sim": (1, 1, 80), "gloo": (1, 1, 8), "nccl": (1, 1, 8)}
#: The approximate number of layouts that core's steered property draws in a quick run in nccl; those of other profiles
#: draw one in OTHER_PROFILES_SHARE of it.
NCCL_LAYOUTS, OTHER_PROFILES_SHARE = 2300, 8
#: The weights of world sizes among these layouts, 1 for others: small worlds are fastest, as ranks that share a GPU wait
#: for each other.
SIZE_WEIGHTS = {2: 6, 3: 6, 4: 6}
#: The number of scripts per chunk and per round there; the scripts of a chunk share meshes, and so communicators.
SCRIPTS_PER_CHUNK, SCRIPTS_PER_ROUND = 330, 30
#: The lowest seed of the fresh part; those of the fixed part are below it.
FIRST_FRESH_SEED = 1 << 40


@dataclass(frozen=True)
class Chunk:
    """A piece of a run: `rounds` searches of `examples` draws each.

    sizes: the world sizes to draw from. fresh: it belongs to the part under a fresh seed.
    """

    world: str
    prop: str
    sizes: tuple[int, ...]
    seed: int
    rounds: int
    examples: int
    fresh: bool = False


def plan_chunks(
    worlds: Mapping[str, tuple[int, ...]],
    profiles: Sequence[Profile],
    level: Level,
    effort: str,
    seed: int,
    layouts: int = NCCL_LAYOUTS,
) -> tuple[Chunk, ...]:
    """Return the chunks of a run in these worlds (with their sizes): a fixed part, and a tenth as much under a fresh seed.

    A property that is played only once has no fresh part. layouts: the approximate number in a quick run in nccl.
    """
    fixed: list[Chunk] = []
    fresh: list[Chunk] = []
    for world, sizes in worlds.items():
        for index, prop in enumerate(properties_shown_in(world, playable_properties(profiles, level))):
            if world == "nccl":
                fixed += device_chunks(prop, index, sizes, EFFORTS[effort], layouts)
                fresh += fresh_device_chunks(prop, sizes, seed, layouts)
                continue
            number, rounds, examples = amounts(world, prop)
            number *= EFFORTS[effort]
            fixed += [Chunk(world, prop.name, sizes, fixed_seed, rounds, examples) for fixed_seed in range(number)]
            per_chunk = rounds * examples
            total = -(-number * per_chunk // 10) if per_chunk > 1 else 0
            for start in range(0, total, per_chunk or 1):
                count = min(per_chunk, total - start)
                fresh.append(Chunk(world, prop.name, sizes, fresh_seed(seed, start // per_chunk), 1, count, fresh=True))
    fixed.sort(key=lambda chunk: chunk.prop != "soak")  # it takes longest, and others are played meanwhile
    return (*fixed, *fresh)


def fresh_seed(seed: int, index: int) -> int:
    return FIRST_FRESH_SEED + (seed << 20) + index


def device_chunks(prop: Property, index: int, sizes: tuple[int, ...], times: int, layouts: int) -> list[Chunk]:
    """Return the fixed chunks of a property in nccl, each of one world size, whose communicators its scripts share."""
    if not prop.steered:
        number, rounds, examples = amounts("nccl", prop)
        small = small_world_sizes(sizes)[: 1 if rounds * examples == 1 else None]
        return [
            Chunk("nccl", prop.name, (small[(index + chunk) % len(small)],), chunk, rounds, examples)
            for chunk in range(number * times)
        ]
    chunks: list[Chunk] = []
    layouts = layouts if prop.profile is Profile.CORE else -(-layouts // OTHER_PROFILES_SHARE)
    for size, scripts in scripts_by_size(sizes, layouts * times).items():
        number = -(-scripts // SCRIPTS_PER_CHUNK)
        rounds = max(
            4, -(-scripts // (number * SCRIPTS_PER_ROUND))
        )  # a round aims at the classes that lag after earlier rounds
        examples = -(-scripts // (number * rounds))
        chunks += [Chunk("nccl", prop.name, (size,), len(chunks) + i, rounds, examples) for i in range(number)]
    return chunks


def fresh_device_chunks(prop: Property, sizes: tuple[int, ...], seed: int, layouts: int) -> list[Chunk]:
    """Return the fresh chunks in nccl: a tenth of core's steered property, in small worlds."""
    small = small_world_sizes(sizes) if prop.steered and prop.profile is Profile.CORE else ()
    examples = -(-layouts // (10 * max(1, len(small))))
    return [
        Chunk("nccl", prop.name, (size,), fresh_seed(seed, index), 1, examples, fresh=True)
        for index, size in enumerate(small)
    ]


def small_world_sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the world sizes of 2 to 4 ranks; the smallest size if there are none."""
    several = tuple(size for size in sizes if size > 1) or sizes
    return tuple(size for size in several if size <= 4) or several[:1]


def scripts_by_size(sizes: tuple[int, ...], scripts: int) -> dict[int, int]:
    """Return the number of scripts of each world size."""
    total = sum(SIZE_WEIGHTS.get(size, 1) for size in sizes)
    return {size: -(-scripts * SIZE_WEIGHTS.get(size, 1) // total) for size in sizes}


def amounts(world: str, prop: Property) -> tuple[int, int, int]:
    """Return chunks, rounds per chunk and examples per round of quick, but for steered properties in nccl; see NCCL_LAYOUTS."""
    if world != "nccl" and prop.profile in DEVICE_PROFILES:
        return NOTHING
    return AMOUNTS[world].get(prop.name, DEFAULT_AMOUNTS[world])


def properties_shown_in(world: str, props: Sequence[Property]) -> list[Property]:
    """Return the properties that the world can show."""
    return [prop for prop in props if amounts(world, prop) != NOTHING]


def playable_properties(profiles: Sequence[Profile], level: Level) -> list[Property]:
    """Return the properties of these profiles that can be played at the level."""
    return [prop for prop in PROPERTIES.values() if prop.profile in profiles and prop.least <= level]
