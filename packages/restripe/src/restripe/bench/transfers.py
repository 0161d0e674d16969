"""Time restripe's calls between the processes of this host: a GPU each over NCCL, or two on the CPU over gloo."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any

import torch
import torch.distributed as dist
from rich.table import Table
from torch import multiprocessing
from torch.distributed.tensor import Shard

from restripe import Item, Layout, Resharder, TensorRef, reshard
from restripe.analysis.mapping import Move
from restripe.analysis.models import parameters
from restripe.analysis.spelling import layout
from restripe.xferdtensor_python import xferdtensor_python_impl

DTYPE = torch.bfloat16
SMALL, MB34, MB262, GIB = (64, 128), (4096, 4096), (25600, 5120), (32768, 16384)
CPU_BYTES = 300e6  # larger rows are left out on the CPU, where they would take minutes
LOOPS = 5  # each of a tenth of the row's repeats; the median loop counts
SECONDS_PER_ROW, LEAST_SECONDS = 30.0, 120.0
EXIT_SECONDS = 20.0  # for a process to end by itself
_HASH = -7046029254386353131  # an odd 64-bit constant: multiplying by it loses nothing

Call = Callable[[], object]


class BenchError(RuntimeError):
    """The benchmark cannot go on; the text says what happened."""


@dataclass(frozen=True)
class Row:
    """One line of the table: tensors, and the layouts that they move between.

    Args:
        name: how it is shown and chosen.
        repeats: how often a call is timed.
    """

    name: str
    tensors: tuple[Move, ...]
    repeats: int = 30

    @property
    def size_bytes(self) -> int:
        """Global bytes."""
        return sum(tensor.numel * tensor.dtype.itemsize for tensor in self.tensors)


@dataclass(frozen=True)
class CallTime:
    """One of restripe's calls in one row, called in a row: medians of the slowest rank, each call's share."""

    row: str
    call: str
    size_bytes: int
    host_us: float
    total_ms: float
    wrong_bytes: int

    @property
    def gb_per_s(self) -> float:
        """Global bytes over time."""
        return self.size_bytes / self.total_ms / 1e6


def rows(ranks: int) -> tuple[Row, ...]:
    """Return the rows on an even number of ranks: from the first half to the second, or on all."""
    half = ranks // 2
    halves = layout(f"{half}:S(0)"), layout(f"{half}:S(0)", first=half)
    all_rows = layout(f"{ranks}:S(0)")
    columns, replicas = layout(f"{ranks}:S(1)"), layout(f"{ranks}:R")
    return (
        one_tensor_row("point 16 KiB", SMALL, *halves, 200),
        one_tensor_row("point 34 MB", MB34, *halves, 60),
        one_tensor_row("point 262 MB", MB262, *halves, 60),
        one_tensor_row("point 1 GiB", GIB, *halves),
        one_tensor_row("exchange 16 KiB", SMALL, all_rows, columns, 200),
        one_tensor_row("exchange 262 MB", MB262, all_rows, columns),
        one_tensor_row("gather 262 MB", MB262, all_rows, replicas),
        Row("model 4B", tuple(Move(p.name, p.kind, p.shape, DTYPE, *halves) for p in parameters("qwen3-4b")), 20),
    )


def one_tensor_row(name: str, shape: tuple[int, ...], src: Layout, dst: Layout, repeats: int = 30) -> Row:
    """Return a row of one tensor."""
    return Row(name, (Move("tensor", "", shape, DTYPE, src, dst),), repeats)


def select_rows(candidates: Sequence[Row], text: str, ranks: int) -> list[Row]:
    """Return the rows whose name contains the text; raise BenchError where none does."""
    selected = [row for row in candidates if text in row.name]
    if not selected:
        raise BenchError(f"no row on {ranks} ranks is named {text!r}; there are {[row.name for row in candidates]}")
    return selected


def rank_count() -> int:
    """Return the number of processes: one a GPU, an even number, or two on the CPU where there are not two GPUs."""
    return max(2, torch.cuda.device_count() // 2 * 2)


def uses_gpus() -> bool:
    """Return whether tensors live on GPUs."""
    return torch.cuda.device_count() >= 2


def playable_rows(ranks: int) -> list[Row]:
    """Return the rows that are timed on this host: on the CPU the larger ones are left out."""
    return [row for row in rows(ranks) if uses_gpus() or row.size_bytes <= CPU_BYTES]


def conditions(ranks: int) -> str:
    """Return a line that says where the ranks run."""
    if uses_gpus():
        return f"{ranks} x {torch.cuda.get_device_name(0)}, NCCL, torch {torch.__version__}"
    return (
        f"{ranks} processes on the CPU, gloo, torch {torch.__version__}; with two GPUs there are rows of more than "
        f"{CPU_BYTES / 1e6:.0f} MB too"
    )


def time_limit(selected: Sequence[Row]) -> float:
    """Return the seconds that a run of these rows may take."""
    return max(LEAST_SECONDS, SECONDS_PER_ROW * len(selected))


def measure(selected: Sequence[Row], ranks: int, limit: float) -> Iterator[list[CallTime]]:
    """Play the rows, and yield the times of each row's calls as they come.

    Args:
        limit: seconds after which the processes are ended.

    Raises:
        BenchError: a process ended early, or time ran out.
    """
    with tempfile.TemporaryDirectory(prefix="restripe-bench-") as folder:
        arguments = (ranks, tuple(selected), str(Path(folder) / "store"))
        yield from run_ranks(run_rank, ranks, arguments, len(selected), limit)


def run_ranks(
    target: Callable[..., None], ranks: int, arguments: tuple[Any, ...], count: int, limit: float
) -> Iterator[Any]:
    """Start a process for each rank, and yield what rank 0 sends; none of them outlives the iteration.

    Args:
        target: is called with the rank, the arguments, and the connection that rank 0 sends through.
        count: how many objects rank 0 sends.
        limit: seconds after which the processes are ended.

    Raises:
        BenchError: a process ended early, or time ran out.
    """
    context, deadline = multiprocessing.get_context("spawn"), monotonic() + limit
    inlet, outlet = context.Pipe(duplex=False)
    processes = [context.Process(target=target, args=(rank, *arguments, outlet), daemon=True) for rank in range(ranks)]
    for process in processes:
        process.start()
    outlet.close()
    try:
        for _ in range(count):
            yield _receive(inlet, processes, deadline)
    finally:
        for process in processes:
            process.join(EXIT_SECONDS)
            process.kill()


def _receive(inlet: Connection, processes: Sequence[BaseProcess], deadline: float) -> Any:
    """Return the next object from rank 0; end all processes where none comes."""
    reason = ""
    while not reason and not inlet.poll(1.0):
        failed = [rank for rank, process in enumerate(processes) if process.exitcode not in {None, 0}]
        if failed or monotonic() > deadline:
            reason = f"ranks {failed} ended early" if failed else "time ran out"
    try:
        if not reason:
            return inlet.recv()
    except EOFError:
        reason = "every rank ended early"
    for process in processes:
        process.kill()
    raise BenchError(f"{reason}; what they wrote last is above")


def run_rank(rank: int, ranks: int, selected: Sequence[Row], store: str, outlet: Connection) -> None:
    """Time the rows on one rank; rank 0 sends the times of each row."""
    device, backend = torch.device("cpu"), "gloo"
    if uses_gpus():
        device, backend = torch.device("cuda", rank), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)
    with torch.no_grad(), Resharder() as session:
        for row in selected:
            tensors = RankTensors(row, rank, device)
            times = [_time_call(row, name, call, tensors) for name, call in calls(session, row, tensors).items()]
            if rank == 0:
                outlet.send(times)
    dist.destroy_process_group()


@dataclass
class RankTensors:
    """The tensors of a row on one rank, by name; only those that the rank has."""

    row: Row
    rank: int
    device: torch.device
    sources: dict[str, torch.Tensor] = field(default_factory=dict)
    destinations: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for move in self.row.tensors:
            source, expected = self._shard(move, move.src), self._shard(move, move.dst)
            if source is not None:
                self.sources[move.name] = source.clone(memory_format=torch.contiguous_format)
            if expected is not None:
                self.destinations[move.name] = torch.zeros_like(expected, memory_format=torch.contiguous_format)

    def _shard(self, move: Move, side: Layout) -> torch.Tensor | None:
        """Return this rank's part of the global tensor, cut by torch.chunk; None outside the mesh."""
        coordinates = side.mesh.coordinates(self.rank)
        if coordinates is None:
            return None
        shard = _hashed_tensor(move.shape, self.device)
        for placement, parts, coordinate in zip(side.placements, side.mesh.shape, coordinates, strict=True):
            if isinstance(placement, Shard):
                shard = shard.chunk(parts, placement.dim)[coordinate]
        return shard

    def clear(self) -> None:
        """Zero the destinations."""
        for destination in self.destinations.values():
            destination.zero_()

    def wrong_bytes(self) -> int:
        """Return how many bytes of the destinations are not as they have to be."""
        wrong = 0
        for move in self.row.tensors:
            if move.name in self.destinations:
                expected = self._shard(move, move.dst)
                pair = expected, self.destinations[move.name]
                actual_bytes, expected_bytes = (t.contiguous().view(torch.uint8) for t in pair if t is not None)
                wrong += int((actual_bytes != expected_bytes).sum())
        return wrong


