"""The segmented shard as a value."""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from torch.distributed.tensor import Shard

from restripe.errors import InvalidPlacementError
from restripe.layout.segmented import Segmented


@pytest.mark.requirement("RS-LAYOUT-11")
def test_equal_segments_are_one_key_that_never_changes() -> None:
    one = Segmented(0, [4, 2])
    assert one == Segmented(0, (4, 2))
    assert hash(one) == hash(Segmented(0, (4, 2)))
    assert len({one, Segmented(1, (4, 2)), Segmented(0, (2, 4)), Segmented(0, (6,)), Shard(0)}) == 5
    assert repr(one) == "Segmented(dim=0, sizes=(4, 2))"
    with pytest.raises(FrozenInstanceError):
        one.dim = 1  # type: ignore[misc]


def test_copies_are_placements_that_torch_can_ask() -> None:
    for twin in (deepcopy(Segmented(-1, (3,))), copy(Segmented(-1, (3,)))):
        assert twin == Segmented(-1, (3,))
        assert not twin.is_shard()
        assert not twin.is_replicate()


@pytest.mark.requirement("RS-LAYOUT-11", "RS-ERROR-2")
@pytest.mark.parametrize(("dim", "sizes"), [(0, ()), (0, (3, -1)), (0, (1.5,)), (None, (3,)), (0, "ab"), (0, 3)])
def test_what_is_no_list_of_lengths_is_refused(dim: Any, sizes: Any) -> None:
    with pytest.raises(InvalidPlacementError, match="segments"):
        Segmented(dim, sizes)
