"""Local tensors too large for a copy on the host: drawn and compared on their device, part by part.

As in `oracle`, every byte follows from the element's index in the global tensor and from the call. The global indices of
a rank's elements come from torch.chunk, one tensor dim at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from reshard_conformance.case.files import Case, CaseError, Side, read_placement
from reshard_conformance.judge.oracle import POISON, mesh_coordinate, mix_bits, row_major_strides, torch_chunk

__all__ = ["LARGE_NUMEL", "LargeTensor", "is_large", "make_large_tensor"]

#: A tensor of at least so many elements is a large one.
LARGE_NUMEL = 1 << 28
#: Elements that are drawn at a time.
PART_NUMEL = 1 << 24


def is_large(case: Case) -> bool:
    """Tell whether the case's global tensor is a large one."""
    return math.prod(case.shape) >= LARGE_NUMEL


@dataclass(frozen=True)
class LargeTensor:
    """A contiguous local tensor of bytes that the suite compares after the call.

    tensor: uint8. indices: for each dim, the global indices of the local elements, int64. strides: of the global tensor,
    in elements. call: as for `oracle.draw_bytes`. mask: the bits in which the tensor's first content differs from what is
    drawn.
    """

    tensor: torch.Tensor
    indices: tuple[torch.Tensor, ...]
    strides: tuple[int, ...]
    call: int
    mask: int

    def parts(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the tensor as flat parts, each with the bytes drawn for it."""
        if not self.tensor.numel():
            return
        row_indices, *inner_indices = self.indices
        offsets = torch.zeros((), dtype=torch.int64, device=self.tensor.device)
        for indices, stride in zip(inner_indices, self.strides[1:], strict=True):
            offsets = offsets.unsqueeze(-1) + indices * stride
        rows = max(1, PART_NUMEL // offsets.numel())
        for start in range(0, row_indices.numel(), rows):
            index = row_indices[start : start + rows, None] * self.strides[0] + offsets.flatten()
            drawn = mix_bits(index, self.call, 64).bitwise_and_(0xFF).flatten()
            yield self.tensor[start : start + rows].flatten(), drawn

    def fill(self) -> None:
        """Write the first content."""
        for part, drawn in self.parts():
            part.copy_(drawn.to(torch.uint8) ^ self.mask)

    def differences(self, expected: torch.Tensor | None) -> list[str]:
        """Compare the tensor with what is drawn, or with its first content where nothing may have been written (None)."""
        mask = self.mask if expected is None else 0
        wrong = sum(int((part != drawn.to(torch.uint8) ^ mask).sum()) for part, drawn in self.parts())
        return [f"{wrong} of {self.tensor.numel()} elements differ"] if wrong else []


def make_large_tensor(
    case: Case, side: Side, rank: int, call: int, device: torch.device, *, filled: bool
) -> LargeTensor | None:
    """Make the rank's tensor of one side on the device; None outside the mesh.

    filled: the tensor starts with the bytes that are drawn; else every byte starts as another one.
    """
    if case.dtype != "uint8" or side.memory != "contiguous" or case.fault is not None or not case.shape:
        raise CaseError("shape", "contiguous uint8 without a fault, for so many elements", case.shape)
    coordinate = mesh_coordinate(side, rank)
    if coordinate is None:
        return None
    indices = [torch.arange(size, device=device) for size in case.shape]
    for text, parts, index in zip(side.placements, side.mesh_shape, coordinate, strict=True):
        placement = read_placement(text)
        if placement.kind == "S":
            dim = placement.dim % len(indices)
            indices[dim] = torch_chunk(indices[dim], parts, 0, index)
    tensor = torch.empty([dim_indices.numel() for dim_indices in indices], dtype=torch.uint8, device=device)
    strides = tuple(row_major_strides(case.shape))
    large = LargeTensor(tensor, tuple(indices), strides, call, 0 if filled else POISON)
    large.fill()
    return large
