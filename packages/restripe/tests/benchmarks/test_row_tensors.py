"""Data that no shortcut gets right, and a count of what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gpu_bench.rows import RowTensors, flat_bytes, noise_tensor, shard_of
from restripe.analysis.spelling import layout
from restripe.bench.transfers import DTYPE, Row

from .conftest import exchange, gather, point

CPU = torch.device("cpu")


KINDS = (point, exchange, gather)
Kind = Callable[[int], Row]


def test_noise_follows_from_its_index_and_mixes_every_byte() -> None:
    noise = flat_bytes(noise_tensor((64, 64), CPU))
    assert torch.equal(noise, flat_bytes(noise_tensor((64, 64), CPU)))
    assert torch.equal(noise[:100], flat_bytes(noise_tensor((50,), CPU)))
    counts = torch.bincount(noise.to(torch.int64), minlength=256)
    assert counts.min() > 0
    assert counts.max() < 4 * counts.float().mean()


def test_noise_of_a_few_elements_has_its_shape() -> None:
    assert noise_tensor((3,), CPU).shape == (3,)
    assert noise_tensor((3,), CPU).dtype is DTYPE


def test_no_tensor_has_the_bytes_of_another_one() -> None:
    tensors = RowTensors(point(2, (("a", (64, 64)), ("b", (64, 64)))), 0, 2, CPU)
    values, other = (flat_bytes(tensors.global_values(name)) for name in "ab")
    assert (values != other).float().mean() > 0.98


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 4])
def test_shards_are_torch_s_chunks(kind: Kind, size: int) -> None:
    for rank in range(size):
        tensors = RowTensors(kind(size), rank, size, CPU)
        for move in tensors.row.tensors:
            source = shard_of(tensors.global_values(move.name), move.src, rank)
            assert (move.name in tensors.sources) == (source is not None) == (rank in move.src.mesh.ranks)
            if source is not None:
                assert torch.equal(flat_bytes(tensors.sources[move.name]), flat_bytes(source.contiguous()))
            assert (move.name in tensors.destinations) == (rank in move.dst.mesh.ranks)


def test_a_shard_of_a_mesh_of_two_dims_is_cut_dim_by_dim() -> None:
    values, side = torch.arange(10).reshape(5, 2), layout("2x2:S(0),S(0)")
    shards = [shard_of(values, side, rank) for rank in range(5)]
    assert [None if shard is None else shard[:, 0].tolist() for shard in shards] == [[0, 2], [4], [6], [8], None]
    replicas = [shard_of(values, layout("2x2:R,S(1)"), rank) for rank in range(4)]
    assert [shard is not None and shard.flatten().tolist() for shard in replicas] == [
        [0, 2, 4, 6, 8],
        [1, 3, 5, 7, 9],
    ] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_that_is_not_written_counts_as_wrong(kind: Kind) -> None:
    tensors = RowTensors(kind(2), 1, 2, CPU)
    tensors.fill_wrong()
    assert tensors.wrong_bytes() == sum(flat_bytes(tensor).numel() for tensor in tensors.destinations.values()) > 0
    for name, tensor in tensors.destinations.items():
        tensor.copy_(tensors.expected(name))
    assert tensors.wrong_bytes() == 0
    flat_bytes(tensors.destinations["b"])[5] += 1
    assert tensors.wrong_bytes() == 1


def test_a_rank_without_destinations_expects_nothing() -> None:
    with pytest.raises(KeyError, match="rank 0 has no destination 'a'"):
        RowTensors(point(2), 0, 2, CPU).expected("a")


def test_renewed_tensors_are_elsewhere_and_sources_have_their_values() -> None:
    tensors = RowTensors(exchange(2), 0, 2, CPU)
    old = {**{f"src {name}": t for name, t in tensors.sources.items()}, **tensors.destinations}
    tensors.renew()
    new = {**{f"src {name}": t for name, t in tensors.sources.items()}, **tensors.destinations}
    assert old.keys() == new.keys()
    for name, tensor in new.items():
        assert tensor.data_ptr() != old[name].data_ptr()
        assert tensor.shape == old[name].shape
        assert not name.startswith("src") or torch.equal(flat_bytes(tensor), flat_bytes(old[name]))
