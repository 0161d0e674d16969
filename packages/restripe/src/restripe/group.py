"""The state of one process group, and the weak table that finds it: the only thing that a module of restripe holds.

Every decision that leads to a collective call follows from the group's call history alone, so all ranks take it alike.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, NamedTuple, get_args

import torch.distributed as dist

from restripe import agreement, comm
from restripe.arguments import Given, Item, Whole, check
from restripe.comm import Communicator
from restripe.errors import LayoutError, ReshardError
from restripe.execution import Task, execute
from restripe.layout import Layout, Mesh, replica_groups
from restripe.planning import RankPlan, Reason, plan, rounds

Check = Literal["first", "always", "off"]
PLANS = 1024  # pairs of layouts and shapes whose plans a group keeps
STAGING_BYTES = 256 * 2**20


class Request(NamedTuple):
    """One tensor of a call, with what this rank passes for it."""

    item: Whole
    src: Given
    dst: Given


@dataclass(frozen=True)
class Options:
    """How a call is made: when ranks exchange records, how many bytes are staged at a time, and the stream."""

    check: Check = "first"
    staging_bytes: int = STAGING_BYTES
    stream: Any = None

    def __post_init__(self) -> None:
        if self.check not in get_args(Check):
            raise LayoutError(f"expected check to be one of {get_args(Check)}, got {self.check!r}")
        if self.staging_bytes < 1:
            raise LayoutError(f"expected a staging budget of at least 1 byte, got {self.staging_bytes}")


class State:
    """What restripe keeps for one process group: calls, agreements, plans and communicators.

    Args:
        number: the group's place in the order in which this process first used its groups.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = 0
        self.torn = False
        self._generation = 0
        self._agreed: set[Hashable] = set()
        self._plans: OrderedDict[tuple[Layout, Layout, tuple[int, ...]], dict[int, RankPlan]] = OrderedDict()
        self._base: Communicator | None = None
        self._made: list[Communicator] = []
        self._replicas: dict[tuple[Mesh, tuple[int, ...]], Communicator | None] = {}

    @property
    def live(self) -> int:
        """How many communicators restripe has made for the group and not yet released."""
        return len(self._made)

    def communicator(self, group: Any) -> Communicator:
        """What the group brings, or restripe's own among a torch group's members (made at first use, collective)."""
        base = comm.brought(group)
        if base is None:
            if self._base is None:
                self._base = comm.make(group, self._generation)
                self._made.append(self._base)
            return self._base
        if base is not self._base:  # nothing agreed on another communicator holds on this one
            self.calls, self._base = 0, base
            self._agreed.clear()
            self._replicas.clear()
        return base

    def agree(
        self,
        communicator: Communicator,
        key: Hashable,
        fault: ReshardError | None,
        told: Sequence[Whole],
        options: Options,
    ) -> None:
        """Raise this call's fault: on every rank where the call exchanges a record, else on the rank that holds it.

        A rank whose own arguments make no key takes part where nothing was agreed on so far, since all then exchange.
        """
        fresh = not self._agreed if key is None else key not in self._agreed
        if options.check == "always" or (options.check == "first" and fresh):
            self._exchange(communicator, fault, agreement.Terms.of(told).told(), options)
            self._agreed.add(key)
        elif fault is not None:
            raise fault

    def prepare(
        self, communicator: Communicator, fault: ReshardError | None, items: Sequence[Item], options: Options
    ) -> list[Whole]:
        """Every rank's items as one list, on which the ranks agree from then on."""
        self.calls += 1
        whole = agreement.merge(self._exchange(communicator, fault, agreement.describe(items), options))
        self._agreed.add(agreement.Terms.of(whole))
        return whole

    def _exchange(
        self, communicator: Communicator, fault: ReshardError | None, what: dict[str, Any], options: Options
    ) -> list[dict[str, Any]]:
        record = agreement.record(fault, what, self.calls, options.staging_bytes)
        return agreement.compare(self._gather(communicator, record))

    def _gather(self, communicator: Communicator, record: bytes) -> list[bytes]:
        with self._tearing():
            return communicator.exchange(record)

    @contextmanager
    def _tearing(self) -> Iterator[None]:
        """What fails inside leaves the ranks out of step: the next clear must not wait for any of them."""
        try:
            yield
        except BaseException:
            self.torn = True
            raise

    def run(
        self,
        group: Any,
        key: Hashable,
        requests: Sequence[Request],
        fault: ReshardError | None,
        turn: int,
        options: Options,
    ) -> None:
        """One call: check, agree, split, and move the tensors.

        Args:
            key: what stands for the requests among the agreements; None where a fault leaves them unknown.
            requests: one a tensor, in the same order on every rank.
            fault: what reading the arguments raised, if anything; it is raised here, after the exchange.
            turn: the first tensor's turn; see `plan`.
        """
        communicator = self.communicator(group)
        self.calls += 1
        plans: list[RankPlan] = []
        if fault is None:
            plans = [
                self._plan(request.item, communicator.rank, turn + index) for index, request in enumerate(requests)
            ]
            fault = _fault(requests, plans, communicator)
        self.agree(communicator, key, fault, [request.item for request in requests], options)
        schedule = rounds(plans, [request.item.dtype.itemsize for request in requests], options.staging_bytes)
        with self._tearing():
            tasks = [
                Task(plan, request.src.local, request.dst.local, self._split(communicator, request.item.dst, plan))
                for request, plan in zip(requests, plans, strict=True)
            ]
            execute(tasks, schedule, communicator, options.stream)

    def _plan(self, item: Whole, rank: int, turn: int) -> RankPlan:
        """The rank's plan for the item, remembered once for each source holder whose turn it can be."""
        key = (item.src, item.dst, item.shape)
        turns = self._plans.setdefault(key, {})
        self._plans.move_to_end(key)
        if len(self._plans) > PLANS:
            self._plans.popitem(last=False)
        turn %= item.src.replicas
        if turn not in turns:
            turns[turn] = plan(item.src, item.dst, item.shape, rank, turn)
        return turns[turn]

    def _split(self, communicator: Communicator, dst: Layout, plan: RankPlan) -> Communicator | None:
        """The communicator of this rank's replica group; one collective split makes those of all groups.

        Whether a call splits depends on meshes and placements alone. Ranks outside every group share one leftover color,
        since some releases of NCCL's Python binding hang on ranks without a color; it is kept to be released like the others.
        """
        if dst.replicas == 1 or plan.reason is Reason.LOCAL:
            return None
        key = (dst.mesh, dst.replicating)
        if key not in self._replicas:
            groups = replica_groups(dst)
            color, place = next(
                ((c, g.index(communicator.rank)) for c, g in enumerate(groups) if communicator.rank in g),
                (len(groups), 0),
            )
            made = self._replicas[key] = communicator.split(color, place)
            self._made += [made] if made is not None else []
        return self._replicas[key]

    def clear(self) -> None:
        """Drop plans, agreements and every communicator made for the group; collective, unless a call failed halfway.

        A clear is a call like others, so that ranks that clear alone find out from what the others exchange, and nothing
        is dropped then. It tells no call number: a clear on all ranks brings ranks that are out of step together again.
        """
        if self._base is not None and not self.torn:
            self.calls += 1
            agreement.compare(self._gather(self._base, agreement.CLEAR))
        self._release()

    def _release(self) -> None:
        made, self._made = self._made, []
        torn = self.torn
        self.calls, self.torn = 0, False
        self._generation += 1
        self._base = None
        for container in (self._agreed, self._plans, self._replicas):
            container.clear()
        for communicator in reversed(made):
            if torn:
                communicator.abort()
            else:
                communicator.finalize()
                communicator.destroy()

    def abort(self) -> None:
        """Release everything without waiting for any other rank."""
        self.torn = True
        self._release()


