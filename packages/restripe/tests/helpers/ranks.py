"""The scenarios of four processes over real gloo; test_gloo.py starts them and gives RANK, SIZE, STORE, PORTS and REPORT.

A scenario is a function of that name: all ranks run them in order, and each writes its traceback, by scenario.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import restripe
from restripe import Layout, Mesh
from restripe.errors import AgreementError, LayoutError
from restripe.group.registry import state_of
from restripe.transport import connect
from restripe.transport.address_adapter import addressed
from restripe.transport.protocol import Communicator

RANK: int = globals().get("RANK", 0)
SIZE: int = globals().get("SIZE", 4)
TIMEOUT = timedelta(seconds=30)
WHOLE = torch.arange(24, dtype=torch.float32).reshape(6, 4)


def flat(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def met(prefix: str) -> Communicator:
    """Make a communicator of restripe's own among all ranks."""
    store = c10d._get_process_group_store(dist.group.WORLD)  # type: ignore[arg-type]
    return connect.meet(store, prefix, RANK, SIZE, torch.device("cpu"), TIMEOUT)


def protocol() -> None:
    """Every call of the transport protocol does what the table says."""
    made = met("protocol")
    assert (made.rank, made.size, made.device) == (RANK, SIZE, torch.device("cpu"))
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    first, second = flat(0, 0), flat(0)
    with made.group():
        made.recv(first, left)
        made.recv(second, left)
        made.send(flat(RANK, 7), right)
        made.send(flat(RANK + 10), right)
    assert first.tolist() == [left, 7]
    assert second.tolist() == [left + 10]
    rows = torch.zeros(SIZE * 3, dtype=torch.uint8)
    part = rows.chunk(SIZE)[RANK]
    part.fill_(RANK + 1)
    made.all_gather(rows, part)
    assert rows.tolist() == [rank + 1 for rank in range(SIZE) for _ in range(3)]
    buffer = flat(RANK, RANK)
    made.broadcast(buffer, 2)
    assert buffer.tolist() == [2, 2]
    assert made.exchange(b"x" * RANK * 1000) == [b"x" * rank * 1000 for rank in range(SIZE)]
    assert made.exchange(b"") == [b""] * SIZE
    made.destroy()


def by_address() -> None:
    """Messages and collectives by address, prepared once under inference mode, move what their memory holds at each call."""
    made = met("by address")
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    memory = torch.zeros(4 * SIZE + 8, dtype=torch.uint8)
    whole, own, sent, received = memory[: 3 * SIZE], memory[3 * RANK : 3 * RANK + 3], memory[-8:-5], memory[-5:-2]
    shared = memory[-2:]
    with torch.inference_mode():
        transport = addressed(made)
        exchange = transport.p2p(
            [(sent.data_ptr(), 2, right), (sent.data_ptr() + 2, 1, right)],
            [(received.data_ptr(), 2, left), (received.data_ptr() + 2, 1, left)],
        )
        replicate = transport.collectives([(whole.data_ptr(), own.data_ptr(), 3)], [(shared.data_ptr(), 2, 1)])
    for value in (0, 100):
        sent.copy_(flat(RANK, RANK + value, 7))
        own.fill_(RANK + value)
        shared.fill_(RANK)
        exchange(None)
        replicate(None)
        assert received.tolist() == [left, left + value, 7]
        assert whole.tolist() == [rank + value for rank in range(SIZE) for _ in range(3)]
        assert shared.tolist() == [1, 1]
    made.destroy()


def splits() -> None:
    """Members are in the order of their keys; a rank without a color joins none."""
    made = met("splits")
    half = made.split(None if RANK == 3 else RANK % 2, -RANK)
    if RANK == 3:
        assert half is None
    else:
        assert half is not None
        members = [2, 0] if RANK % 2 == 0 else [1]
        assert (half.rank, half.size) == (members.index(RANK), len(members))
        assert half.exchange(bytes([RANK])) == [bytes([rank]) for rank in members]
    again = made.split(0, RANK)
    assert again is not None
    assert again.exchange(bytes([RANK])) == [bytes([rank]) for rank in range(SIZE)]


def default_device() -> None:
    """Records are exchanged on the CPU, whatever the caller's default device."""
    made = met("default device")
    with torch.device("meta"):
        half = made.split(RANK % 2, RANK)
        assert half is not None
        assert half.exchange(bytes([RANK])) == [bytes([rank]) for rank in range(RANK % 2, SIZE, 2)]


