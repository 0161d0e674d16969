"""One group across processes that share no torch.distributed world, such as a trainer's and a generator's."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed import distributed_c10d as c10d

from restripe.errors import LayoutError
from restripe.transport.connect import meet
from restripe.transport.protocol import Communicator

WAIT = timedelta(minutes=5)


class Joined:
    """A group made by `join`; pass it wherever restripe takes a group.

    `members` has the group rank of each global rank of this process's own torch.distributed world, if it has one: both
    worlds have a rank 0, and a DeviceMesh holds ranks of its own world.
    """

    def __init__(self, communicator: Communicator, members: dict[int, int]) -> None:
        self.communicator, self.members = communicator, members
        self.rank, self.size, self.device = communicator.rank, communicator.size, communicator.device

    def close(self) -> None:
        """End the group, after `clear_caches(group)`; collective."""
        self.communicator.finalize()
        self.communicator.destroy()


def join(address: str, rank: int, size: int, device: torch.device | str, *, timeout: timedelta = WAIT) -> Joined:
    """Make one group of all processes that call this with the same address: NCCL on CUDA devices, gloo on the CPU.

    Args:
        address: "host:port", where rank 0 listens and the others find it.
        rank: this process's number in the group, from 0.
        size: the number of processes.
        device: where this process's tensors live, such as "cuda:0" or "cpu".
        timeout: how long a rank waits for the others here, and on the CPU in every call.

    Raises:
        LayoutError: an address that is no host:port, or a rank outside the group.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise LayoutError(f"expected an address as host:port, got {address!r}")
    if not 0 <= rank < size:
        raise LayoutError(f"expected a rank from 0 to {size - 1} in a group of {size}, got {rank}")
    store = TCPStore(host, int(port), size, rank == 0, timeout)
    own_device = torch.device(device)
    if own_device == torch.device("cuda"):
        own_device = torch.device("cuda", torch.cuda.current_device())
    communicator = meet(store, "restripe/join", rank, size, own_device, timeout)
    records = [json.loads(record) for record in communicator.exchange(json.dumps(_world_and_rank()).encode())]
    own_world = records[rank][0]
    members = {
        world_rank: group_rank
        for group_rank, (world, world_rank) in enumerate(records)
        if world is not None and world == own_world
    }
    return Joined(communicator, members)


def _world_and_rank() -> tuple[str | None, int]:
    """Return a name of this process's torch.distributed world that no other world has, and its rank there."""
    if not dist.is_initialized():
        return None, 0
    store = c10d._get_default_store()
    name = store.compare_set("restripe/world", "", uuid.uuid4().hex)  # the first rank that joins any group names it
    return name.decode(), dist.get_rank()
