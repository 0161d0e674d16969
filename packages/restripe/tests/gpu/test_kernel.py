"""Strided copies on a GPU, held against torch's own."""

from __future__ import annotations

import math
import random
import threading
from functools import partial

import pytest
import torch

from restripe.transport.copy_tables import Piece

if torch.cuda.device_count() == 0:
    pytest.skip("needs a GPU", allow_module_level=True)

from restripe.transport.copy_kernel import copies, loaded

from ..helpers.posting import judge, piece

Pair = tuple[torch.Tensor, torch.Tensor]
DTYPES = (torch.uint8, torch.int16, torch.int32, torch.int64, torch.complex128)


def device(index: int = 0) -> torch.device:
    return torch.device("cuda", index)


def view(draw: random.Random, dtype: torch.dtype, shape: tuple[int, ...], index: int) -> torch.Tensor:
    """A view of the shape somewhere in a larger tensor, its dims in any order and with gaps."""
    order = draw.sample(range(len(shape)), len(shape))
    cuts = [(draw.randint(0, 3), draw.choice([1, 1, 1, 2]), draw.randint(0, 3), shape[dim]) for dim in order]
    room = [first + step * size + more for first, step, more, size in cuts]
    shift = draw.choice([0, 0, 1, 2, 4])
    whole = torch.randint(0, 127, (shift + math.prod(room),), device=device(index)).to(dtype)[shift:].view(room)
    kept = whole[tuple(slice(first, first + step * size, step) for first, step, _, size in cuts)]
    return kept.permute([order.index(dim) for dim in range(len(shape))])


def drawn(draw: random.Random, index: int = 0) -> Pair:
    dtype = draw.choice(DTYPES)
    shape = tuple(draw.choice([0, 1, 2, 3, 7, 32, 100]) for _ in range(draw.randint(0, 4)))
    return view(draw, dtype, shape, index), view(draw, dtype, shape, index)


def make(some: list[Piece], index: int = 0) -> None:
    """Make the copies, and wait for them."""
    torch.cuda.synchronize(index)
    copies(some, loaded(device(index)))(0)
    torch.cuda.synchronize(index)


@pytest.mark.parametrize("seed", range(40))
def test_pieces_are_copied_as_torch_copies_them(seed: int) -> None:
    draw = random.Random(seed)
    judge(make, [drawn(draw) for _ in range(draw.choice([1, 3, 60]))])


def test_pieces_of_more_bytes_than_32_bits_count() -> None:
    """Contiguous, and every other byte, on either side; some at odd addresses."""
    size = 2**32 + 10
    src, dst = (torch.empty(2 * size, dtype=torch.uint8, device="cuda") for _ in range(2))
    src.random_(0, 255)
    for into, out in ((dst[3 : 3 + size], src[1 : 1 + size]), (dst[::2], src[1::2]), (dst[:size], src[::2])):
        dst.zero_()
        copies([piece(into, out)], loaded(device()))(0)
        assert torch.equal(into, out)
        assert int(dst.count_nonzero()) == int(out.count_nonzero())


def test_copies_follow_the_stream_that_they_are_given_and_are_captured_with_it() -> None:
    src, dst = torch.zeros(64, 128, device="cuda"), torch.zeros(64, 64, device="cuda")
    call, side = copies([piece(dst, src[:, 64:])], loaded(device())), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        src.fill_(5)
        call(side.cuda_stream)
        seen = dst.clone()
    side.synchronize()
    assert bool((seen == 5).all())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call(torch.cuda.current_stream().cuda_stream)
    src.fill_(7)
    graph.replay()
    assert bool((dst == 7).all())


def test_a_thread_that_has_not_used_the_gpu_copies_too() -> None:
    src, dst = torch.ones(64, 128, device="cuda"), torch.zeros(64, 64, device="cuda")
    torch.cuda.synchronize()
    call, faults = copies([piece(dst, src[:, 64:])], loaded(device())), list[BaseException]()

    def body() -> None:
        try:
            call(0)
        except BaseException as error:  # noqa: BLE001
            faults.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not faults
    assert bool((dst == 1).all())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_may_be_the_current_one() -> None:
    draw = random.Random(1)
    with torch.cuda.device(0):
        judge(partial(make, index=1), [drawn(draw, 1) for _ in range(20)])
        assert torch.cuda.current_device() == 0
