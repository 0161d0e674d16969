"""Cases from real models: each parameter class on its way from the ranks of a trainer to those of a generator.

A model is a list of parameter classes; a mapping says for each class how trainer and generator ranks hold it. Trainer
ranks come first, then generator ranks; the two are disjoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from reshard_conformance.case.files import Case, NestedInts, Side

__all__ = [
    "DENSE",
    "EXPERTS",
    "MAPPINGS",
    "SCALE",
    "Deployment",
    "Mapping",
    "MeshLayout",
    "Model",
    "Parameter",
    "mapping_cases",
]

#: The factor by which each tensor dim of a case is smaller than in the model; every shard of MAPPINGS is still even.
SCALE = 16


@dataclass(frozen=True)
class Parameter:
    """A class of parameters with one shape and one layout.

    shape: the global shape, in elements. count: the number of such tensors in the model.
    stage: the pipeline stage that holds it, counted from 0 or from the end; None where every stage has some.
    """

    name: str
    shape: tuple[int, ...]
    count: int
    stage: int | None = None

    def stages(self, number: int) -> tuple[int, ...]:
        """Return the stages, of this many, that hold tensors of the class."""
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
class MeshLayout:
    """A layout over consecutive ranks: the mesh's sizes, and one placement a mesh dim, as a case spells it."""

    mesh: tuple[int, ...]
    placements: tuple[str, ...]

    def side(self, first_rank: int) -> Side:
        """Return the side of a case whose mesh starts at a rank."""
        return Side(consecutive_mesh(self.mesh, first_rank), self.placements)


def consecutive_mesh(sizes: tuple[int, ...], first_rank: int) -> NestedInts:
    """Return a mesh of these sizes with consecutive ranks, row-major."""
    if len(sizes) == 1:
        return tuple(range(first_rank, first_rank + sizes[0]))
    inner = math.prod(sizes[1:])
    return tuple(consecutive_mesh(sizes[1:], first_rank + inner * index) for index in range(sizes[0]))


@dataclass(frozen=True)
class Deployment:
    """The ranks of a trainer or of a generator, and the layout of every parameter class on them.

    mesh: the sizes of one pipeline stage's mesh; a class that `layouts` does not name is replicated on all of it.
    layouts: by class name. stages: the number of pipeline stages, on consecutive meshes.
    """

    mesh: tuple[int, ...]
    layouts: dict[str, MeshLayout] = field(default_factory=dict)
    stages: int = 1

    def __post_init__(self) -> None:
        for name, layout in self.layouts.items():
            if math.prod(layout.mesh) != math.prod(self.mesh) or len(layout.mesh) != len(layout.placements):
                raise ValueError(f"{name}: {layout} does not fill a stage of {math.prod(self.mesh)} ranks")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.stages * math.prod(self.mesh)

    def side(self, name: str, first_rank: int, stage: int = 0) -> Side:
        """Return the side of a tensor of the class on one stage; the deployment's ranks start at `first_rank`."""
        layout = self.layouts.get(name, MeshLayout(self.mesh, ("R",) * len(self.mesh)))
        return layout.side(first_rank + stage * math.prod(self.mesh))


@dataclass(frozen=True)
class Mapping:
    """A model, and its layouts on the ranks of a trainer and on those of a generator."""

    name: str
    model: Model
    trainer: Deployment
    generator: Deployment

    def __post_init__(self) -> None:
        names = {parameter.name for parameter in self.model.parameters}
        for name in (*self.trainer.layouts, *self.generator.layouts):
            if name not in names:
                raise ValueError(f"mapping {self.name}: {self.model.name} has no parameters {name!r}")

    @property
    def world_size(self) -> int:
        """The number of ranks of both."""
        return self.trainer.size + self.generator.size


def mapping_cases(mapping: Mapping, scale: int = SCALE) -> Iterator[Case]:
    """Yield a case for each parameter class and each pipeline stage that holds it, every dim `scale` times smaller.

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


def shard_last_mesh_dim(mesh: tuple[int, ...], **dims: int) -> dict[str, MeshLayout]:
    """Return a layout for each class: the mesh's last dim shards the given tensor dim, the others replicate."""
    replicated = ("R",) * (len(mesh) - 1)
    return {name: MeshLayout(mesh, (*replicated, f"S({dim})")) for name, dim in dims.items()}


def dense_tensor_parallel(*mesh: int) -> Deployment:
    """Return tensor parallelism of the dense model over the mesh's last dim."""
    return Deployment(mesh, shard_last_mesh_dim(mesh, q=0, k=0, v=0, gate=0, up=0, o=1, down=1))


def expert_parallel(*mesh: int, stages: int = 1) -> Deployment:
    """Return expert parallelism over the mesh's last dim; everything else is replicated."""
    return Deployment(mesh, shard_last_mesh_dim(mesh, gate=0, up=0, down=0), stages)


def expert_tensor_parallel(replicas: int, parallel: int) -> Deployment:
    """Return tensor parallelism of the experts model, every expert included, over `parallel` ranks.

    Keys and values have 4 heads, which are sharded over 4 ranks and replicated over the rest.
    """
    mesh = (replicas, parallel)
    heads = MeshLayout((replicas, 4, parallel // 4), ("R", "S(0)", "R"))
    return Deployment(
        mesh, shard_last_mesh_dim(mesh, q=0, o=1, gate=1, up=1, down=2, embedding=0, head=0) | {"k": heads, "v": heads}
    )


def expert_and_tensor_parallel(*mesh: int) -> Deployment:
    """Return expert parallelism over the first mesh dim and tensor parallelism of each expert over the second."""
    gate, down = MeshLayout(mesh, ("S(0)", "S(1)")), MeshLayout(mesh, ("S(0)", "S(2)"))
    return Deployment(mesh, {"gate": gate, "up": gate, "down": down})


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
    Mapping("DP8 to TP8", DENSE, Deployment((8,)), dense_tensor_parallel(8)),
    Mapping("TP2xDP4 to TP4xDP2", DENSE, dense_tensor_parallel(4, 2), dense_tensor_parallel(2, 4)),
    Mapping("EP8xPP2 to TP8xDP2", EXPERTS, expert_parallel(8, stages=2), expert_tensor_parallel(2, 8)),
    Mapping("EP4xDP2 to TP4xEP1xDP2", EXPERTS, expert_parallel(2, 4), expert_tensor_parallel(2, 4)),
    Mapping("EP4xETP2 to EP8", EXPERTS, expert_and_tensor_parallel(4, 2), expert_parallel(8)),
)
