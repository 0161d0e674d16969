"""Segmented, restripe's own placement: a tensor dim of several segments that are each sharded by themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import Any

from torch.distributed.tensor.placement_types import Placement

from restripe.errors import InvalidPlacementError


@dataclass(frozen=True, init=False)
class Segmented(Placement):
    """Shards a tensor dim segment by segment: a fused query-key-value matrix, gate and up in one, experts in one.

    The dim is cut into segments of these global sizes; each is cut over the mesh dim as torch.chunk cuts, and a rank holds
    its chunk of every segment, one after another.

    Args:
        dim: the tensor dim; a negative one counts from the last.
        sizes: the segments' lengths in elements; they add up to the dim's.

    Raises:
        InvalidPlacementError: no segment, a size below 0, or what is no whole number.
    """

    dim: int
    sizes: tuple[int, ...]

    def __init__(self, dim: int, sizes: Iterable[int]) -> None:
        super().__init__()  # torch's placements are C++ objects, which a dataclass's own __init__ would leave unmade
        try:
            object.__setattr__(self, "dim", index(dim))
            object.__setattr__(self, "sizes", tuple(index(size) for size in sizes))
        except TypeError as error:
            raise InvalidPlacementError(
                f"expected a tensor dim and the sizes of its segments, got {dim!r} and {sizes!r} ({error}); pass whole numbers"
            ) from error
        if not self.sizes or min(self.sizes) < 0:
            raise InvalidPlacementError(
                f"expected segments of 0 or more elements, at least one, got sizes {self.sizes}; give the length of each"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.dim, self.sizes)
