"""golden over threads: bytes, memory formats, kinds of tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from reshard_golden import reshard

from .layouts import Mesh, reference
from .threads import Group, ThreadCommunicator, run

SHAPE = (7, 5)
ROWS = (slice(0, 4), slice(4, 7))  # torch.chunk: 7 over 2
COLUMNS = (slice(0, 3), slice(3, 5))
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.complex32, torch.complex64, torch.complex128),
)


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Every bit drawn at random, so NaN payloads and denormals occur; bool has only 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype == torch.bool else 256
    size = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(high, (size,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def move(
    whole: torch.Tensor,
    source: Callable[[torch.Tensor], torch.Tensor],
    destination: Callable[[torch.Tensor], torch.Tensor],
    *,
    read_before: bool = True,
) -> list[torch.Tensor | None]:
    """Rows on ranks 0 and 1 to columns on ranks 2 and 1; rank 3 is idle. What each rank's destination then is.

    source: makes a local tensor of given values. destination: makes one of another content and the given shape.
    read_before: look at the source first, to see that it is not written.
    """

    def body(communicator: ThreadCommunicator) -> torch.Tensor | None:
        rank = communicator.rank
        local = source(whole[ROWS[rank]]) if rank in {0, 1} else None
        result = destination(whole[:, COLUMNS[(2, 1).index(rank)]]) if rank in {1, 2} else None
        before = raw(local) if local is not None and read_before else None
        src, dst = (reference(SHAPE, whole.dtype, tensor) for tensor in (local, result))
        meshes = [Mesh(torch.tensor(ranks)) for ranks in ([0, 1], [2, 1])]
        reshard(src, meshes[0], (Shard(0),), dst, meshes[1], (Shard(-1),), Group(communicator))
        if local is not None and before is not None:
            assert torch.equal(raw(local), before)
        return result

    return run(4, body)[0]


def assert_moved(results: list[torch.Tensor | None], whole: torch.Tensor) -> None:
    assert [result is None for result in results] == [True, False, False, True]
    for result, columns in zip((results[2], results[1]), COLUMNS, strict=True):
        assert result is not None
        assert torch.equal(raw(result.detach()), raw(whole[:, columns]))


def plain(values: torch.Tensor) -> torch.Tensor:
    return values.clone(memory_format=torch.contiguous_format)


def empty(values: torch.Tensor) -> torch.Tensor:
    return random(tuple(values.shape), values.dtype, seed=1)


def transposed(values: torch.Tensor) -> torch.Tensor:
    return plain(values.mT).mT


def with_gaps(values: torch.Tensor) -> torch.Tensor:
    buffer = random(tuple(2 * size + 3 for size in values.shape), values.dtype, seed=2)
    view = buffer[1:-2:2, 1:-2:2]
    view.copy_(values)
    return view


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("memory", [plain, transposed, with_gaps])
@pytest.mark.requirement("RS-EXACT-1", "RS-EXACT-2", "RS-EXACT-3", "RS-EXACT-4", "RS-EXACT-7")
def test_every_dtype_and_memory(dtype: torch.dtype, memory: Callable[[torch.Tensor], torch.Tensor]) -> None:
    whole = random(SHAPE, dtype)
    assert_moved(move(whole, memory, lambda values: memory(empty(values))), whole)


@pytest.mark.requirement("RS-EXACT-5")
def test_bytes_around_a_view_stay() -> None:
    whole = random(SHAPE, torch.int16)
    buffers: list[torch.Tensor] = []

    def surrounded(values: torch.Tensor) -> torch.Tensor:
        buffer = torch.full((values.shape[0] + 2, values.shape[1] + 2), 77, dtype=values.dtype)
        buffers.append(buffer)
        return buffer[1:-1, 1:-1]

    assert_moved(move(whole, plain, surrounded), whole)
    for buffer in buffers:
        buffer[1:-1, 1:-1] = 77
        assert torch.equal(buffer, torch.full_like(buffer, 77))


@pytest.mark.parametrize("lazy", [torch.conj, torch._neg_view])
@pytest.mark.requirement("RS-EXACT-8")
def test_lazy_views_count_by_their_values(lazy: Callable[[torch.Tensor], torch.Tensor]) -> None:
    whole = torch.randn(SHAPE, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))
    results = move(whole, lambda values: lazy(plain(lazy(values))), lambda values: lazy(empty(values)))
    assert results[1] is not None
    assert results[1].is_conj() or results[1].is_neg()
    assert_moved(results, whole)


@pytest.mark.requirement("RS-EXACT-9")
def test_parameters_and_inference_tensors() -> None:
    whole = random(SHAPE, torch.float32)

    def inference(values: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return plain(values)

    def parameter(values: torch.Tensor) -> torch.Tensor:
        return torch.nn.Parameter(plain(values))

    for source, destination in ((inference, parameter), (parameter, inference)):
        results = move(whole, source, lambda values, make=destination: make(empty(values)))  # type: ignore[misc]
        assert_moved(results, whole)
        assert all(result is None or result.grad_fn is None for result in results)


@pytest.mark.requirement("RS-EXACT-10")
def test_a_pending_source_is_waited_for() -> None:
    whole = random(SHAPE, torch.float32)
    pending = []

    def source(values: torch.Tensor) -> torch.Tensor:
        pending.append(AsyncCollectiveTensor(plain(values)))
        return pending[-1]

    assert_moved(move(whole, source, empty, read_before=False), whole)
    assert [tensor.completed for tensor in pending] == [True, True]


def two_ranks(
    shape: tuple[int, ...],
    placement: Placement,
    sides: Callable[[int], tuple[torch.Tensor | None, torch.Tensor | None]],
) -> list[tuple[int, int]]:
    """One placement over [0, 1] to the same over [1, 0]; returns the broadcasts."""

    def body(communicator: ThreadCommunicator) -> None:
        src, dst = (reference(shape, torch.int32, local) for local in sides(communicator.rank))
        meshes = [Mesh(torch.tensor(ranks)) for ranks in ([0, 1], [1, 0])]
        reshard(src, meshes[0], (placement,), dst, meshes[1], (placement,), communicator)

    return run(2, body)[1]


@pytest.mark.requirement("RS-EXACT-11")
def test_views_that_interleave_without_sharing() -> None:
    buffers = [torch.tensor([[10 * rank + i, -1] for i in range(3)], dtype=torch.int32) for rank in range(2)]
    calls = two_ranks((6,), Shard(0), lambda rank: (buffers[rank][:, 0], buffers[rank][:, 1]))
    assert [buffer[:, 1].tolist() for buffer in buffers] == [[10, 11, 12], [0, 1, 2]]
    assert [buffer[:, 0].tolist() for buffer in buffers] == [[0, 1, 2], [10, 11, 12]]
    assert calls == [(0, 12), (1, 12)]


@pytest.mark.requirement("RS-LAYOUT-8")
def test_a_tensor_of_no_dims() -> None:
    buffer = torch.tensor([1, 2, 3], dtype=torch.int32)
    results = [torch.tensor(0, dtype=torch.int32) for _ in range(2)]
    calls = two_ranks((), Replicate(), lambda rank: (buffer[1], results[rank]))
    assert [result.item() for result in results] == [2, 2]
    assert calls == [(0, 4)]


@pytest.mark.requirement("RS-EXACT-7")
def test_odd_strides_of_a_dim_of_size_1() -> None:
    sources = [torch.tensor([rank, 9], dtype=torch.int32).as_strided((1, 1), (1, 7)) for rank in range(2)]
    results = [torch.zeros(9, dtype=torch.int32).as_strided((1, 1), (5, 3)) for _ in range(2)]
    two_ranks((2, 1), Shard(0), lambda rank: (sources[rank], results[rank]))
    assert [result.item() for result in results] == [1, 0]


@pytest.mark.requirement("RS-LAYOUT-7", "RS-LAYOUT-8")
def test_nothing_is_sent_of_a_tensor_without_elements() -> None:
    calls = two_ranks((0,), Shard(0), lambda _: (torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int32)))
    assert calls == []
