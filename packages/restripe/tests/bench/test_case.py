"""Data that no shortcut gets right, and a count of what is wrong."""

from __future__ import annotations

import pytest
import torch

from restripe.bench.case import Case, noise, octets, shard
from restripe.bench.rows import DTYPE, Move, Row

CPU = torch.device("cpu")


def row(move: Move) -> Row:
    return Row("row", move, (("a", (64, 96)), ("b", (4, 8))))  # large enough to have bytes of every value


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


@pytest.mark.parametrize("move", Move)
@pytest.mark.parametrize("size", [2, 4])
def test_shards_are_torch_s_chunks(move: Move, size: int) -> None:
    for rank in range(size):
        case = Case(row(move), rank, size, CPU)
        for seed, (name, shape) in enumerate(case.row.tensors):
            source = shard(noise(shape, seed, CPU), case.src, rank)
            assert (name in case.sources) == (source is not None) == (rank in case.src.mesh.ranks)
            assert source is None or torch.equal(octets(case.sources[name]), octets(source.contiguous()))
            assert (name in case.destinations) == (rank in case.dst.mesh.ranks)


@pytest.mark.parametrize("move", Move)
def test_every_byte_that_is_not_written_counts_as_wrong(move: Move) -> None:
    case = Case(row(move), 1, 2, CPU)
    case.poison()
    assert case.wrong() == sum(octets(tensor).numel() for tensor in case.destinations.values()) > 0
    for name, tensor in case.destinations.items():
        tensor.copy_(case.truth(name))
    assert case.wrong() == 0
    octets(case.destinations["b"])[5] += 1
    assert case.wrong() == 1


def test_a_rank_without_destinations_has_no_truth() -> None:
    with pytest.raises(KeyError, match="rank 0 has no destination 'a'"):
        Case(row(Move.POINT), 0, 2, CPU).truth("a")