def _fault(requests: Sequence[Request], plans: Sequence[RankPlan], communicator: Communicator) -> ReshardError | None:
    """The fault that this rank sees in what it passes."""
    try:
        for request, plan in zip(requests, plans, strict=True):
            check(request.item, plan, communicator.rank, communicator.device, request.src, request.dst)
    except ReshardError as error:
        return at(communicator.rank, error)
    return None


def at(rank: int, error: ReshardError) -> ReshardError:
    """The error with the rank that holds the fault named in front."""
    return type(error)(f"rank {rank}: {error}")


_states: weakref.WeakKeyDictionary[Any, State] = weakref.WeakKeyDictionary()
_numbers = count()
_orphans: deque[State] = deque()
_lock = threading.Lock()


def state(group: Any) -> State:
    """The group's state, made at its first use."""
    release()
    with _lock:
        try:
            found = _states.get(group)
        except TypeError as error:
            raise LayoutError(
                f"expected a torch process group or an object with a .communicator, got {type(group).__name__}; "
                "it must be hashable and allow weak references"
            ) from error
        if found is None:
            found = _states[group] = State(next(_numbers))
            if not found.number:
                atexit.register(_exit)
            # Collecting a group may happen on any thread, where no communicator may be touched: only queue the release.
            weakref.finalize(group, _orphans.append, found).atexit = False
    return found


def _exit() -> None:
    """Release every communicator before the interpreter goes: a transport's threads must not outlive it."""
    for found in states():
        found.abort()


def release() -> None:
    """Release what groups that no longer exist have left, without waiting for any other rank."""
    while True:
        try:
            orphan = _orphans.popleft()
        except IndexError:  # asked rather than looked at first: another thread may take the last one
            return
        orphan.abort()


def states() -> list[State]:
    """The states of all groups that exist, in order of creation."""
    release()
    with _lock:
        return sorted(_states.values(), key=lambda found: found.number)


def default_group() -> dist.ProcessGroup:
    """The torch process group that stands for None."""
    group = dist.group.WORLD
    if group is None:
        raise LayoutError(
            "no process group was given and torch.distributed has none; pass one or call init_process_group"
        )
    return group


def default_check(group: Any) -> Check:
    """When calls on the group exchange records unless they say otherwise: its `check`, or the environment's RESTRIPE_CHECK."""
    return getattr(group, "check", None) or os.environ.get("RESTRIPE_CHECK") or "first"  # type: ignore[return-value]
