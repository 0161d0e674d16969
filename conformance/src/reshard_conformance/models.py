"""Real models and the mappings from trainer to generator ranks that they are moved by, as cases.

A model is a list of parameter classes; a mapping says for each class how trainer and generator ranks hold it. Trainer
ranks come first, then generator ranks; the two are disjoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from reshard_conformance.cases import Case, NestedInts, Side

__all__ = ["DENSE", "EXPERTS", "MAPPINGS", "SCALE", "Fleet", "Mapping", "Model", "Parameter", "Spread", "cases"]

#: How many times smaller than in the model each tensor dim of a case is; every shard of MAPPINGS is even still.
SCALE = 16


@dataclass(frozen=True)
class Parameter:
    """A class of parameters that are held alike.

    shape: the global shape, in elements. count: how many tensors the model has of it.
    stage: the pipeline stage that holds it, counted from 0 or from the end; None where every stage has some.
    """

    name: str
    shape: tuple[int, ...]
    count: int
    stage: int | None = None

    def stages(self, number: int) -> tuple[int, ...]:
        """Which of this many stages hold tensors of the class."""
        return tuple(range(number)) if self.stage is None else (self.stage % number,)


@dataclass(frozen=True)
class Model:
    """A model by its parameter classes."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def tensors(self) -> int:
        """The number of tensors."""
        return sum(parameter.count for parameter in self.parameters)

    @property
    def numel(self) -> int:
        """The number of elements of all tensors."""
        return sum(parameter.count * math.prod(parameter.shape) for parameter in self.parameters)


@dataclass(frozen=True)
class Spread:
    """How a tensor lies over ranks that count up: the mesh's sizes, and one placement a mesh dim, as a case spells it."""

    mesh: tuple[int, ...]
    placements: tuple[str, ...]

    def side(self, first: int) -> Side:
        """The side of a case whose mesh starts at rank `first`."""
        return Side(grid(self.mesh, first), self.placements)


def grid(sizes: tuple[int, ...], first: int) -> NestedInts:
    """Ranks from `first` on, row-major, in a mesh of these sizes."""
    if len(sizes) == 1:
        return tuple(range(first, first + sizes[0]))
    inner = math.prod(sizes[1:])
    return tuple(grid(sizes[1:], first + inner * index) for index in range(sizes[0]))


@dataclass(frozen=True)
class Fleet:
    """The ranks of a trainer or of a generator.

    mesh: the mesh of one pipeline stage, and of classes that `spreads` does not name: those replicate on all of it.
    spreads: by class name. stages: how many such meshes follow one another.
    """

    mesh: tuple[int, ...]
    spreads: dict[str, Spread] = field(default_factory=dict)
    stages: int = 1

    def __post_init__(self) -> None:
        for name, spread in self.spreads.items():
            if math.prod(spread.mesh) != math.prod(self.mesh) or len(spread.mesh) != len(spread.placements):
                raise ValueError(f"{name}: {spread} does not fill a stage of {math.prod(self.mesh)} ranks")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.stages * math.prod(self.mesh)

    def side(self, name: str, first: int, stage: int = 0) -> Side:
        """How this stage of a fleet whose ranks start at `first` holds a tensor of the class."""
        spread = self.spreads.get(name, Spread(self.mesh, ("R",) * len(self.mesh)))
        return spread.side(first + stage * math.prod(self.mesh))


@dataclass(frozen=True)
class Mapping:
    """A model's way from the ranks of a trainer to those of a generator."""

    name: str
    model: Model
    trainer: Fleet
    generator: Fleet

    def __post_init__(self) -> None:
        known = {parameter.name for parameter in self.model.parameters}
        for name in (*self.trainer.spreads, *self.generator.spreads):
            if name not in known:
                raise ValueError(f"mapping {self.name}: {self.model.name} has no parameters {name!r}")

    @property
    def world_size(self) -> int:
        """The number of ranks of both."""
        return self.trainer.size + self.generator.size


