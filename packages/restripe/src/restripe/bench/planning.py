"""What planning costs in worlds of any size: one rank's plan made anew, and a warm call's look-up. Needs no GPU and no process.

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

from restripe.api import Resharder, clear_caches, reshard
from restripe.group.inputs import Item, TensorRef
from restripe.layout.mesh import Layout, Mesh
from restripe.planning.planner import plan
from restripe.xferdtensor_python import xferdtensor_python_impl

SHAPE = (65536, 32768)  # divides by every power of two up to the largest worlds
DTYPE = torch.bfloat16
REPEATS, SECONDS = 5, 0.3  # at least so many, and for at least so long: a busy neighbour must not be all that is seen
BURST = 50  # look-ups between two readings of the clock


@dataclass(frozen=True)
class Measured:
    """By move the milliseconds of one plan and the rank's messages, and by kind the microseconds of a warm look-up."""

    ranks: int
    plan_ms: dict[str, float]
    messages: dict[str, int]
    lookup_us: dict[str, float]

    def told(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def moves(ranks: int) -> dict[str, tuple[Layout, Layout]]:
    """Layouts of the first half of the ranks and of the second."""
    half = ranks // 2
    rows, columns, twice = (half,), (Shard(1),), (2, half // 2) if half > 1 else (1, 1)
    source = _layout(0, rows, (Shard(0),))
    return {
        "S(0) to S(0)": (source, _layout(half, rows, (Shard(0),))),
        "S(0) to R,S(0)": (source, _layout(half, twice, (Replicate(), Shard(0)))),
        "S(0) to S(1)": (source, _layout(half, rows, columns)),
    }


def _layout(first: int, sizes: tuple[int, ...], placements: tuple[Placement, ...]) -> Layout:
    count = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
    return Layout(Mesh(sizes, tuple(range(first, first + count))), placements)


def measure(ranks: int) -> Measured:
    """Time the plans of a rank in the middle of the source, and the look-ups, in a world of so many ranks."""
    plan_ms, messages = {}, {}
    for name, (src, dst) in moves(ranks).items():
        make = partial(plan, src, dst, SHAPE, ranks // 4)
        messages[name] = len(
            make().sends
        )  # the first plan also indexes the meshes, which is done once for each of them
        plan_ms[name] = timed(make, 1) / 1e3
    return Measured(ranks, plan_ms, messages, {name: timed(call, BURST) for name, call in lookups(ranks)})


def timed(call: Callable[[], object], burst: int) -> float:
    """Microseconds of a call, in the fastest of many bursts: whatever else runs on the machine only adds."""
    found: list[float] = []
    while len(found) < REPEATS or sum(found) * burst < SECONDS * 1e6:
        begin = time.perf_counter()
        for _ in range(burst):
            call()
        found.append((time.perf_counter() - begin) / burst * 1e6)
    return min(found)


def lookups(ranks: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Warm calls of a rank beside the two halves, each of a group of its own; good until the next is asked for."""
    src, dst = moves(ranks)["S(0) to S(0)"]
    with _group(ranks) as group:
        call = partial(reshard, None, None, group, src_layout=src, dst_layout=dst, shape=SHAPE, dtype=DTYPE)
        yield "restripe.Mesh", _warm(call)
    idle = TensorRef(torch.Size(SHAPE), DTYPE, torch.device("cpu"))
    with _group(ranks) as group:
        sides = [(idle, _device_mesh(each.mesh, ranks), each.placements) for each in (src, dst)]
        yield "DeviceMesh", _warm(partial(xferdtensor_python_impl, *sides[0], *sides[1], group))
    with _group(ranks) as group, Resharder(group) as resharder:
        refit = resharder.prepare([Item("tensor", SHAPE, DTYPE, src, dst)])
        yield "refit", _warm(partial(refit.run, {}, {}))


@contextmanager
def _group(ranks: int) -> Iterator[Group]:
    group = Group(Alone(ranks, ranks + 1))
    yield group
    clear_caches(group)


def _device_mesh(mesh: Mesh, rank: int) -> DeviceMesh:
    """The same ranks as torch's mesh, without any process group behind it."""
    return DeviceMesh("cpu", mesh.mesh, _init_backend=False, _rank=rank)


def _warm(call: Callable[[], object]) -> Callable[[], object]:
    call()
    return call


@dataclass(eq=False)
class Group:
    """What restripe takes for a group."""

    communicator: Alone


class Alone:
    """The communicator of a rank that is idle, so that nothing is sent; of the others it knows their number.

    Where ranks exchange records, all say what it says.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.device = rank, size, torch.device("cpu")

    @contextmanager
    def group(self) -> Iterator[None]:
        """Nothing is submitted."""
        yield

    def exchange(self, record: bytes) -> list[bytes]:
        """This rank's record, as if all ranks said the same."""
        return [record] * self.size

    def split(self, color: int | None, key: int) -> Self | None:  # noqa: ARG002 - the transport protocol's signature
        """An idle rank is in no group of replicas."""
        return None

    def finalize(self) -> None:
        """Nothing is held."""

    destroy = abort = finalize


def table(found: Sequence[Measured]) -> Table:
    """One line a world."""
    drawn = Table(title="one rank's plan, and a warm look-up", title_justify="left")
    drawn.add_column("ranks", justify="right")
    for move in found[0].plan_ms:
        drawn.add_column(f"{move}\nms a plan", justify="right")
        drawn.add_column("messages", justify="right")
    for kind in found[0].lookup_us:
        drawn.add_column(f"{kind}\nus a look-up", justify="right")
    for each in found:
        plans = [cell for move in each.plan_ms for cell in (f"{each.plan_ms[move]:.3g}", f"{each.messages[move]:,}")]
        drawn.add_row(f"{each.ranks:,}", *plans, *(f"{time:.3g}" for time in each.lookup_us.values()))
    return drawn
