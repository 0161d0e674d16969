"""Placements: which kinds there are, and which tensor dim each shards."""

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
        known(placement)


def _is_segmented(placement: object) -> bool:
    """Whether it has what makes a segmented shard; another library's class serves as well as ours."""
    return not isinstance(placement, Shard | Replicate) and hasattr(placement, "dim") and hasattr(placement, "sizes")


def known(placement: Any) -> Placement:
    """A segmented shard as ours, whatever its class; every other placement as it is."""
    if isinstance(placement, Segmented) or not _is_segmented(placement):
        return cast("Placement", placement)
    return Segmented(placement.dim, placement.sizes)


def shard_dims(placements: Sequence[Placement], ndim: int) -> tuple[int | None, ...]:
    """For each mesh dim the tensor dim that it shards, counted from 0, or None where it replicates.

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
    """The same, and refuse segments that do not add up to their tensor dim (ShapeError)."""
    dims = shard_dims(placements, len(shape))
    for placement, dim in zip(placements, dims, strict=True):
        if type(placement) in (Shard, Replicate):
            continue
        ours = known(placement)
        if dim is not None and isinstance(ours, Segmented) and sum(ours.sizes) != shape[dim]:
            raise ShapeError(
                f"{ours!r} has segments of {sum(ours.sizes)} elements in all, but tensor dim {dim} has {shape[dim]}; "
                "give the global length of every segment"
            )
    return dims


def of_dim(placement: Placement, dim: int | None) -> Placement:
    """The same placement of this tensor dim."""
    if dim is None:
        return placement
    if isinstance(placement, _StridedShard):
        return _StridedShard(dim, split_factor=placement.split_factor)
    return Segmented(dim, placement.sizes) if isinstance(placement, Segmented) else Shard(dim)
