"""Local tensors of more elements than fit the host: drawn and compared where they are, in pieces.

A byte follows from the element's place in the global tensor and from the call, as in `oracle`; where a rank's elements are in the
global tensor is cut by torch.chunk, one tensor dim at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from reshard_conformance.cases import Case, CaseError, Side, read_placement
from reshard_conformance.oracle import POISON, chunk, coordinates, mix, row_major

__all__ = ["VAST", "Vast", "is_vast", "lay"]

#: From so many elements on, a tensor is vast.
VAST = 1 << 28
#: Elements that are drawn at a time.
PIECE = 1 << 24


def is_vast(case: Case) -> bool:
    """Whether the case's global tensor has so many elements."""
    return math.prod(case.shape) >= VAST


@dataclass(frozen=True)
class Vast:
    """A contiguous local tensor of bytes that the suite watches.

    tensor: uint8. places: for each dim, the global indices of the local ones, int64. strides: of the global tensor, in
    elements. call: as for `oracle.draw`. mask: what the tensor starts with, against what is drawn.
    """

    tensor: torch.Tensor
    places: tuple[torch.Tensor, ...]
    strides: tuple[int, ...]
    call: int
    mask: int

    def pieces(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The tensor as flat parts, each with the bytes that are drawn for it."""
        if not self.tensor.numel():
            return
        first, *rest = self.places
        inner = torch.zeros((), dtype=torch.int64, device=self.tensor.device)
        for place, stride in zip(rest, self.strides[1:], strict=True):
            inner = inner.unsqueeze(-1) + place * stride
        rows = max(1, PIECE // inner.numel())
        for start in range(0, first.numel(), rows):
            index = first[start : start + rows, None] * self.strides[0] + inner.flatten()
            yield self.tensor[start : start + rows].flatten(), mix(index, self.call, 64).bitwise_and_(0xFF).flatten()

    def fill(self) -> None:
        """Give the tensor what it starts with."""
        for part, drawn in self.pieces():
            part.copy_(drawn.to(torch.uint8) ^ self.mask)

    def differences(self, expected: torch.Tensor | None) -> list[str]:
        """How the tensor differs from what is drawn; from what it started with, where nothing was to be written (None)."""
        mask = self.mask if expected is None else 0
        wrong = sum(int((part != drawn.to(torch.uint8) ^ mask).sum()) for part, drawn in self.pieces())
        return [f"{wrong} of {self.tensor.numel()} elements differ"] if wrong else []


def lay(case: Case, side: Side, rank: int, call: int, device: torch.device, *, filled: bool) -> Vast | None:
    """The rank's tensor of one side, on the device, holding what is drawn or (not filled) none of it; None outside the mesh."""
    if case.dtype != "uint8" or side.memory != "contiguous" or case.fault is not None or not case.shape:
        raise CaseError("shape", "contiguous uint8 without a fault, for so many elements", case.shape)
    coordinate = coordinates(side, rank)
    if coordinate is None:
        return None
    places = [torch.arange(size, device=device) for size in case.shape]
    for text, parts, index in zip(side.placements, side.mesh_shape, coordinate, strict=True):
        placement = read_placement(text)
        if placement.kind == "S":
            dim = placement.dim % len(places)
            places[dim] = chunk(places[dim], parts, 0, index)
    tensor = torch.empty([place.numel() for place in places], dtype=torch.uint8, device=device)
    vast = Vast(tensor, tuple(places), tuple(row_major(case.shape)), call, 0 if filled else POISON)
    vast.fill()
    return vast
