"""Groups of processes that share no torch.distributed world; several worlds at once are in transport/test_gloo.py."""

from __future__ import annotations

import socket

import pytest
import torch
from torch.distributed.tensor import Replicate

import restripe
from restripe import Layout, Mesh
from restripe.errors import LayoutError


@pytest.mark.parametrize(
    ("address", "rank", "size", "text"),
    [
        ("localhost", 0, 1, "host:port, got 'localhost'"),
        (":123", 0, 1, "host:port"),
        ("localhost:http", 0, 1, "host:port"),
        ("localhost:1", 2, 2, "rank from 0 to 1 in a group of 2, got 2"),
        ("localhost:1", -1, 2, "got -1"),
    ],
)
def test_an_address_or_a_rank_that_cannot_be_is_refused(address: str, rank: int, size: int, text: str) -> None:
    with pytest.raises(LayoutError, match=text):
        restripe.join(address, rank, size, "cpu")


def test_a_process_without_a_world_is_a_member_by_its_rank_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    group = restripe.join(f"127.0.0.1:{port}", 0, 1, "cpu")
    assert group.members == {}
    layout, src, dst = Layout(Mesh((1,), (0,)), (Replicate(),)), torch.arange(4), torch.zeros(4, dtype=torch.int64)
    restripe.reshard(src, dst, group, src_layout=layout, dst_layout=layout, shape=(4,))
    assert torch.equal(src, dst)
    restripe.clear_caches(group)
    group.close()