def cases(mapping: Mapping, scale: int = SCALE) -> Iterator[Case]:
    """One case for each parameter class and each pipeline stage that holds it, every dim `scale` times smaller.

    A stage's tensors leave the ranks of the other stages idle. Raises ValueError for a dim that `scale` does not divide.
    """
    trainer, generator = mapping.trainer, mapping.generator
    for parameter in mapping.model.parameters:
        if any(size % scale for size in parameter.shape):
            raise ValueError(f"{mapping.model.name} {parameter.name}: {parameter.shape} is not divisible by {scale}")
        for stage in parameter.stages(trainer.stages):
            yield Case(
                mapping.world_size,
                tuple(size // scale for size in parameter.shape),
                "bfloat16",
                trainer.side(parameter.name, 0, stage),
                generator.side(parameter.name, trainer.size),
                name=f"{mapping.name}: {parameter.name}" + (f", stage {stage}" if trainer.stages > 1 else ""),
                why=f"{parameter.count} tensors of {parameter.shape} in {mapping.model.name}, here {scale} times smaller",
            )


def split(mesh: tuple[int, ...], **dims: int) -> dict[str, Spread]:
    """For each class the tensor dim that the mesh's last dim shards; the mesh dims before it replicate."""
    before = ("R",) * (len(mesh) - 1)
    return {name: Spread(mesh, (*before, f"S({dim})")) for name, dim in dims.items()}


def dense_fleet(*mesh: int) -> Fleet:
    """Tensor parallelism of the dense model over the mesh's last dim."""
    return Fleet(mesh, split(mesh, q=0, k=0, v=0, gate=0, up=0, o=1, down=1))


def dealt_fleet(*mesh: int, stages: int = 1) -> Fleet:
    """Whole experts, dealt out over the mesh's last dim; everything else is on every rank."""
    return Fleet(mesh, split(mesh, gate=0, up=0, down=0), stages)


def cut_fleet(replicas: int, parallel: int) -> Fleet:
    """Every expert and all else cut over `parallel` ranks, but keys and values over the 4 ranks that have a head each."""
    mesh = (replicas, parallel)
    heads = Spread((replicas, 4, parallel // 4), ("R", "S(0)", "R"))
    return Fleet(mesh, split(mesh, q=0, o=1, gate=1, up=1, down=2, embedding=0, head=0) | {"k": heads, "v": heads})


def dealt_and_cut_fleet(*mesh: int) -> Fleet:
    """Experts dealt out over the first mesh dim, and each cut over the second."""
    gate, down = Spread(mesh, ("S(0)", "S(1)")), Spread(mesh, ("S(0)", "S(2)"))
    return Fleet(mesh, {"gate": gate, "up": gate, "down": down})


DENSE = Model(
    "4B dense",
    (
        Parameter("q", (4096, 2560), 36),
        Parameter("k", (1024, 2560), 36),
        Parameter("v", (1024, 2560), 36),
        Parameter("o", (2560, 4096), 36),
        Parameter("gate", (9728, 2560), 36),
        Parameter("up", (9728, 2560), 36),
        Parameter("down", (2560, 9728), 36),
        Parameter("norm", (2560,), 2 * 36),
        Parameter("q and k norm", (128,), 2 * 36),
    ),
)

EXPERTS = Model(
    "30B mixture of experts",
    (
        Parameter("embedding", (151936, 2048), 1, stage=0),
        Parameter("q", (4096, 2048), 48),
        Parameter("k", (512, 2048), 48),
        Parameter("v", (512, 2048), 48),
        Parameter("o", (2048, 4096), 48),
        Parameter("norm", (2048,), 2 * 48 + 1),
        Parameter("q and k norm", (128,), 2 * 48),
        Parameter("router", (128, 2048), 48),
        Parameter("gate", (128, 768, 2048), 48),
        Parameter("up", (128, 768, 2048), 48),
        Parameter("down", (128, 2048, 768), 48),
        Parameter("head", (151936, 2048), 1, stage=-1),
    ),
)

MAPPINGS = (
    Mapping("DP8 to TP8", DENSE, Fleet((8,)), dense_fleet(8)),
    Mapping("TP2xDP4 to TP4xDP2", DENSE, dense_fleet(4, 2), dense_fleet(2, 4)),
    Mapping("EP8xPP2 to TP8xDP2", EXPERTS, dealt_fleet(8, stages=2), cut_fleet(2, 8)),
    Mapping("EP4xDP2 to TP4xEP1xDP2", EXPERTS, dealt_fleet(2, 4), cut_fleet(2, 4)),
    Mapping("EP4xETP2 to EP8", EXPERTS, dealt_and_cut_fleet(4, 2), dealt_fleet(8)),
)
