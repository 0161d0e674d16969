"""Data that no shortcut gets right, and a count of what is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from restripe.analysis.spelling import layout
from restripe.bench.case import Case, noise, octets, shard
from restripe.bench.rows import DTYPE, Row

from .conftest import exchange, gather, point

CPU = torch.device("cpu")


KINDS = (point, exchange, gather)
Kind = Callable[[int], Row]


def test_noise_follows_from_its_seed_and_mixes_every_byte() -> None:
    one, other = octets(noise((64, 64), 0, CPU)), octets(noise((64, 64), 1, CPU))
    assert torch.equal(one, octets(noise((64, 64), 0, CPU)))
    assert (one != other).float().mean() > 0.98
    counts = torch.bincount(one.to(torch.int64), minlength=256)
    assert counts.min() > 0
    assert counts.max() < 4 * counts.float().mean()


def test_noise_of_a_few_elements_has_its_shape() -> None:
    assert noise((3,), 0, CPU).shape == (3,)
    assert noise((3,), 0, CPU).dtype is DTYPE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 4])
def test_shards_are_torch_s_chunks(kind: Kind, size: int) -> None:
    for rank in range(size):
        case = Case(kind(size), rank, size, CPU)
        for seed, one in enumerate(case.row.tensors):
            source = shard(noise(one.shape, seed, CPU), one.src, rank)
            assert (one.name in case.sources) == (source is not None) == (rank in one.src.mesh.ranks)
            assert source is None or torch.equal(octets(case.sources[one.name]), octets(source.contiguous()))
            assert (one.name in case.destinations) == (rank in one.dst.mesh.ranks)


def test_a_shard_of_a_mesh_of_two_dims_is_cut_dim_by_dim() -> None:
    whole, mesh = torch.arange(10).reshape(5, 2), layout("2x2:S(0),S(0)")
    shards = [shard(whole, mesh, rank) for rank in range(5)]
    assert [None if one is None else one[:, 0].tolist() for one in shards] == [[0, 2], [4], [6], [8], None]
    replicas = [shard(whole, layout("2x2:R,S(1)"), rank) for rank in range(4)]
    assert [one is not None and one.flatten().tolist() for one in replicas] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_that_is_not_written_counts_as_wrong(kind: Kind) -> None:
    case = Case(kind(2), 1, 2, CPU)
    case.poison()
    assert case.wrong() == sum(octets(tensor).numel() for tensor in case.destinations.values()) > 0
    for name, tensor in case.destinations.items():
        tensor.copy_(case.truth(name))
    assert case.wrong() == 0
    octets(case.destinations["b"])[5] += 1
    assert case.wrong() == 1


def test_a_rank_without_destinations_has_no_truth() -> None:
    with pytest.raises(KeyError, match="rank 0 has no destination 'a'"):
        Case(point(2), 0, 2, CPU).truth("a")
