"""Random pairs of strided views of equal sizes, to be copied from one to the other."""

from __future__ import annotations

import math
from random import Random

import torch
from hypothesis import strategies as st

DTYPES = [torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128]
ViewPair = tuple[torch.Tensor, torch.Tensor]  # destination and source


@st.composite
def strided_views(draw: st.DrawFn, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A view of the shape somewhere in a larger tensor, its dims in any order and with gaps."""
    order = draw(st.permutations(range(len(shape))))
    gaps = st.tuples(st.integers(0, 3), st.sampled_from([1, 1, 2, 3]), st.integers(0, 3))
    cuts = [(*draw(gaps), shape[dim]) for dim in order]
    room = [first + step * size + more for first, step, more, size in cuts]
    shift = draw(st.integers(0, 16))
    whole = (torch.arange(shift + math.prod(room)) % 101).to(dtype)[shift:].view(room)
    kept = whole[tuple(slice(first, first + step * size, step) for first, step, _, size in cuts)]
    return kept.permute([order.index(dim) for dim in range(len(shape))])


@st.composite
def view_pairs(draw: st.DrawFn) -> ViewPair:
    """Destination and source of a copy."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 16]), max_size=4)))
    return draw(strided_views(dtype, shape)), draw(strided_views(dtype, shape))


def random_view_pair(draw: Random, device: torch.device) -> ViewPair:
    """Return destination and source of a copy on a device, larger than hypothesis draws them."""
    dtype = draw.choice(DTYPES)
    shape = tuple(draw.choice([0, 1, 2, 3, 7, 32, 100]) for _ in range(draw.randint(0, 4)))
    return _random_view(draw, dtype, shape, device), _random_view(draw, dtype, shape, device)


def _random_view(draw: Random, dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    order = draw.sample(range(len(shape)), len(shape))
    cuts = [(draw.randint(0, 3), draw.choice([1, 1, 1, 2]), draw.randint(0, 3), shape[dim]) for dim in order]
    room = [first + step * size + more for first, step, more, size in cuts]
    shift = draw.choice([0, 0, 1, 2, 4])
    whole = torch.randint(0, 127, (shift + math.prod(room),), device=device).to(dtype)[shift:].view(room)
    kept = whole[tuple(slice(first, first + step * size, step) for first, step, _, size in cuts)]
    return kept.permute([order.index(dim) for dim in range(len(shape))])
