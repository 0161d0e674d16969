"""Connecting: the communicator of a process group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d as c10d

from restripe.errors import LayoutError
from restripe.transport.gloo import GlooCommunicator
from restripe.transport.protocol import Communicator


def brought_attribute(group: Any) -> str | None:
    """Return the name of the attribute that holds the group's own communicator, nccl4py's or one of the transport protocol.

    None for a torch process group, for which restripe makes a communicator.

    Raises:
        LayoutError: it is no group.
    """
    if isinstance(group, dist.ProcessGroup):
        return None
    for name in ("nccl_communicator", "communicator"):
        if getattr(group, name, None) is not None:
            return name
    raise LayoutError(
        "expected a torch process group, or an object with an .nccl_communicator or a .communicator, "
        f"got {type(group).__name__}; see the transport protocol"
    )


def connect(group: Any, generation: int) -> Communicator:
    """Return the group's communicator; for a torch group make one among its members, who meet at its store. Collective then.

    Args:
        generation: how many the group has had before; the same on all members.
    """
    name = brought_attribute(group)
    if name is None:
        device, timeout = _device_and_timeout(group)
        store = c10d._get_process_group_store(group)
        return meet(store, f"restripe/{generation}", group.rank(), group.size(), device, timeout)
    brought: Any = getattr(group, name)
    if name == "communicator":
        return brought  # type: ignore[no-any-return]
    from restripe.transport.nccl import NcclCommunicator

    return NcclCommunicator(brought)


def meet(store: Store, prefix: str, rank: int, size: int, device: torch.device, timeout: timedelta) -> Communicator:
    """Make a communicator of the ranks that meet under a prefix on a store: NCCL on CUDA devices, gloo on the CPU. Collective."""
    if device.type == "cpu":
        return GlooCommunicator(store, prefix, rank, size, timeout)
    from restripe.transport.nccl import NcclCommunicator

    return NcclCommunicator.meet(store, prefix, rank, size, device)


def _device_and_timeout(group: dist.ProcessGroup) -> tuple[torch.device, timedelta]:
    """Return the device of a torch group's tensors, NCCL's where it has NCCL, and how long its ranks wait."""
    for kind, name in (("cuda", "nccl"), ("cpu", "gloo")):
        try:
            backend = group._get_backend(torch.device(kind))
        except RuntimeError:
            continue
        if backend.name() == name:
            device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
            return device, backend.options._timeout
    raise LayoutError("the process group has neither NCCL nor gloo; make it with backend='cpu:gloo,cuda:nccl' or one")
