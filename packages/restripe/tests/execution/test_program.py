"""Sizes and strides of local tensors."""

from __future__ import annotations

import pytest
import torch

from restripe.execution.program import Buffer, Geometry, Program, Round, row_major


@pytest.mark.parametrize(
    ("sizes", "strides", "contiguous", "extent"),
    [
        ((2, 3), (3, 1), True, 6),
        ((2, 3), (4, 1), False, 7),
        ((1, 3), (99, 1), True, 3),
        ((3, 1), (1, 7), True, 3),
        ((), (), True, 1),
        ((0, 3), (3, 1), True, 0),
        ((3,), (0,), False, 1),
    ],
)
def test_a_geometry_knows_its_extent_and_whether_it_is_contiguous(
    sizes: tuple[int, ...], strides: tuple[int, ...], contiguous: bool, extent: int
) -> None:
    for itemsize in (1, 4, 16):
        geometry = Geometry(sizes, strides, itemsize)
        assert geometry.contiguous == contiguous
        assert geometry.extent == extent * itemsize


@pytest.mark.parametrize("sizes", [(), (4,), (2, 3, 5), (1, 3, 1)])
def test_row_major_strides_are_those_of_a_new_tensor(sizes: tuple[int, ...]) -> None:
    assert row_major(sizes) == torch.empty(sizes).stride()


def test_a_program_allocates_where_any_round_has_a_buffer() -> None:
    assert not Program([Round(), Round()], 2).allocates
    assert Program([Round(), Round(buffers=[Buffer(2, 8)])], 3).allocates
