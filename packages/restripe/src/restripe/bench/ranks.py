"""One rank plays the rows: every contender is checked once, then all are timed in turn."""

from __future__ import annotations

import faulthandler
import pickle
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._C._distributed_c10d import Store

from restripe.bench.calls import Contender, Ready, Unfit
from restripe.bench.case import Case
from restripe.bench.clock import Clock
from restripe.bench.crossing import crossing
from restripe.bench.pieces import Way, staging
from restripe.bench.results import Result, Timing, slowest
from restripe.bench.rows import Row

WARM = 3  # calls before the first that counts
PATIENCE = 60.0  # seconds that a step may take; then the rank tells where it is and ends
CROWDED = 5 * PATIENCE  # the same where several ranks share a GPU by slices of time


@dataclass
class Seat:
    """A rank's place among the processes of the benchmark.

    `closing` ends what contenders were made with; `patience` is how many seconds a step may take.
    """

    rank: int
    size: int
    device: torch.device
    store: Store
    gate: Path
    patience: float = PATIENCE
    closing: ExitStack = field(default_factory=ExitStack)
    _told: int = 0

    def tell(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order; all ranks call."""
        self._told += 1
        self.store.set(f"told/{self._told}/{self.rank}", pickle.dumps(value))  # type: ignore[arg-type]  # torch types it narrower than it is
        return [pickle.loads(self.store.get(f"told/{self._told}/{rank}")) for rank in range(self.size)]  # noqa: S301 - our own

    def alarm(self, patience: float | None = None) -> None:
        """Unless the next alarm is set within so many seconds, write where this process is and end it."""
        faulthandler.dump_traceback_later(self.patience if patience is None else patience, exit=True)


class _Entry(NamedTuple):
    """A contender that has shown that it can play the row."""

    name: str
    ready: Ready
    wrong: int
    extra: int


def play(row: Row, contenders: Sequence[Contender], clock: Clock, seat: Seat) -> Result:
    """Play one row; every rank gets the same result."""
    case = Case(row, seat.rank, seat.size, seat.device)
    result = Result(row.name, row.size, staging(row))
    entries = []
    for contender in contenders:
        entry = _enter(contender, case, seat)
        if isinstance(entry, str):
            result.unfit[contender.name] = entry
        else:
            entries.append(entry)
    seat.alarm()
    for entry, times in zip(entries, _times(row, entries, clock), strict=True):
        *told, extra = zip(*seat.tell((*zip(*times, strict=True), entry.extra)), strict=True)
        host, loop, wall, gpu = map(slowest, told)
        result.timings[entry.name] = Timing(host, loop, wall, gpu, entry.wrong, max(extra))
    if Way.REPRESENTATIVE in result.timings:
        result.crossing.update(crossing(row))
    return result


def _enter(contender: Contender, case: Case, seat: Seat) -> _Entry | str:
    """Check the contender's bytes and measure its memory; the reason where it cannot play."""
    seat.alarm()
    reason, ready = "", None
    case.poison()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    try:
        ready = contender.ready(case)
        ready.call()
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - a contender that refuses is a finding, whatever it raises
        reason = why(error)
    reasons: list[str] = [one for one in seat.tell(reason) if one]
    if reasons or ready is None:
        return reasons[0]
    ready.land()
    wrong: int = sum(seat.tell(case.wrong()))
    torch.cuda.reset_peak_memory_stats()
    ready.call()
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    return _Entry(contender.name, ready, wrong, extra)


def why(error: Exception) -> str:
    """The first line of what kept a contender from a row."""
    text = str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"
    return next(iter(text.splitlines()), type(error).__name__)


class _Times(NamedTuple):
    """One repeat's, in seconds."""

    host: float
    loop: float
    wall: float
    gpu: float


def _times(row: Row, entries: Sequence[_Entry], clock: Clock) -> list[list[_Times]]:
    """The times of each contender, in an order drawn anew for each repeat, so that none always comes after the same one."""
    leads = [_lead(row, entry, clock) for entry in entries]
    times: list[list[_Times]] = [[] for _ in entries]
    for repeat in range(row.repeats):
        order = torch.randperm(len(entries), generator=torch.Generator().manual_seed(repeat))
        for number in order.tolist():
            call = entries[number].ready.call
            alone, burst = clock.alone(call), clock.burst(call, row.burst, leads[number])
            times[number].append(_Times(alone.host, burst.host, alone.wall, burst.gpu))
    return times


def _lead(row: Row, entry: _Entry, clock: Clock) -> float:
    """How many seconds the host needs at most to be ahead of a burst."""
    hosts = [clock.alone(entry.ready.call).host for _ in range(WARM)]
    return 2 * min(hosts) * row.burst + 2e-4
