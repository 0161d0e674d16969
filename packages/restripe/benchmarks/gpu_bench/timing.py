"""The play of a row on one rank: every contender is checked, then all are timed in turn, then checked again."""

from __future__ import annotations

import faulthandler
import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import Store

from gpu_bench.clock import Clock, peak_bytes, synchronize
from gpu_bench.moves import Contender, PreparedMove, UnsupportedRowError
from gpu_bench.results import TIMES, Result, Timing, slowest_rank_us
from gpu_bench.routes import ReplicaStrategy, row_traffic, staging_bytes
from gpu_bench.rows import ConsumerRow, RowTensors
from restripe.bench.transfers import Row

WARM_CALLS = 3  # before the first that counts
PATIENCE = 60.0  # seconds that a step may take; then the rank writes where it is and ends
SHARED_PATIENCE = 5 * PATIENCE  # the same where ranks share a GPU by slices of time, or the cores of a CPU


@dataclass
class RankContext:
    """A rank among the processes of the benchmark.

    `cleanup` ends what contenders were made with; `patience` is how many seconds a step may take; `shares_gpu` says that
    other ranks have the same GPU.
    """

    rank: int
    size: int
    device: torch.device
    store: Store
    barrier_path: Path
    patience: float = PATIENCE
    shares_gpu: bool = False
    cleanup: ExitStack = field(default_factory=ExitStack)
    _gathers: int = 0

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order; all ranks call."""
        self._gathers += 1
        prefix = f"gather/{self._gathers}"
        self.store.set(f"{prefix}/{self.rank}", pickle.dumps(value))  # type: ignore[arg-type]  # torch types it narrower than it is
        return [pickle.loads(self.store.get(f"{prefix}/{rank}")) for rank in range(self.size)]  # noqa: S301 - our own

    def set_deadline(self, seconds: float | None = None) -> None:
        """Unless the next deadline is set within so many seconds, write where this process is and end it."""
        faulthandler.dump_traceback_later(self.patience if seconds is None else seconds, exit=True)


@dataclass
class _Entry:
    """A contender that has shown that it can play the row."""

    name: str
    move: PreparedMove
    wrong_bytes: int
    extra_bytes: int


def play_row(row: Row, contenders: Sequence[Contender], clock: Clock, context: RankContext) -> Result:
    """Play one row; every rank gets the same result."""
    tensors = RowTensors(row, context.rank, context.size, context.device)
    result = Result(
        row.name, row.size_bytes, staging_bytes(row), tensors=len(row.tensors), shared_gpu=context.shares_gpu
    )
    entries = []
    for contender in contenders:
        entry = _check_contender(contender, tensors, context)
        if isinstance(entry, str):
            result.not_run[contender.name] = entry
        else:
            entries.append(entry)
    time_entries = _time_refits if isinstance(row, ConsumerRow) else _time_calls
    for entry, times in zip(entries, time_entries(tensors, entries, clock, context), strict=True):
        context.set_deadline()
        entry.wrong_bytes += _move_and_compare(entry.move, tensors, context)
        ranks = context.all_gather((times, entry.extra_bytes))
        host, loop, wall, gpu = (slowest_rank_us([seconds[time] for seconds, _ in ranks]) for time in TIMES)
        extra = max(extra_bytes for _, extra_bytes in ranks)
        result.timings[entry.name] = Timing(host, loop, wall, gpu, entry.wrong_bytes, extra)
    if ReplicaStrategy.REPRESENTATIVE in result.timings:
        result.traffic.update(row_traffic(row))
    return result


def _check_contender(contender: Contender, tensors: RowTensors, context: RankContext) -> _Entry | str:
    """Check the bytes of the contender's first move and measure its memory; return the reason where it cannot play."""
    context.set_deadline()
    reason, move = "", None
    tensors.fill_wrong()
    synchronize()
    before = torch.cuda.memory_allocated()
    try:
        move = contender.prepare(tensors)
        move.call()
        synchronize()
    except Exception as error:  # noqa: BLE001 - a contender that refuses is a finding, whatever it raises
        reason = first_line(error)
    reasons: list[str] = [text for text in context.all_gather(reason) if text]
    if reasons or move is None:
        return reasons[0]
    move.finish()
    wrong: int = sum(context.all_gather(tensors.wrong_bytes()))
    return _Entry(contender.name, move, wrong, peak_bytes(move.call) - before)


def _move_and_compare(move: PreparedMove, tensors: RowTensors, context: RankContext) -> int:
    """Move into destinations of which every byte is wrong, and return how many still are, on all ranks."""
    _renew(tensors, move)
    tensors.fill_wrong()
    synchronize()
    move.call()
    synchronize()
    move.finish()
    return sum(context.all_gather(tensors.wrong_bytes()))


def first_line(error: Exception) -> str:
    """Return the first line of what kept a contender from a row."""
    text = str(error) if isinstance(error, UnsupportedRowError) else f"{type(error).__name__}: {error}"
    return next(iter(text.splitlines()), type(error).__name__)


Times = dict[str, list[float]]  # seconds of each repeat, by TIMES


def burst_calls(row: Row) -> int:
    """Return how many calls are timed in a row: so many that neither the clock's step nor the cost of the first one counts."""
    return min(20, row.repeats) if len(row.tensors) == 1 else 1


def _time_calls(tensors: RowTensors, entries: Sequence[_Entry], clock: Clock, context: RankContext) -> list[Times]:
    """Return the times of each contender, of single calls and of bursts."""
    context.set_deadline()
    count = burst_calls(tensors.row)
    leads = [_lead_seconds(entry, count, clock) for entry in entries]
    times = [Times({time: [] for time in TIMES}) for _ in entries]
    for number in _turns(tensors.row.repeats, len(entries), context):
        call = entries[number].move.call
        single, burst = clock.time_single(call), clock.time_burst(call, count, leads[number])
        for time, seconds in zip(TIMES, (single.host, burst.host, single.wall, burst.gpu), strict=True):
            times[number][time].append(seconds)
    return times


def _time_refits(tensors: RowTensors, entries: Sequence[_Entry], clock: Clock, context: RankContext) -> list[Times]:
    """Return the times of each contender, of single refits: on the host, and until the GPU is done."""
    times = [Times({time: [] for time in TIMES}) for _ in entries]
    for number in _turns(tensors.row.repeats, len(entries), context):
        _renew(tensors, entries[number].move)
        refit = clock.time_refit(entries[number].move, pause=context.shares_gpu)
        times[number]["host_us"].append(refit.host)
        times[number]["wall_us"].append(refit.wall)
    return times


def _turns(repeats: int, entries: int, context: RankContext) -> Iterator[int]:
    """Yield contenders by number, in an order drawn anew for each repeat: none always comes after the same one."""
    for repeat in range(repeats):
        for number in torch.randperm(entries, generator=torch.Generator().manual_seed(repeat)).tolist():
            context.set_deadline()
            yield number


def _renew(tensors: RowTensors, move: PreparedMove) -> None:
    """Give the contender tensors at other addresses, where the row asks for it."""
    if isinstance(tensors.row, ConsumerRow) and tensors.row.fresh:
        tensors.renew()
        move.refresh()


def _lead_seconds(entry: _Entry, count: int, clock: Clock) -> float:
    """Return how many seconds the host needs at most to be ahead of a burst."""
    hosts = [clock.time_single(entry.move.call).host for _ in range(WARM_CALLS)]
    return 2 * min(hosts) * count + 2e-4
