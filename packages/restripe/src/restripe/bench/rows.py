"""What is measured: tensors in bfloat16 and the layouts that they move between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from restripe.analysis.mapping import Degrees, Move, moves
from restripe.analysis.models import parameters
from restripe.analysis.spelling import layout

Shape = tuple[int, ...]
DTYPE = torch.bfloat16
SMALL, MB34, MB262, GIB = (64, 128), (4096, 4096), (25600, 5120), (32768, 16384)
SIZES = {"34 MB": MB34, "262 MB": MB262, "1 GiB": GIB}
#: Source and destination placements of the rows between disjoint meshes; those of two mesh dims are on 2 x n / 2 ranks.
PLACEMENTS = (
    ("S(0)", "S(0)"),
    ("S(0)", "S(1)"),
    ("S(1)", "S(0)"),
    ("S(0)", "R"),
    ("S(0)", "R,S(0)"),
    ("R", "S(0)"),
)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        name: how it is shown and chosen.
        tensors: with the layouts of each.
        repeats: how often every contender is timed.
    """

    name: str
    tensors: tuple[Move, ...]
    repeats: int = 30

    @property
    def size(self) -> int:
        """Global bytes."""
        return sum(one.numel for one in self.tensors) * DTYPE.itemsize

    @property
    def burst(self) -> int:
        """How many calls are timed in a row: so many that neither the clock's step nor what the first one costs counts."""
        return min(20, self.repeats) if len(self.tensors) == 1 else 1

    @property
    def once(self) -> Row:
        """The same row, timed once: where bytes matter, and times do not."""
        return replace(self, repeats=1)


def rows(ranks: int) -> tuple[Row, ...]:
    """The rows on so many ranks, in the order of the table."""
    return (*common(ranks), *between(ranks))


def common(ranks: int) -> Iterator[Row]:
    """The rows on any even number of ranks: from the first half to the second, or on all."""
    half = ranks // 2
    first, second, every = f"{half}:S(0)", f"{half}:S(0)", f"{ranks}:S(0)"
    yield _row("point 16 KiB", SMALL, first, second, half, 200)
    yield _row("point 34 MB", MB34, first, second, half, 60)
    yield _row("point 262 MB", MB262, first, second, half, 60)
    yield _row("point 1 GiB", GIB, first, second, half)
    yield _row("exchange 16 KiB", SMALL, every, f"{ranks}:S(1)", 0, 200)
    yield _row("exchange 262 MB", MB262, every, f"{ranks}:S(1)")
    yield _row("gather 262 MB", MB262, every, f"{ranks}:R")
    src, dst = layout(first), layout(second, first=half)
    yield Row("model 4B", tuple(Move(name, "", shape, DTYPE, src, dst) for name, shape in dense()), 20)


def between(ranks: int) -> Iterator[Row]:
    """The rows between disjoint meshes of several ranks, on four ranks and on eight."""
    if ranks == 4:
        yield from pair(2, 2)
        yield model("TP2", "TP2")
        yield model("DP2", "TP2")
    if ranks == 8:
        yield from pair(4, 4)
        yield model("TP4", "TP4")
        yield model("TP2xDP2", "TP4")
        yield model("DP4", "TP4")
        yield from pair(2, 6)
        yield from pair(6, 2)


def left_out(ranks: int) -> str:
    """Which rows need another number of ranks, in a sentence; empty where none does."""
    if ranks == 8:
        return ""
    return (
        f"left out on {ranks} ranks: "
        + "2 to 2, which needs 4, and " * (ranks != 4)
        + "4 to 4, 2 to 6 and 6 to 2, which need 8"
    )


def pair(sources: int, destinations: int) -> Iterator[Row]:
    """The rows from the first ranks to those after them."""
    for src, dst in PLACEMENTS:
        if "," in dst and destinations == 2:
            continue  # 2 x 1 ranks, which is R
        mesh = f"2x{destinations // 2}" if "," in dst else f"{destinations}"
        for words, shape in SIZES.items():
            name = f"{sources} to {destinations}, {src} to {dst}, {words}"
            yield _row(name, shape, f"{sources}:{src}", f"{mesh}:{dst}", sources, 12)


def model(train: str, generate: str) -> Row:
    """The 4B model from a trainer to a generator, in the layouts of these degrees of parallelism."""
    tensors = moves(parameters("qwen3-4b"), Degrees.of(train), Degrees.of(generate))
    return Row(f"model 4B, {train} to {generate}", tuple(tensors), 10)


def _row(name: str, shape: Shape, src: str, dst: str, first: int = 0, repeats: int = 30) -> Row:
    """A row of one tensor; the destination's ranks count up from `first`."""
    return Row(name, (Move("tensor", "", shape, DTYPE, layout(src), layout(dst, first=first)),), repeats)


def dense(
    layers: int = 36, hidden: int = 2560, intermediate: int = 9728, heads: int = 32, groups: int = 8, head: int = 128
) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of a dense model's layers; without arguments the 4B one: 396 tensors of 7.27 GB.

    Args:
        groups: the number of key-value heads.
        head: the size of a head.
    """
    layer = {
        "q": (heads * head, hidden),
        "k": (groups * head, hidden),
        "v": (groups * head, hidden),
        "o": (hidden, heads * head),
        "gate": (intermediate, hidden),
        "up": (intermediate, hidden),
        "down": (hidden, intermediate),
        "norm": (hidden,),
        "post_norm": (hidden,),
        "q_norm": (head,),
        "k_norm": (head,),
    }
    for number in range(layers):
        for name, shape in layer.items():
            yield f"layers.{number:02}.{name}", shape
