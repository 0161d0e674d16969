"""The gloo world: every rank a process, its tensors on the CPU, its groups those of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import cast

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from reshard_conformance.contract import Communicator, Group
from reshard_conformance.oracle import CPU
from reshard_conformance.trace import Log, Tracer
from reshard_conformance.worlds.processes import ProcessWorld
from reshard_conformance.worlds.ranks import Opening
from reshard_conformance.worlds.transport import GlooCommunicator

__all__ = ["GlooWorld"]


class GlooGroup:
    """A group of the gloo world, as one rank sees it."""

    def __init__(self, process_group: dist.ProcessGroup, communicator: Tracer, *, traced: bool) -> None:
        self.process_group, self.communicator, self.traced = process_group, communicator, traced
        self.rank, self.size = communicator.rank, communicator.size


class GlooHost:
    """Makes the groups of one rank in one session, over a default process group of its own."""

    device = CPU

    def __init__(self, rank: int, store: Store, opening: Opening) -> None:
        self.rank, self.size, self.traced = rank, opening.size, opening.traced
        self.store = PrefixStore(f"session {opening.number}", store)
        self.timeout = timedelta(seconds=opening.timeout)
        dist.init_process_group("gloo", store=self.store, rank=rank, world_size=self.size, timeout=self.timeout)

    def make(self, serial: int, log: Log) -> GlooGroup:
        process_group = cast("dist.ProcessGroup", dist.new_group(timeout=self.timeout))
        store = PrefixStore(f"suite {serial}", self.store)
        communicator: Communicator = GlooCommunicator(store, self.rank, self.size, self.timeout)
        return GlooGroup(process_group, Tracer(communicator, log, str(serial)), traced=self.traced)

    def settle(self) -> None:
        """On the CPU all is done when a call returns."""

    def held(self) -> None:
        """Only devices are asked for their memory."""

    def release(self, group: Group, *, cleared: bool) -> None:
        del cleared
        if isinstance(group, GlooGroup):
            group.communicator.inner.destroy()
            dist.destroy_process_group(group.process_group)

    def versions(self) -> dict[str, str]:
        """Nothing: gloo is torch's own."""
        return {}

    def close(self, *, clear: bool) -> None:
        del clear
        dist.destroy_process_group()


def start(rank: int, store: Store) -> Callable[[Opening], GlooHost]:
    """What a rank process begins with: nothing that outlasts a session."""
    return partial(GlooHost, rank, store)


class GlooWorld(ProcessWorld):
    """Ranks as processes of this machine; see `ProcessWorld`."""

    name = "gloo"

    def __init__(self, place: Callable[[str], str], size: int = 8, limit: float = 20.0, grace: float = 4.0) -> None:
        super().__init__(place, start, size, limit, grace)
