"""Communicators: the protocol, and how one is had from a process group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from restripe.comm.gloo import GlooCommunicator
from restripe.comm.protocol import Communicator
from restripe.errors import LayoutError

__all__ = ["Communicator", "brought", "make"]


def brought(group: Any) -> Communicator | None:
    """The communicator that the group itself brings, or None for a torch process group, whose communicator is made."""
    if isinstance(group, dist.ProcessGroup):
        return None
    communicator: Communicator | None = getattr(group, "communicator", None)
    if communicator is None:
        raise LayoutError(
            f"expected a torch process group or an object with a .communicator, got {type(group).__name__}; see the transport protocol"
        )
    return communicator


def make(group: dist.ProcessGroup, generation: int) -> Communicator:
    """A communicator of restripe's own among the group's members, met through the group's store. Collective.

    Args:
        group: a torch process group that has gloo for the CPU.
        generation: how many the group has had before; the same on all members.
    """
    backend = _gloo(group)
    store = c10d._get_process_group_store(group)
    return GlooCommunicator(store, f"restripe/{generation}", group.rank(), group.size(), backend.options._timeout)


def _gloo(group: dist.ProcessGroup) -> Any:
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError as error:
        raise LayoutError(
            "the process group has no CPU backend; make it with backend='gloo' or 'cpu:gloo,cuda:nccl'"
        ) from error
    return backend
