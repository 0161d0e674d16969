"""Balance: which holder is the first to send each tensor of a submission, so that its bytes spread over all holders."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Protocol

import torch

from restripe.layout.mesh import Layout
from restripe.planning.planner import max_receivers


class MovedTensor(Protocol):
    """One tensor of a submission."""

    @property
    def src(self) -> Layout: ...
    @property
    def dst(self) -> Layout: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...


def rotations(tensors: Sequence[MovedTensor]) -> list[int]:
    """Return the round-robin offset of each tensor among the holders of its source; see `plan`.

    The largest come first; of the holders of its source, those that carry the least so far serve the targets that are left
    when all have served equally many. It follows from the layouts, shapes and dtypes alone, so every rank finds the same.
    """
    offsets = [0] * len(tensors)
    loads: dict[Hashable, list[float]] = {}
    counts: dict[Hashable, int] = {}
    for number in sorted(range(len(tensors)), key=lambda n: (-_size_in_bytes(tensors[n]), n)):
        src, dst, shape = tensors[number].src, tensors[number].dst, tensors[number].shape
        size = _size_in_bytes(tensors[number])
        if src.replicas > 1 and size:
            key = src, dst, shape
            if key not in counts:
                counts[key] = max_receivers(src, dst, shape)
            load = loads.setdefault((src.mesh, src.replicating), [0.0] * src.replicas)
            offsets[number] = _least_loaded(load, counts[key], size)
    return offsets


def _least_loaded(load: list[float], targets: int, size: int) -> int:
    """Return the holder that begins, and add what those carry that serve the targets left over."""
    left = targets % len(load)
    before = list(accumulate([*load, *load], initial=0.0))
    start = min(range(len(load)), key=lambda n: (before[n + left] - before[n], n)) if left else 0
    for n in range(left):
        load[(start + n) % len(load)] += size / targets
    return start


def _size_in_bytes(tensor: MovedTensor) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize
