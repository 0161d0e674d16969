"""Real gloo between four processes: the transport protocol, groups of other ranks or of two worlds, and clears."""

from __future__ import annotations

import json
import multiprocessing
import runpy
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

SIZE = 4
Reports = dict[int, dict[str, str]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """The traceback of each rank in each scenario; empty where it passed."""
    folder = tmp_path_factory.mktemp("gloo")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.tensor"])
    script = str(Path(__file__).parents[1] / "helpers" / "ranks.py")
    ranks, ports = [], free(2)
    for rank in range(SIZE):
        places = {"STORE": str(folder / "store"), "PORTS": ports, "REPORT": str(folder / f"{rank}.json")}
        given = {"RANK": rank, "SIZE": SIZE, **places}
        ranks.append(context.Process(target=runpy.run_path, args=(script, given, "__ranks__"), daemon=True))
    for process in ranks:
        process.start()
    deadline = time.monotonic() + 80
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
    files = {rank: folder / f"{rank}.json" for rank in range(SIZE)}
    absent = {"": "did not end in time"}
    return {
        rank: json.loads(file.read_text(encoding="utf-8")) if file.exists() else absent for rank, file in files.items()
    }


def free(count: int) -> list[int]:
    """Return ports of this host that no process listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in sockets]


def assert_passed(reports: Reports, scenario: str) -> None:
    wrong = {
        rank: text for rank, report in reports.items() if (text := report.get(scenario, report.get("", "not played")))
    }
    assert not wrong, "\n".join(f"rank {rank}: {text}" for rank, text in wrong.items())


@pytest.mark.parametrize("scenario", ["protocol", "by_address", "splits", "default_device", "nothing_on_an_exception"])
def test_the_transport_protocol_over_gloo(reports: Reports, scenario: str) -> None:
    assert_passed(reports, scenario)


@pytest.mark.requirement("RS-UPSTREAM-3", "RS-CACHE-7")
def test_the_default_group_stands_for_none(reports: Reports) -> None:
    assert_passed(reports, "default_group")


@pytest.mark.requirement("RS-UPSTREAM-3", "RS-UPSTREAM-13")
def test_device_meshes_in_a_subgroup(reports: Reports) -> None:
    assert_passed(reports, "subgroup")


@pytest.mark.requirement("RS-UPSTREAM-13", "RS-AGREE-1")
def test_device_meshes_with_ranks_outside_the_group(reports: Reports) -> None:
    assert_passed(reports, "strangers_of_a_group")


@pytest.mark.requirement("RS-CACHE-10", "RS-AGREE-3")
def test_clears_on_one_rank_only(reports: Reports) -> None:
    assert_passed(reports, "clears_that_differ")


@pytest.mark.requirement("RS-UPSTREAM-13", "RS-UPSTREAM-14")
def test_two_worlds_that_join_each_keep_their_own_ranks(reports: Reports) -> None:
    assert_passed(reports, "joined_worlds")


def test_calls_under_inference_mode(reports: Reports) -> None:
    assert_passed(reports, "under_inference_mode")
