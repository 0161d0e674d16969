"""The gloo world: ranks are processes with tensors on the CPU and torch.distributed process groups."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import cast

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from reshard_conformance.contract import Communicator, Group
from reshard_conformance.judge.oracle import CPU
from reshard_conformance.judge.trace import EventLog, Tracer
from reshard_conformance.worlds.gloo_transport import GlooCommunicator
from reshard_conformance.worlds.processes import ProcessWorld
from reshard_conformance.worlds.rank_server import OpenSession

__all__ = ["GlooWorld"]


class GlooGroup:
    """One rank's group in the gloo world."""

    def __init__(self, process_group: dist.ProcessGroup, communicator: Tracer, *, traced: bool) -> None:
        self.process_group, self.communicator, self.traced = process_group, communicator, traced
        self.rank, self.size = communicator.rank, communicator.size


class GlooHost:
    """Makes the groups of one rank in one session, which has a default process group of its own."""

    device = CPU

    def __init__(self, rank: int, store: Store, opening: OpenSession) -> None:
        self.rank, self.size, self.traced = rank, opening.size, opening.traced
        self.store = PrefixStore(f"session {opening.number}", store)
        self.timeout = timedelta(seconds=opening.timeout)
        dist.init_process_group("gloo", store=self.store, rank=rank, world_size=self.size, timeout=self.timeout)

    def make(self, serial: int, log: EventLog) -> GlooGroup:
        process_group = cast("dist.ProcessGroup", dist.new_group(timeout=self.timeout))
        store = PrefixStore(f"suite {serial}", self.store)
        communicator: Communicator = GlooCommunicator(store, self.rank, self.size, self.timeout)
        return GlooGroup(process_group, Tracer(communicator, log, str(serial)), traced=self.traced)

    def settle(self) -> None:
        """Do nothing: a call on the CPU is complete when it returns."""

    def held(self) -> None:
        """Return None: only memory of devices is measured."""

    def release(self, group: Group, *, cleared: bool) -> None:
        del cleared
        if isinstance(group, GlooGroup):
            group.communicator.inner.destroy()
            dist.destroy_process_group(group.process_group)

    def versions(self) -> dict[str, str]:
        """Return nothing: gloo is part of torch."""
        return {}

    def close(self, *, clear: bool) -> None:
        del clear
        dist.destroy_process_group()


def start_rank(rank: int, store: Store) -> Callable[[OpenSession], GlooHost]:
    """Return what makes a rank's host of a session; nothing outlasts a session."""
    return partial(GlooHost, rank, store)


class GlooWorld(ProcessWorld):
    """Ranks as processes of this machine; see `ProcessWorld`."""

    name = "gloo"

    def __init__(self, place_of: Callable[[str], str], size: int = 8, limit: float = 20.0, grace: float = 4.0) -> None:
        super().__init__(place_of, start_rank, size, limit, grace)
