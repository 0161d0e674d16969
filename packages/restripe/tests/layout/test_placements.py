"""Which tensor dim each placement shards."""

from __future__ import annotations

import pytest
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from restripe.errors import InvalidPlacementError, ShapeError
from restripe.layout.placements import check_segments, shard_dims
from restripe.layout.segmented import Segmented


@pytest.mark.requirement("RS-LAYOUT-4")
def test_a_negative_shard_dim_counts_from_the_last() -> None:
    assert shard_dims((Shard(-1), Replicate(), Shard(-3), Shard(1)), 3) == (2, None, 0, 1)


@pytest.mark.requirement("RS-LAYOUT-11", "RS-ERROR-2")
@pytest.mark.parametrize("before", [Shard(0), Shard(-2), _StridedShard(0, split_factor=2), Segmented(-2, (4,))])
def test_segments_are_those_of_a_whole_dim(before: Placement) -> None:
    with pytest.raises(InvalidPlacementError, match="leftmost"):
        shard_dims((before, Segmented(0, (4,))), 2)
    assert shard_dims((Shard(1), Segmented(0, (4,)), Shard(-2)), 2) == (1, 0, 0)


@pytest.mark.requirement("RS-LAYOUT-11", "RS-ERROR-7")
def test_segments_are_held_against_the_shape() -> None:
    check_segments((Shard(0), Replicate(), Segmented(-1, (4, 2))), (5, 6))
    with pytest.raises(ShapeError, match="6 elements in all, but tensor dim 0 has 5"):
        check_segments((Segmented(-2, (4, 2)), Shard(1)), (5, 6))
    with pytest.raises(InvalidPlacementError, match="tensor dim 2"):
        check_segments((Segmented(2, (6,)),), (5, 6))
