"""Which holder begins for each tensor of a submission, so that the bytes of all of them spread over the holders."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Protocol

import torch

from restripe.layout.mesh import Layout
from restripe.planning.planner import takers


class Moved(Protocol):
    """One tensor of a submission."""

    @property
    def src(self) -> Layout: ...
    @property
    def dst(self) -> Layout: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...


def turns(tensors: Sequence[Moved]) -> list[int]:
    """The turn of each tensor; see `plan`.

    The largest come first; of the holders of its source, those that carry the least so far serve the targets that are left
    when all have served equally many. It follows from the layouts, shapes and dtypes alone, so every rank finds the same.
    """
    found = [0] * len(tensors)
    loads: dict[Hashable, list[float]] = {}
    counts: dict[Hashable, int] = {}
    for place in sorted(range(len(tensors)), key=lambda n: (-_size(tensors[n]), n)):
        src, dst, shape = tensors[place].src, tensors[place].dst, tensors[place].shape
        holders = src.replicas
        if holders > 1 and _size(tensors[place]):
            key = src, dst, shape
            if key not in counts:
                counts[key] = takers(src, dst, shape)
            load = loads.setdefault((src.mesh, src.replicating), [0.0] * holders)
            found[place] = _serve(load, counts[key], _size(tensors[place]))
    return found


def _serve(load: list[float], targets: int, size: int) -> int:
    """The holder that begins; so many targets take equal shares of the size, and those left over go to the least loaded."""
    left = targets % len(load)
    before = list(accumulate([*load, *load], initial=0.0))
    start = min(range(len(load)), key=lambda n: (before[n + left] - before[n], n)) if left else 0
    for n in range(left):
        load[(start + n) % len(load)] += size / targets
    return start


def _size(tensor: Moved) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize
