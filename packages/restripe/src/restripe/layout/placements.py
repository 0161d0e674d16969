"""Placements: the kinds that restripe moves, and the tensor dim that each shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from restripe.errors import InvalidPlacementError, ShapeError, UnsupportedPlacementError
from restripe.layout.segmented import Segmented


def check_kinds(placements: Sequence[object]) -> None:
    """Refuse every placement that is none of Shard, Replicate, _StridedShard (subclasses too) and Segmented.

    Raises:
        UnsupportedPlacementError: another kind of placement.
        InvalidPlacementError: a strided shard of no pieces, segments that are none.
    """
    for mesh_dim, placement in enumerate(placements):
        if type(placement) not in (Shard, Replicate, _StridedShard) and not _is_segmented(placement):
            raise UnsupportedPlacementError(
                f"placement {placement!r} of mesh dim {mesh_dim} cannot be moved: expected Shard(dim), Replicate(), "
                "_StridedShard or Segmented(dim, sizes); redistribute to one of them first"
            )
        if isinstance(placement, _StridedShard) and placement.split_factor < 1:
            raise InvalidPlacementError(
                f"{placement!r} of mesh dim {mesh_dim} cuts into {placement.split_factor} pieces; give a split_factor of 1 or more"
            )
        as_segmented(placement)


def _is_segmented(placement: object) -> bool:
    """Return whether a placement has the attributes of a segmented shard; a class of another library serves as well."""
    return not isinstance(placement, Shard | Replicate) and hasattr(placement, "dim") and hasattr(placement, "sizes")


def as_segmented(placement: Any) -> Placement:
    """Return a segmented shard of any class as a Segmented, every other placement as it is."""
    if isinstance(placement, Segmented) or not _is_segmented(placement):
        return cast("Placement", placement)
    return Segmented(placement.dim, placement.sizes)


def shard_dims(placements: Sequence[Placement], ndim: int) -> tuple[int | None, ...]:
    """Return for each mesh dim the tensor dim that it shards, counted from 0, or None where it replicates.

    Raises:
        InvalidPlacementError: a shard dim outside [-ndim, ndim); a segmented shard of a dim that is sharded before.
    """
    dims: list[int | None] = []
    for mesh_dim, placement in enumerate(placements):
        if type(placement) is Replicate:  # torch's isinstance costs ten times more
            dims.append(None)
            continue
        dim = placement.dim  # type: ignore[attr-defined]  # every other kind has one, and a common class is missing
        if not -ndim <= dim < ndim:
            raise InvalidPlacementError(
                f"{placement!r} of mesh dim {mesh_dim} names tensor dim {dim}, but the tensor has {ndim} dims; name one in [{-ndim}, {ndim})"
            )
        if _is_segmented(placement) and dim % ndim in dims:
            raise InvalidPlacementError(
                f"{placement!r} of mesh dim {mesh_dim} follows another shard of tensor dim {dim}; segments are the whole dim's, so put it leftmost"
            )
        dims.append(dim % ndim)
    return tuple(dims)


def check_segments(placements: Sequence[Placement], shape: Sequence[int]) -> tuple[int | None, ...]:
    """Return what `shard_dims` returns; refuse segments that do not add up to their tensor dim (ShapeError)."""
    dims = shard_dims(placements, len(shape))
    for placement, dim in zip(placements, dims, strict=True):
        if type(placement) in (Shard, Replicate):
            continue
        segmented = as_segmented(placement)
        if dim is not None and isinstance(segmented, Segmented) and sum(segmented.sizes) != shape[dim]:
            raise ShapeError(
                f"{segmented!r} has segments of {sum(segmented.sizes)} elements in all, but tensor dim {dim} has {shape[dim]}; "
                "give the global length of every segment"
            )
    return dims


def with_dim(placement: Placement, dim: int | None) -> Placement:
    """Return a placement of the same kind for this tensor dim."""
    if dim is None:
        return placement
    if isinstance(placement, _StridedShard):
        return _StridedShard(dim, split_factor=placement.split_factor)
    return Segmented(dim, placement.sizes) if isinstance(placement, Segmented) else Shard(dim)
