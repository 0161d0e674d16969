"""Strided copies on a GPU, held against torch's own."""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest
import torch

from restripe.transport.protocol import AddressCopy

if torch.cuda.device_count() == 0:
    pytest.skip("needs a GPU", allow_module_level=True)

from restripe.transport.copy_kernel import load_kernel, prepare_copies

from ..helpers.address_transport import assert_copies_like_torch, collapsed_copy
from ..helpers.strided_views import random_view_pair


def device(index: int = 0) -> torch.device:
    return torch.device("cuda", index)


def make(copies: list[AddressCopy], index: int = 0) -> None:
    """Make the copies, and wait for them."""
    torch.cuda.synchronize(index)
    prepare_copies(copies, load_kernel(device(index)))(0)
    torch.cuda.synchronize(index)


@pytest.mark.parametrize("seed", range(40))
def test_strided_copies_are_torch_s(seed: int) -> None:
    draw = random.Random(seed)
    assert_copies_like_torch(make, [random_view_pair(draw, device()) for _ in range(draw.choice([1, 3, 60]))])


def test_copies_of_more_bytes_than_32_bits_count() -> None:
    """Contiguous, and every other byte, on either side; some at odd addresses."""
    size = 2**32 + 10
    src, dst = (torch.empty(2 * size, dtype=torch.uint8, device="cuda") for _ in range(2))
    src.random_(0, 255)
    for into, out_of in ((dst[3 : 3 + size], src[1 : 1 + size]), (dst[::2], src[1::2]), (dst[:size], src[::2])):
        dst.zero_()
        prepare_copies([collapsed_copy(into, out_of)], load_kernel(device()))(0)
        assert torch.equal(into, out_of)
        assert int(dst.count_nonzero()) == int(out_of.count_nonzero())


def test_copies_follow_the_stream_that_they_are_given_and_are_captured_with_it() -> None:
    src, dst = torch.zeros(64, 128, device="cuda"), torch.zeros(64, 64, device="cuda")
    call, side = prepare_copies([collapsed_copy(dst, src[:, 64:])], load_kernel(device())), torch.cuda.Stream()
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
    call, faults = prepare_copies([collapsed_copy(dst, src[:, 64:])], load_kernel(device())), list[BaseException]()

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
        assert_copies_like_torch(partial(make, index=1), [random_view_pair(draw, device(1)) for _ in range(20)])
        assert torch.cuda.current_device() == 0
