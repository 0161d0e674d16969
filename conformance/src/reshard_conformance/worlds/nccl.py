"""The nccl world: every rank a process on a GPU, several a GPU where there are fewer GPUs than ranks.

Communicators outlast groups, since making one takes longer than most cases: a new group gets one that an earlier group of as
many ranks gave back.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch._C._distributed_c10d import Store

from reshard_conformance.contract import Communicator, Group
from reshard_conformance.trace import Log
from reshard_conformance.worlds.calllog import SETTINGS, CallLog
from reshard_conformance.worlds.processes import ProcessWorld
from reshard_conformance.worlds.ranks import Opening

__all__ = ["NcclWorld", "lacking", "most", "release", "shares"]

#: The most ranks of a session, and how many share a GPU at most.
RANKS, SHARE = 8, 4
#: The first release of NCCL that lets ranks share a GPU, and what it has to be told then.
SHARING = (2, 30)
#: Where Linux shows the driver.
DRIVER = Path("/proc/driver/nvidia/version")
CROWDED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8"}


def lacking() -> str | None:
    """What this machine lacks for the world, in one sentence; None where it has all."""
    if not torch.cuda.is_available():
        return "world 'nccl' needs a GPU, and torch sees none on this machine"
    if importlib.util.find_spec("nccl") is None:
        return "world 'nccl' needs nccl4py, which is not installed; install nccl4py 0.5 or newer"
    return None


def most(gpus: int) -> int:
    """The most ranks of a session on so many GPUs, with the release of NCCL that is loaded."""
    return min(RANKS, gpus * (SHARE if release() >= SHARING else 1)) if gpus else 0


def release() -> tuple[int, ...]:
    """The release of NCCL that is loaded, such as (2, 30, 7); it need not be the one that torch was built with."""
    from reshard_conformance.worlds.nccltransport import version  # noqa: PLC0415 - a host without GPUs has no nccl4py

    number = version()
    return number // 10_000, number // 100 % 100, number % 100


def driver(file: Path = DRIVER) -> str:
    """The release of the GPUs' driver, as its kernel module tells it."""
    found = re.search(r"\b\d+(\.\d+)+", file.read_text(encoding="utf-8")) if file.exists() else None
    return found.group() if found else "not known"


def shares() -> list[tuple[int, ...]]:
    """The GPUs of this machine in disjoint sets, each enough for a rank a GPU; one set where there are too few."""
    gpus = tuple(range(torch.cuda.device_count()))
    return [gpus[start : start + RANKS] for start in range(0, len(gpus) - RANKS + 1, RANKS)] or [gpus]


LIMIT = 60.0  # seconds that a step may take


class NcclGroup:
    """A group of the nccl world, as one rank sees it. nccl_communicator: nccl4py's, to split from but not to destroy."""

    traced = True

    def __init__(self, nccl_communicator: Any, communicator: Communicator) -> None:
        self.nccl_communicator, self.communicator = nccl_communicator, communicator
        self.rank, self.size = communicator.rank, communicator.size


class NcclRank:
    """What one rank process has: its GPU, the file in which NCCL logs its calls, and communicators not in use, by size.

    alone: whether no other pool of rank processes uses the GPU.
    """

    def __init__(self, rank: int, store: Store, device: torch.device, log: CallLog, *, alone: bool = True) -> None:
        self.rank, self.store, self.device, self.log, self.alone = rank, store, device, log, alone
        self.free: dict[int, list[Any]] = defaultdict(list)
        self.met: Counter[int] = Counter()

    def take(self, size: int) -> Any:
        """A communicator of the first `size` ranks; collective where none is free."""
        from reshard_conformance.worlds.nccltransport import meet  # noqa: PLC0415 - nccl4py is needed in rank processes only

        if self.free[size]:
            return self.free[size].pop()
        self.met[size] += 1
        return meet(self.store, f"{size} ranks, {self.met[size]}", self.rank, size)


class NcclHost:
    """Makes the groups of one rank in one session."""

    def __init__(self, process: NcclRank, opening: Opening) -> None:
        self.process, self.size, self.device = process, opening.size, process.device
        self.taken: list[Any] = []

    def make(self, serial: int, log: Log) -> NcclGroup:
        from reshard_conformance.worlds.nccltransport import NcclCommunicator  # noqa: PLC0415 - as above

        handle = self.process.take(self.size)
        self.taken.append(handle)
        self.process.log.name(int(handle.ptr), str(serial), self.process.rank, self.size, log)
        return NcclGroup(handle, NcclCommunicator(handle))

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)
        self.process.log.read()

    def held(self) -> int:
        """The bytes of the device in use; with others on it, those that this process has for tensors."""
        if not self.process.alone:
            return torch.cuda.memory_reserved(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def release(self, group: Group, *, cleared: bool) -> None:
        del cleared  # what is left of it are communicators of their own
        if isinstance(group, NcclGroup):
            self.taken.remove(group.nccl_communicator)
            self.process.free[self.size].append(group.nccl_communicator)

    def versions(self) -> dict[str, str]:
        """NCCL as it is loaded, CUDA as torch was built with it, the GPU and its driver."""
        return {
            "nccl": ".".join(map(str, release())),
            "cuda": str(torch.version.cuda),
            "gpu": torch.cuda.get_device_name(self.device),
            "driver": driver(),
        }

    def close(self, *, clear: bool) -> None:
        """Keep the communicators for the next session; after a failure nobody knows what is under way on them."""
        for handle in self.taken:
            self.process.log.forget(int(handle.ptr))
            if clear:
                self.process.free[self.size].append(handle)
            else:
                handle.abort()
        self.taken.clear()


@dataclass(frozen=True)
class Begin:
    """What a rank process begins with. gpus: those of the world. ranks: of the pool. folder: for NCCL's logs. alone: see NcclRank."""

    gpus: tuple[int, ...]
    ranks: int
    folder: str
    alone: bool = True

    def __call__(self, rank: int, store: Store) -> Callable[[Opening], NcclHost]:
        file = Path(self.folder) / f"{rank}.{os.getpid()}"
        settings = SETTINGS | {"NCCL_DEBUG_FILE": str(file)} | (CROWDED if self.ranks > len(self.gpus) else {})
        os.environ.update(settings)  # before NCCL is first called, which is when it looks at them
        device = torch.device("cuda", self.gpus[rank % len(self.gpus)])
        torch.cuda.set_device(device)
        return partial(NcclHost, NcclRank(rank, store, device, CallLog(file), alone=self.alone))


class NcclWorld(ProcessWorld):
    """Ranks as processes on these GPUs (all of this machine when None), rank r on GPU r modulo their number.

    alone: whether no other world uses these GPUs.
    """

    name = "nccl"

    def __init__(
        self,
        place: Callable[[str], str],
        gpus: Sequence[int] | None = None,
        size: int | None = None,
        limit: float = LIMIT,
        grace: float = 10.0,
        *,
        alone: bool = True,
    ) -> None:
        gpus = tuple(range(torch.cuda.device_count()) if gpus is None else gpus)
        ranks = most(len(gpus)) if size is None else size
        self.folder = TemporaryDirectory(prefix="reshard-nccl-")
        super().__init__(place, Begin(gpus, ranks, self.folder.name, alone), ranks, limit, grace)

    def close(self) -> None:
        """End the processes, and drop NCCL's logs."""
        super().close()
        self.folder.cleanup()
