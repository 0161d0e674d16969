"""What world nccl does without a GPU: how it deals out ranks, GPUs and communicators. The rest is shown by gpu_conformance."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from reshard_conformance.case.files import Case, Side, StreamScenario
from reshard_conformance.contract import Level
from reshard_conformance.judge.trace import EventLog
from reshard_conformance.run import suite, workers
from reshard_conformance.run.plan import Chunk
from reshard_conformance.worlds import nccl
from reshard_conformance.worlds.call_log import CallLog
from reshard_conformance.worlds.gloo import GlooWorld
from reshard_conformance.worlds.rank_server import OpenSession


class Handle:
    """Stands for nccl4py's communicator; every one has an address of its own."""

    def __init__(self, key: str) -> None:
        self.key, self.ptr, self.aborted = key, id(self), False

    def abort(self) -> None:
        self.aborted = True


def pretend(monkeypatch: pytest.MonkeyPatch, **members: Any) -> None:
    """Put something with these members in the place of the module that imports nccl4py."""
    monkeypatch.setitem(sys.modules, "reshard_conformance.worlds.nccl_transport", SimpleNamespace(**members))


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nccl.NcclRank:
    """A rank process without a GPU, in which communicators create_communicator at once."""

    def create_communicator(store: object, key: str, rank: int, size: int) -> Handle:
        return Handle(key)

    def wrapped(handle: Handle) -> Any:
        return SimpleNamespace(handle=handle, rank=1, size=3)

    pretend(monkeypatch, create_communicator=create_communicator, NcclCommunicator=wrapped)
    return nccl.NcclRank(1, HashStore(), torch.device("cpu"), CallLog(tmp_path / "log"))


def open_host(process: nccl.NcclRank, size: int = 3) -> nccl.NcclHost:
    return nccl.NcclHost(process, OpenSession(0, size, "", traced=True, timeout=1.0))


def test_a_new_group_gets_a_communicator_that_was_given_back(process: nccl.NcclRank) -> None:
    host = open_host(process)
    first, second = (host.make(serial, EventLog()) for serial in range(2))
    host.release(first, cleared=True)
    third = host.make(2, EventLog())
    assert third is not first
    assert third.nccl_communicator is first.nccl_communicator
    assert third.nccl_communicator is not second.nccl_communicator
    assert process.log.communicators[third.nccl_communicator.ptr].name == "2"


def test_sessions_of_one_size_share_communicators(process: nccl.NcclRank) -> None:
    host = open_host(process)
    group = host.make(0, EventLog())
    host.close(clear=True)
    assert open_host(process, 2).make(0, EventLog()).nccl_communicator is not group.nccl_communicator
    assert open_host(process).make(0, EventLog()).nccl_communicator is group.nccl_communicator


def test_after_a_failure_communicators_are_aborted_and_the_next_meet_anew(process: nccl.NcclRank) -> None:
    host = open_host(process)
    group = host.make(0, EventLog())
    host.close(clear=False)
    assert group.nccl_communicator.aborted
    assert group.nccl_communicator.ptr not in process.log.communicators
    assert open_host(process).make(0, EventLog()).nccl_communicator.key != group.nccl_communicator.key


@pytest.mark.parametrize(
    ("gpus", "version", "most"), [(0, 23007, 0), (1, 23007, 4), (2, 22809, 2), (2, 23007, 8), (16, 22809, 8)]
)
def test_ranks_share_gpus_where_nccl_lets_them(
    monkeypatch: pytest.MonkeyPatch, gpus: int, version: int, most: int
) -> None:
    pretend(monkeypatch, nccl_version=lambda: version)
    assert nccl.max_ranks(gpus) == most


@pytest.mark.parametrize(("gpus", "sets"), [(2, [2]), (8, [8]), (12, [8]), (16, [8, 8])])
def test_gpus_are_dealt_out_in_disjoint_sets(monkeypatch: pytest.MonkeyPatch, gpus: int, sets: list[int]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    sets_of_gpus = nccl.gpu_sets()
    assert [len(gpu_set) for gpu_set in sets_of_gpus] == sets
    assert len({gpu for gpu_set in sets_of_gpus for gpu in gpu_set}) == sum(sets)


def test_chunks_of_nccl_go_to_a_worker_with_gpus_alone() -> None:
    chunks = [Chunk(world, "exact", (2,), place, 1, 1) for place, world in enumerate(("sim", "nccl", "gloo", "nccl"))]
    taken: list[Chunk] = []
    for gpus in ((), (0, 1)):
        worker = object.__new__(workers.Worker)
        worker.gpus, worker.pipe = gpus, SimpleNamespace(send=taken.append)  # type: ignore[assignment]
        waiting = list(chunks)
        while worker.start(waiting):
            pass
        assert waiting == ([] if gpus else [chunks[1], chunks[3]])
    assert [chunk.seed for chunk in taken] == [0, 2, 1, 3, 0, 2]


@pytest.mark.parametrize(
    ("gpus", "jobs", "dealt"),
    [
        (2, None, [*[(0, 1)] * 4, (), ()]),
        (2, 1, [(0, 1)]),
        (2, 4, [(0, 1)] * 4),
        (16, 3, [tuple(range(8)), tuple(range(8, 16)), tuple(range(8))]),
    ],
)
def test_pools_share_gpus_where_more_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, gpus: int, jobs: int | None, dealt: list[tuple[int, ...]]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    worlds = ["nccl"] * 5 + ["sim"] * 9
    chunks = [Chunk(world, "exact", (2,), place, 1, 1) for place, world in enumerate(worlds)]
    assert workers.worker_gpus(chunks, jobs) == dealt


@pytest.mark.requirement("RS-CACHE-13")
@pytest.mark.parametrize(("alone", "held"), [(True, 60), (False, 7)])
def test_memory_of_other_processes_counts_only_where_there_are_none(
    process: nccl.NcclRank, monkeypatch: pytest.MonkeyPatch, alone: bool, held: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (40, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 7)
    process.alone = alone
    assert open_host(process).held() == held


def test_the_driver_is_told_where_it_is_known(tmp_path: Path) -> None:
    file = tmp_path / "version"
    assert nccl.driver_version(file) == "not known"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\n")
    assert nccl.driver_version(file) == "580.82.07"


def test_without_a_gpu_a_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(suite.SuiteError, match="world 'nccl' needs a GPU"):
        suite.run_suite("golden", ("nccl",))


def test_too_many_ranks_for_an_older_nccl_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    pretend(monkeypatch, nccl_version=lambda: 22809)
    claims = SimpleNamespace(level=Level.L3)
    assert suite.world_sizes("nccl", claims, None) == (2,)  # type: ignore[arg-type]
    with pytest.raises(suite.SuiteError, match=r"1 to 2 ranks at L3, not \(8,\); ranks share a GPU with NCCL 2.30"):
        suite.world_sizes("nccl", claims, (8,))  # type: ignore[arg-type]


@pytest.mark.requirement("RS-STREAM-1")
def test_a_flow_needs_a_device(gloo: GlooWorld) -> None:
    case = Case(2, (3,), "int8", Side((0,), ("R",)), Side((1,), ("R",)))
    with gloo.open(2, "golden") as session:
        outcome = session.play(StreamScenario((case,), (1,), "given"))
        after = session.play(case)
    assert outcome.verdict == "unsupported"
    assert after.verdict == "pass"
