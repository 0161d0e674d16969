"""The nccl world: ranks are processes on GPUs, several per GPU where there are fewer GPUs than ranks.

Communicators outlast groups, since creating one takes longer than most cases: a new group reuses one that an earlier
group of the same size has returned.
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
from reshard_conformance.judge.trace import EventLog
from reshard_conformance.worlds.call_log import NCCL_SETTINGS, CallLog
from reshard_conformance.worlds.processes import ProcessWorld
from reshard_conformance.worlds.rank_server import OpenSession

__all__ = ["NcclWorld", "gpu_sets", "max_ranks", "missing_requirement", "nccl_release"]

#: The maximum number of ranks of a session, and of ranks that share a GPU.
MAX_RANKS, RANKS_PER_GPU = 8, 4
#: The first release of NCCL that lets ranks share a GPU.
SHARED_GPU_RELEASE = (2, 30)
#: The file in which Linux shows the version of the driver.
DRIVER_FILE = Path("/proc/driver/nvidia/version")
#: NCCL's settings where ranks share a GPU.
SHARED_GPU_SETTINGS = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "8"}


def missing_requirement() -> str | None:
    """Return one sentence on what this machine lacks for the world, or None."""
    if not torch.cuda.is_available():
        return "world 'nccl' needs a GPU, and torch sees none on this machine"
    if importlib.util.find_spec("nccl") is None:
        return "world 'nccl' needs nccl4py, which is not installed; install nccl4py 0.5 or newer"
    return None


def max_ranks(gpus: int) -> int:
    """Return the maximum number of ranks of a session on `gpus` GPUs, with the loaded release of NCCL."""
    return min(MAX_RANKS, gpus * (RANKS_PER_GPU if nccl_release() >= SHARED_GPU_RELEASE else 1)) if gpus else 0


def nccl_release() -> tuple[int, ...]:
    """Return the loaded release of NCCL, such as (2, 30, 7); it may differ from the one that torch was built with."""
    from reshard_conformance.worlds.nccl_transport import nccl_version  # noqa: PLC0415 - a host without GPUs has no nccl4py

    number = nccl_version()
    return number // 10_000, number // 100 % 100, number % 100


def driver_version(file: Path = DRIVER_FILE) -> str:
    """Return the version of the GPUs' driver, from its kernel module."""
    version = re.search(r"\b\d+(\.\d+)+", file.read_text(encoding="utf-8")) if file.exists() else None
    return version.group() if version else "not known"


def gpu_sets() -> list[tuple[int, ...]]:
    """Return the GPUs of this machine in disjoint sets of MAX_RANKS; one set where there are fewer."""
    gpus = tuple(range(torch.cuda.device_count()))
    return [gpus[start : start + MAX_RANKS] for start in range(0, len(gpus) - MAX_RANKS + 1, MAX_RANKS)] or [gpus]


#: Seconds that a step may take.
STEP_LIMIT = 60.0


class NcclGroup:
    """One rank's group in the nccl world. nccl_communicator: nccl4py's; it may be split, but not destroyed."""

    traced = True

    def __init__(self, nccl_communicator: Any, communicator: Communicator) -> None:
        self.nccl_communicator, self.communicator = nccl_communicator, communicator
        self.rank, self.size = communicator.rank, communicator.size


class NcclRank:
    """The state of one rank process: its GPU, NCCL's call log, and unused communicators by size.

    alone: no other pool of rank processes uses the GPU.
    """

    def __init__(self, rank: int, store: Store, device: torch.device, log: CallLog, *, alone: bool = True) -> None:
        self.rank, self.store, self.device, self.log, self.alone = rank, store, device, log, alone
        self.unused: dict[int, list[Any]] = defaultdict(list)
        self.created: Counter[int] = Counter()

    def take_communicator(self, size: int) -> Any:
        """Return a communicator of the first `size` ranks; collective where none is unused."""
        from reshard_conformance.worlds.nccl_transport import create_communicator  # noqa: PLC0415 - nccl4py is needed in rank processes only

        if self.unused[size]:
            return self.unused[size].pop()
        self.created[size] += 1
        return create_communicator(self.store, f"{size} ranks, {self.created[size]}", self.rank, size)


