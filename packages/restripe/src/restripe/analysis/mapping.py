"""Layouts of a model's tensors on a trainer or a generator, from degrees of parallelism such as EP8xPP2."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from restripe.analysis.models import Parameter
from restripe.analysis.spelling import SpellingError, mesh_of_ranks
from restripe.layout.mesh import Layout

_DEGREE = re.compile(r"(PP|DP|EP|ETP|TP)(\d+)")


@dataclass(frozen=True)
class Degrees:
    """Degrees of parallelism. The mesh of ranks is PP x DP x EP x (ETP or TP), PP outermost.

    pp: number of pipeline stages, each with layers of its own.
    dp: number of copies of a stage.
    ep: number of parts of the experts; every other tensor is whole on each of these ranks.
    tp: number of parts of every tensor that is cut, the experts included.
    etp: number of parts of each expert; every other tensor is whole on each of these ranks.

    Raises:
        SpellingError: a degree below 1, or both tp and etp.
    """

    pp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    tp: int = 1

    def __post_init__(self) -> None:
        if any(getattr(self, degree.name) < 1 for degree in fields(self)):
            raise SpellingError(f"expected degrees of 1 or more, got {self}")
        if self.tp > 1 and self.etp > 1:
            raise SpellingError("expected TP or ETP, not both: TP cuts every tensor, ETP the experts alone")

    @classmethod
    def of(cls, text: str) -> Degrees:
        """Return the degrees of a text such as `EP8xPP2`: PP, DP, EP, ETP and TP, each at most once, in any order."""
        degrees: dict[str, int] = {}
        for part in text.split("x"):
            match = _DEGREE.fullmatch(part)
            if match is None or match[1].lower() in degrees:
                raise SpellingError(
                    f"expected PP, DP, EP, ETP or TP with a number, each once and joined by x, such as EP8xPP2, got {text!r}"
                )
            degrees[match[1].lower()] = int(match[2])
        return cls(**degrees)

    @property
    def stage(self) -> int:
        """The number of ranks of one pipeline stage."""
        return self.dp * self.ep * self.etp * self.tp

    @property
    def ranks(self) -> int:
        """The number of ranks of all stages."""
        return self.pp * self.stage


@dataclass(frozen=True)
class Move:
    """A tensor and the layouts that it moves between."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    src: Layout
    dst: Layout

    @property
    def numel(self) -> int:
        """The number of elements of the tensor."""
        return math.prod(self.shape)


def moves(parameters: Sequence[Parameter], train: Degrees, generate: Degrees, host: int | None = None) -> list[Move]:
    """Return the moves of parameters from the trainer, on the first ranks, to the generator, on the next ones.

    Args:
        host: number of ranks on a host, for meshes that know their hosts.

    Raises:
        SpellingError: more pipeline stages than layers, or heads that do not divide by the degree.
    """
    layers = max(parameter.layer for parameter in parameters) + 1
    sides = _Side(train, 0, layers, host), _Side(generate, train.ranks, layers, host)
    return [
        Move(tensor.name, tensor.kind, tensor.shape, tensor.dtype, *(side.layout(tensor) for side in sides))
        for tensor in parameters
    ]


@dataclass(frozen=True)
class _Side:
    """A trainer or a generator: its degrees, on the ranks from `first_rank` on."""

    degrees: Degrees
    first_rank: int
    layers: int
    host: int | None

    def __post_init__(self) -> None:
        if self.degrees.pp > self.layers:
            raise SpellingError(f"expected at most {self.layers} pipeline stages, one a layer, got PP{self.degrees.pp}")

    def layout(self, parameter: Parameter) -> Layout:
        """Return the layout of a parameter on the ranks of its stage."""
        stage = (parameter.layer * self.degrees.pp) // self.layers
        return _layout(self._dims(parameter), self.first_rank + stage * self.degrees.stage, self.host)

    def _dims(self, parameter: Parameter) -> tuple[tuple[int, int | None], ...]:
        """Return size and sharded tensor dim of the mesh dims, outermost first; None where a mesh dim replicates."""
        degrees = self.degrees
        split, ways = parameter.split, parameter.ways
        if parameter.expert:
            return (degrees.dp, None), (degrees.ep, 0), (degrees.etp * degrees.tp, split)
        copies = (degrees.dp, None), (degrees.ep * degrees.etp, None)
        if ways is not None and ways % degrees.tp and degrees.tp % ways:
            raise SpellingError(f"{parameter.name} has {ways} heads, which do not spread evenly over TP{degrees.tp}")
        if split is None or ways is None or ways >= degrees.tp:
            return (*copies, (degrees.tp, split))
        return (*copies, (ways, split), (degrees.tp // ways, None))


@cache
def _layout(dims: tuple[tuple[int, int | None], ...], first_rank: int, host: int | None) -> Layout:
    """Return the layout on the ranks from `first_rank` on, without dims of size 1.

    Equal layouts are one object, so that comparing them is fast.
    """
    kept = [(size, dim) for size, dim in dims if size > 1] or [(1, None)]
    sizes = tuple(size for size, _ in kept)
    placements: list[Placement] = [Replicate() if dim is None else Shard(dim) for _, dim in kept]
    return Layout(
        mesh_of_ranks(sizes, tuple(range(first_rank, first_rank + math.prod(sizes))), host), tuple(placements)
    )