def nothing_on_an_exception() -> None:
    """The operations of a group are dropped when it ends in an exception."""
    made = met("exceptions")
    with pytest.raises(ZeroDivisionError), made.group():  # noqa: PT012  (the group must have begun)
        made.send(flat(9), (RANK + 1) % SIZE)
        made.send(flat(9), 1 // (RANK - RANK))
    got = flat(0)
    with made.group():
        made.send(flat(RANK), (RANK + 1) % SIZE)
        made.recv(got, (RANK - 1) % SIZE)
    assert got.item() == (RANK - 1) % SIZE


def default_group() -> None:
    """DTensors over the default group carry their own layouts."""
    rows, columns = DeviceMesh("cpu", [0, 1, 2, 3]), DeviceMesh("cpu", [[0, 1], [2, 3]])
    src = distribute_tensor(WHOLE, rows, [Shard(0)])
    dst = distribute_tensor(torch.zeros(6, 4), columns, [Replicate(), Shard(1)])
    work = restripe.reshard(src, dst)
    assert work.wait()
    assert torch.equal(dst.full_tensor(), WHOLE)
    assert state_of(dist.group.WORLD).live == 2
    restripe.clear_caches()
    assert state_of(dist.group.WORLD).live == 0
    restripe.reshard(dst, src)
    restripe.clear_caches()


def held(shards: dict[int, torch.Tensor], mesh: DeviceMesh, dim: int) -> DTensor:
    """Return a DTensor like WHOLE of these shards, by rank; empty outside the mesh. (distribute_tensor sorts a mesh's ranks.)"""
    local = shards.get(RANK, torch.zeros(0)).contiguous()
    return DTensor.from_local(local, mesh, [Shard(dim)], shape=WHOLE.shape, stride=WHOLE.stride())


def subgroup() -> None:
    """In a group whose ranks are not the global ones, the ranks of a DeviceMesh are translated."""
    source, target = DeviceMesh("cpu", [3, 1]), DeviceMesh("cpu", [2, 3])
    group = dist.new_group([1, 2, 3], timeout=TIMEOUT)
    src = held({3: WHOLE[:3], 1: WHOLE[3:]}, source, 0)
    dst = held({2: torch.zeros(6, 2), 3: torch.zeros(6, 2)}, target, 1)
    if RANK == 0:
        return
    assert Mesh.from_device_mesh(source, group) == Mesh((2,), (2, 0))
    restripe.reshard(src, dst, group)  # also on ranks outside a mesh, whose DTensors hold nothing
    mine = {2: WHOLE[:, :2], 3: WHOLE[:, 2:]}
    if RANK in mine:
        assert torch.equal(dst.to_local(), mine[RANK])
        dst.to_local().zero_()
    sides = Layout(Mesh((2,), (2, 0)), (Shard(0),)), Layout(Mesh((2,), (1, 2)), (Shard(1),))
    restripe.reshard(
        src if RANK in (1, 3) else None,
        dst if RANK in mine else None,
        group,
        src_layout=None if RANK in (1, 3) else sides[0],
        dst_layout=None if RANK in mine else sides[1],
    )
    assert RANK not in mine or torch.equal(dst.to_local(), mine[RANK])
    restripe.clear_caches(group)


def strangers_of_a_group() -> None:
    """A DeviceMesh with ranks outside the group, and an idle DTensor that is none, are refused."""
    mesh = DeviceMesh("cpu", [0, 1])
    group = dist.new_group([1, 2, 3], timeout=TIMEOUT)
    dst = distribute_tensor(torch.zeros(6, 4), DeviceMesh("cpu", [2, 3]), [Shard(0)])
    if RANK == 0:
        return
    src = DTensor.from_local(torch.zeros(3, 4), mesh, [Shard(0)]) if RANK == 1 else None
    layout = Layout(Mesh((2,), (0, 1)), (Shard(0),))
    with pytest.raises(LayoutError, match=r"rank 0: source layout: global ranks \(0\)"):
        restripe.reshard(src, dst, group, src_layout=None if RANK == 1 else layout, check="always")


def clears_that_differ() -> None:
    """A clear on one rank only is an error on all; after one on all ranks all is well again."""
    group = dist.new_group(timeout=TIMEOUT)
    layouts = Layout(Mesh((4,), (0, 1, 2, 3)), (Shard(0),)), Layout(Mesh((2, 2), (3, 1, 2, 0)), (Replicate(), Shard(1)))
    column = {3: 0, 2: 0, 1: 1, 0: 1}[RANK]

    def call(value: int) -> None:
        whole = WHOLE + value
        pieces = whole.chunk(4)
        src = pieces[RANK] if len(pieces) > RANK else whole[:0]
        dst = torch.zeros(6, 2)
        shape, sides = (6, 4), {"src_layout": layouts[0], "dst_layout": layouts[1]}
        restripe.reshard(src.clone(), dst, group, shape=shape, check="always", **sides)  # type: ignore[arg-type]
        assert torch.equal(dst, whole.chunk(2, 1)[column])

    call(0)
    with pytest.raises(AgreementError):  # noqa: PT012  (each rank raises in its own call)
        if RANK == 2:
            restripe.clear_caches(group)
        call(1)
    call(2)
    for _ in range(2):
        restripe.clear_caches(group)
        call(3)
    assert state_of(group).live == 2
    restripe.clear_caches(group)


def under_inference_mode() -> None:
    """gloo writes to the tensors of a call under inference mode."""
    group = dist.new_group(timeout=TIMEOUT)
    layouts = Layout(Mesh((4,), (0, 1, 2, 3)), (Shard(1),)), Layout(Mesh((4,), (3, 1, 2, 0)), (Replicate(),))
    for rows in (6, 8):  # broadcast, and stripes
        with torch.inference_mode():
            whole = torch.arange(rows * 4).reshape(rows, 4)
            dst = torch.zeros(4, rows, dtype=torch.int64).t()
            src = whole[:, RANK : RANK + 1].clone()
            restripe.reshard(src, dst, group, src_layout=layouts[0], dst_layout=layouts[1], shape=(rows, 4))
            assert torch.equal(dst, whole)
    restripe.clear_caches(group)


def joined_worlds() -> None:
    """Ranks 0 and 1, and 2 and 3, are worlds of their own, whose DeviceMeshes name ranks 0 and 1; they join twice."""
    mine = RANK // 2
    meshes = Mesh((2,), (1, 0)), Mesh((2,), (2, 3))
    columns = WHOLE.chunk(2, 1)
    for port in globals()["PORTS"]:
        group = restripe.join(f"127.0.0.1:{port}", RANK, SIZE, "cpu", timeout=TIMEOUT)
        assert (group.rank, group.size, group.device) == (RANK, SIZE, torch.device("cpu"))
        assert group.members == {0: 2 * mine, 1: 2 * mine + 1}
        own = DeviceMesh("cpu", [[1, 0], [0, 1]][mine])
        assert Mesh.from_device_mesh(own, group) == meshes[mine]
        sides = Layout(meshes[0], (Shard(0),)), Layout(meshes[1], (Shard(1),))
        if mine == 0:
            src = DTensor.from_local(
                WHOLE.chunk(2)[1 - RANK], own, [Shard(0)], shape=WHOLE.shape, stride=WHOLE.stride()
            )
            restripe.reshard(src, None, group, dst_layout=sides[1])
        else:
            empty = torch.zeros(6, 2)
            dst = DTensor.from_local(empty, own, [Shard(1)], shape=WHOLE.shape, stride=WHOLE.stride())
            restripe.reshard(None, dst, group, src_layout=sides[0])
            assert torch.equal(dst.to_local(), columns[RANK - 2])
        restripe.clear_caches(group)
        group.close()


def outcome(scenario: Callable[[], None]) -> str:
    try:
        scenario()
    except BaseException:  # noqa: BLE001  (the test reports it)
        return traceback.format_exc()
    return ""


SCENARIOS: list[Callable[[], None]] = [
    protocol,
    by_address,
    splits,
    default_device,
    nothing_on_an_exception,
    default_group,
    subgroup,
    strangers_of_a_group,
    clears_that_differ,
    under_inference_mode,
]

if __name__ == "__ranks__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{globals()['STORE']}", rank=RANK, world_size=SIZE, timeout=TIMEOUT)
    report = {scenario.__name__: outcome(scenario) for scenario in SCENARIOS}
    dist.destroy_process_group()
    world = f"file://{globals()['STORE']}.{RANK // 2}"
    dist.init_process_group("gloo", world, rank=RANK % 2, world_size=2, timeout=TIMEOUT)
    report[joined_worlds.__name__] = outcome(joined_worlds)
    Path(globals()["REPORT"]).write_text(json.dumps(report), encoding="utf-8")
    dist.destroy_process_group()