def _hashed_tensor(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return a tensor whose elements follow from their global index, alike on every device."""
    index = torch.arange(1, math.prod(shape) + 1, dtype=torch.int64, device=device)
    return (index.mul_(_HASH) >> 48).to(torch.int16).view(DTYPE).reshape(shape)


def calls(session: Resharder, row: Row, tensors: RankTensors) -> dict[str, Call]:
    """Return restripe's calls by name, each moving the whole row: the drop-in and `reshard` tensor by tensor, and a refit."""
    group = session.group
    pairs = [(move, tensors.sources.get(move.name), tensors.destinations.get(move.name)) for move in row.tensors]
    arguments = []
    for move, src, dst in pairs:
        source_side = _reference(move, src, tensors.device), move.src.mesh, move.src.placements
        destination_side = _reference(move, dst, tensors.device), move.dst.mesh, move.dst.placements
        arguments.append((*source_side, *destination_side, group))

    def drop_in() -> None:
        for positional in arguments:
            xferdtensor_python_impl(*positional)

    def one_by_one() -> None:
        for move, src, dst in pairs:
            reshard(src, dst, group, src_layout=move.src, dst_layout=move.dst, shape=move.shape, dtype=move.dtype)

    refit = session.prepare([Item(move.name, move.shape, move.dtype, move.src, move.dst) for move in row.tensors])
    return {
        "drop-in": drop_in,
        "reshard": one_by_one,
        "refit": lambda: refit.run(tensors.sources, tensors.destinations),
    }


def _reference(move: Move, local: torch.Tensor | None, device: torch.device) -> TensorRef | None:
    return None if local is None else TensorRef(torch.Size(move.shape), move.dtype, device, local)


def _time_call(row: Row, name: str, call: Call, tensors: RankTensors) -> CallTime:
    """Check a call's bytes, then time it in loops that all ranks begin together."""
    tensors.clear()
    call()
    _synchronize(tensors.device)
    wrong = tensors.wrong_bytes()
    count, host, total = max(1, row.repeats // 10), [], []
    for _ in range(LOOPS):
        call()
        _synchronize(tensors.device)
        _all_gather(None)
        begin = perf_counter()
        for _ in range(count):
            call()
        host.append((perf_counter() - begin) / count)
        _synchronize(tensors.device)
        total.append((perf_counter() - begin) / count)
    ranks = _all_gather((median(host), median(total), wrong))
    slowest_host, slowest_total = max(host for host, _, _ in ranks), max(total for _, total, _ in ranks)
    return CallTime(
        row.name, name, row.size_bytes, slowest_host * 1e6, slowest_total * 1e3, sum(w for _, _, w in ranks)
    )


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _all_gather(value: Any) -> list[Any]:
    """Return every rank's value, in rank order."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def table(times: Sequence[CallTime]) -> Table:
    """Return one row's table, a line a call."""
    drawn = Table(title=f"{times[0].row}: {times[0].size_bytes:,} bytes", title_justify="left")
    drawn.add_column("call")
    for head in ("host us", "ms", "GB/s", "wrong bytes"):
        drawn.add_column(head, justify="right")
    for time in times:
        figures = f"{time.host_us:.3g}", f"{time.total_ms:.3g}", f"{time.gb_per_s:.4g}", f"{time.wrong_bytes:,}"
        drawn.add_row(time.call, *figures)
    return drawn