class NcclHost:
    """Makes the groups of one rank in one session."""

    def __init__(self, process: NcclRank, opening: OpenSession) -> None:
        self.process, self.size, self.device = process, opening.size, process.device
        self.in_use: list[Any] = []

    def make(self, serial: int, log: EventLog) -> NcclGroup:
        from reshard_conformance.worlds.nccl_transport import NcclCommunicator  # noqa: PLC0415 - as above

        handle = self.process.take_communicator(self.size)
        self.in_use.append(handle)
        self.process.log.watch(int(handle.ptr), str(serial), self.process.rank, self.size, log)
        return NcclGroup(handle, NcclCommunicator(handle))

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)
        self.process.log.read()

    def held(self) -> int:
        """Return the bytes of the device in use; where others use it, those that this process reserves for tensors."""
        if not self.process.alone:
            return torch.cuda.memory_reserved(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def release(self, group: Group, *, cleared: bool) -> None:
        del cleared  # communicators split from it are the implementation's
        if isinstance(group, NcclGroup):
            self.in_use.remove(group.nccl_communicator)
            self.process.unused[self.size].append(group.nccl_communicator)

    def versions(self) -> dict[str, str]:
        """Return the loaded NCCL, the CUDA that torch was built with, the GPU and its driver."""
        return {
            "nccl": ".".join(map(str, nccl_release())),
            "cuda": str(torch.version.cuda),
            "gpu": torch.cuda.get_device_name(self.device),
            "driver": driver_version(),
        }

    def close(self, *, clear: bool) -> None:
        """Keep the communicators for the next session; abort them after a failure, which may leave calls in flight."""
        for handle in self.in_use:
            self.process.log.ignore(int(handle.ptr))
            if clear:
                self.process.unused[self.size].append(handle)
            else:
                handle.abort()
        self.in_use.clear()


@dataclass(frozen=True)
class StartNcclRank:
    """Called once in a rank process.

    gpus: of the world. ranks: of the pool. folder: for NCCL's logs. alone: see NcclRank.
    """

    gpus: tuple[int, ...]
    ranks: int
    folder: str
    alone: bool = True

    def __call__(self, rank: int, store: Store) -> Callable[[OpenSession], NcclHost]:
        file = Path(self.folder) / f"{rank}.{os.getpid()}"
        sharing = SHARED_GPU_SETTINGS if self.ranks > len(self.gpus) else {}
        os.environ.update(
            NCCL_SETTINGS | {"NCCL_DEBUG_FILE": str(file)} | sharing
        )  # before NCCL is first called, which is when it reads them
        device = torch.device("cuda", self.gpus[rank % len(self.gpus)])
        torch.cuda.set_device(device)
        return partial(NcclHost, NcclRank(rank, store, device, CallLog(file), alone=self.alone))


class NcclWorld(ProcessWorld):
    """Ranks as processes on these GPUs (all of this machine when None), rank r on GPU r modulo their number.

    alone: no other world uses these GPUs.
    """

    name = "nccl"

    def __init__(
        self,
        place_of: Callable[[str], str],
        gpus: Sequence[int] | None = None,
        size: int | None = None,
        limit: float = STEP_LIMIT,
        grace: float = 10.0,
        *,
        alone: bool = True,
    ) -> None:
        gpus = tuple(range(torch.cuda.device_count()) if gpus is None else gpus)
        ranks = max_ranks(len(gpus)) if size is None else size
        self.folder = TemporaryDirectory(prefix="reshard-nccl-")
        super().__init__(place_of, StartNcclRank(gpus, ranks, self.folder.name, alone), ranks, limit, grace)

    def close(self) -> None:
        """End the processes, and delete NCCL's logs."""
        super().close()
        self.folder.cleanup()
