"""Time planning in worlds of any size: one rank's plan made anew, and a warm call's look-up. Needs no GPU and no process.

A look-up is a whole warm call on a rank that neither reads nor writes, of a group whose other ranks are only counted: all that
a call does on the host but moving data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

import torch
from rich.table import Table
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from restripe import Item, Layout, Mesh, Resharder, TensorRef, clear_caches, reshard
from restripe.planning.planner import plan
from restripe.xferdtensor_python import xferdtensor_python_impl

SHAPE = (65536, 32768)  # divides by every power of two up to the largest worlds
DTYPE = torch.bfloat16
REPEATS, SECONDS = (
    5,
    0.3,
)  # the least number and duration of the bursts, so that a busy neighbour is not all that is seen
BURST = 50  # look-ups between two readings of the clock


@dataclass(frozen=True)
class PlanningTimes:
    """Times in one world: by move the milliseconds of a plan and the rank's messages, by call the microseconds of a look-up."""

    ranks: int
    plan_ms: dict[str, float]
    messages: dict[str, int]
    lookup_us: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the times as JSON's types."""
        return asdict(self)


def moves(ranks: int) -> dict[str, tuple[Layout, Layout]]:
    """Return layouts of the first half of the ranks and of the second, by name."""
    half = ranks // 2
    flat, nested = (half,), (2, half // 2) if half > 1 else (1, 1)
    source = _layout(0, flat, (Shard(0),))
    return {
        "S(0) to S(0)": (source, _layout(half, flat, (Shard(0),))),
        "S(0) to R,S(0)": (source, _layout(half, nested, (Replicate(), Shard(0)))),
        "S(0) to S(1)": (source, _layout(half, flat, (Shard(1),))),
    }


def _layout(start: int, sizes: tuple[int, ...], placements: tuple[Placement, ...]) -> Layout:
    count = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
    return Layout(Mesh(sizes, tuple(range(start, start + count))), placements)


def measure(ranks: int) -> PlanningTimes:
    """Time the plans of a rank in the middle of the source, and the look-ups, in a world of so many ranks."""
    plan_ms, messages = {}, {}
    for name, (src, dst) in moves(ranks).items():
        make_plan = partial(plan, src, dst, SHAPE, ranks // 4)
        messages[name] = len(make_plan().sends)  # the first plan also indexes the meshes, once for each of them
        plan_ms[name] = fastest_us(make_plan, 1) / 1e3
    return PlanningTimes(
        ranks, plan_ms, messages, {name: fastest_us(call, BURST) for name, call in warm_lookups(ranks)}
    )


def fastest_us(call: Callable[[], object], burst: int) -> float:
    """Return the microseconds of a call, in the fastest of many bursts: whatever else runs on the machine only adds."""
    times: list[float] = []
    while len(times) < REPEATS or sum(times) * burst < SECONDS * 1e6:
        begin = time.perf_counter()
        for _ in range(burst):
            call()
        times.append((time.perf_counter() - begin) / burst * 1e6)
    return min(times)


def warm_lookups(ranks: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield warm calls of a rank beside the two halves, each of a group of its own that lasts until the next is asked for."""
    src, dst = moves(ranks)["S(0) to S(0)"]
    with _idle_group(ranks) as group:
        call = partial(reshard, None, None, group, src_layout=src, dst_layout=dst, shape=SHAPE, dtype=DTYPE)
        yield "restripe.Mesh", _called_once(call)
    reference = TensorRef(torch.Size(SHAPE), DTYPE, torch.device("cpu"))
    with _idle_group(ranks) as group:
        sides = [(reference, _device_mesh(side.mesh, ranks), side.placements) for side in (src, dst)]
        yield "DeviceMesh", _called_once(partial(xferdtensor_python_impl, *sides[0], *sides[1], group))
    with _idle_group(ranks) as group, Resharder(group) as resharder:
        refit = resharder.prepare([Item("tensor", SHAPE, DTYPE, src, dst)])
        yield "refit", _called_once(partial(refit.run, {}, {}))


@contextmanager
def _idle_group(ranks: int) -> Iterator[IdleGroup]:
    group = IdleGroup(IdleCommunicator(ranks, ranks + 1))
    yield group
    clear_caches(group)


def _device_mesh(mesh: Mesh, rank: int) -> DeviceMesh:
    """Return the same ranks as torch's mesh, without any process group behind it."""
    return DeviceMesh("cpu", mesh.mesh, _init_backend=False, _rank=rank)


def _called_once(call: Callable[[], object]) -> Callable[[], object]:
    call()
    return call


@dataclass(eq=False)
class IdleGroup:
    """A group of an idle rank, as restripe takes it."""

    communicator: IdleCommunicator


class IdleCommunicator:
    """The communicator of a rank that is idle, so that nothing is sent; of the others it knows their number.

    Where ranks exchange records, all answer with this rank's.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.device = rank, size, torch.device("cpu")

    @contextmanager
    def group(self) -> Iterator[None]:
        """Submit nothing."""
        yield

    def exchange(self, record: bytes) -> list[bytes]:
        """Return this rank's record for every rank."""
        return [record] * self.size

    def split(self, color: int | None, key: int) -> Self | None:  # noqa: ARG002 - the transport protocol's signature
        """Return None: an idle rank is in no group of replicas."""
        return None

    def finalize(self) -> None:
        """Release nothing: there is nothing held."""

    destroy = abort = finalize


def table(worlds: Sequence[PlanningTimes]) -> Table:
    """Return the table, one line a world."""
    drawn = Table(title="one rank's plan, and a warm look-up", title_justify="left")
    drawn.add_column("ranks", justify="right")
    for move in worlds[0].plan_ms:
        drawn.add_column(f"{move}\nms a plan", justify="right")
        drawn.add_column("messages", justify="right")
    for call in worlds[0].lookup_us:
        drawn.add_column(f"{call}\nus a look-up", justify="right")
    for world in worlds:
        plans = [cell for move, ms in world.plan_ms.items() for cell in (f"{ms:.3g}", f"{world.messages[move]:,}")]
        drawn.add_row(f"{world.ranks:,}", *plans, *(f"{us:.3g}" for us in world.lookup_us.values()))
    return drawn
