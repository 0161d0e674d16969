"""The address adapter on a GPU, over a transport of tensors of one rank."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
import torch

if torch.cuda.device_count() == 0:
    pytest.skip("needs a GPU", allow_module_level=True)

from restripe.transport.address_adapter import AddressAdapter, tensor_at
from restripe.transport.protocol import AddressCopy

from ..helpers.address_transport import assert_copies_like_torch, collapsed_copy
from ..helpers.recording_transports import RECEIVED, TensorTransport
from ..helpers.strided_views import random_view_pair

GPU = torch.device("cuda", 0)


def adapter() -> tuple[AddressAdapter, list[tuple[Any, ...]]]:
    transport = TensorTransport(GPU)
    return AddressAdapter(cast("Any", transport)), transport.calls


def make(copies: list[AddressCopy]) -> None:
    adapter()[0].copies(copies)(torch.cuda.current_stream().cuda_stream)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_tensor_at_an_address_is_that_memory(mode: type) -> None:
    memory = torch.arange(32, dtype=torch.uint8, device=GPU)
    with mode():
        tensor = tensor_at(memory.data_ptr() + 5, 7, GPU)
    assert (tensor.device, tensor.is_inference()) == (GPU, False)
    assert tensor.data_ptr() == memory.data_ptr() + 5
    tensor.fill_(RECEIVED)
    assert memory.tolist() == [*range(5), *[RECEIVED] * 7, *range(12, 32)]


@pytest.mark.parametrize("seed", range(10))
def test_strided_copies_are_torch_s(seed: int) -> None:
    draw = random.Random(seed)
    assert_copies_like_torch(make, [random_view_pair(draw, GPU) for _ in range(draw.choice([1, 3, 20]))])


def test_messages_and_collectives_go_on_the_caller_s_stream() -> None:
    memory = torch.arange(16, dtype=torch.uint8, device=GPU)
    transport, calls = adapter()
    start, stream = memory.data_ptr(), torch.cuda.Stream()
    exchange = transport.p2p([(start, 2, 1)], [(start + 14, 1, 1)])
    replicate = transport.collectives([(start + 2, start + 8, 2)], [(start, 2, 1)])
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for enqueue in (exchange, replicate):
            enqueue(stream.cuda_stream)
    assert calls == [
        *[("group",), ("send", [0, 1], 1, stream), ("recv", 1, 1, stream), ("end",)],
        *[("group",), ("all_gather", [2, 3, 4, 5], [8, 9], stream), ("broadcast", [0, 1], 1, stream), ("end",)],
    ]
    torch.cuda.synchronize()
    assert memory[14:].tolist() == [RECEIVED, 15]


def test_copies_are_captured_with_the_caller_s_stream() -> None:
    src, dst = torch.zeros(64, 128, device=GPU), torch.zeros(64, 64, device=GPU)
    transport, _ = adapter()
    enqueue = transport.copies([collapsed_copy(dst, src[:, 64:])])
    enqueue(None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        enqueue(torch.cuda.current_stream().cuda_stream)
    src.fill_(7)
    graph.replay()
    assert bool((dst == 7).all())
