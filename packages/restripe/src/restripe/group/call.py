"""One call as a value: what it asks for, how it is made, and the program that it is bound to."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch

from restripe.errors import PRECEDENCE, LayoutError, ReshardError
from restripe.execution.by_tensor import execute
from restripe.execution.launch import Addressed, Enqueue
from restripe.execution.lowering import bind
from restripe.execution.memory import geometry, hand_back, readable, writable
from restripe.execution.program import Geometry, Program
from restripe.group.agreement import Terms
from restripe.group.checks import Given, check, check_memory
from restripe.group.communicators import Links
from restripe.group.inputs import Look, Told, Whole, addresses
from restripe.layout.mesh import Layout
from restripe.planning.plan import RankPlan, Reason
from restripe.planning.rounds import rounds
from restripe.transport.protocol import Communicator

Check = Literal["first", "always", "off"]
STAGING_BYTES = 256 * 2**20


class Submission:
    """What one call moves.

    `terms` stand for it wherever something is remembered of it. `items` are in the same order on every rank. `holders` says how
    many ranks hold each source region of the first item.
    """

    __slots__ = ("holders", "items", "terms")

    def __init__(self, items: Sequence[Whole]) -> None:
        self.items = tuple(items)
        self.terms = Terms.of(items)
        self.holders = self.items[0].src.replicas if self.items else 1


class Call(NamedTuple):
    """What one call asks for.

    `tensors` has this rank's local tensors, source and destination of each item in turn; `told` the shape and dtype that each
    one's reference tells, none at all where tensors are passed as they are. `turn` is the first item's; see `plan`.
    """

    moved: Submission
    tensors: Sequence[torch.Tensor | None]
    told: tuple[Told, ...]
    turn: int

    @property
    def items(self) -> Sequence[Whole]:
        """What is moved."""
        return self.moved.items

    def sides(self) -> Iterator[tuple[Whole, Given, Given]]:
        """Each item with what this rank passes for it."""
        told = self.told or ((None, None),) * len(self.tensors)
        given = [Given(*one, local) for one, local in zip(told, self.tensors, strict=True)]
        return zip(self.items, given[::2], given[1::2], strict=True)


@dataclass(frozen=True)
class Options:
    """How a call is made: when ranks exchange records, and how many bytes are staged at a time."""

    check: Check = "first"
    staging_bytes: int = STAGING_BYTES

    def __post_init__(self) -> None:
        if self.check not in get_args(Check):
            raise LayoutError(f"expected check to be one of {get_args(Check)}, got {self.check!r}")
        if self.staging_bytes < 1:
            raise LayoutError(f"expected a staging budget of at least 1 byte, got {self.staging_bytes}")


Pair = tuple[Layout, Layout, tuple[int, ...]]
How = tuple[Links, Options]  # the communicators, and how the call is made


@dataclass(frozen=True)
class Bound:
    """What a warm call needs, for tensors of one geometry.

    `program` is what to run on tensors that lie in memory as `lies` says; `splits` the layouts whose replicas are split, each
    once; `reaches` has the bytes that each item's source and destination span, 0 where this rank reads and writes none of
    them; `lazy` says that some tensor is a conj or neg view, for which another one stands in.
    """

    program: Program
    lies: list[Geometry | None]
    splits: list[Layout]
    reaches: list[tuple[int, int]]
    lazy: bool

    def move(self, links: Links, given: Sequence[torch.Tensor | None], stream: Any, handle: Any) -> None:
        """Move tensors for some of which others stand in, or over a transport that takes tensors."""
        tensors = stand_ins(given) if self.lazy else given
        if links.posting:
            for enqueue in self.calls(links, tensors):
                enqueue(handle)
        else:
            execute(self.program, tensors, links.base, self._replicas(links), stream)
        if self.lazy:
            for caller, written in zip(given[1::2], tensors[1::2], strict=True):
                hand_back(caller, written)

    def calls(self, links: Links, tensors: Sequence[torch.Tensor | None]) -> list[Enqueue]:
        """What moves these tensors while they lie where they do, over a transport that takes addresses."""
        starts, replicas = addresses(tensors), self._replicas(links)
        return Addressed(self.program, self.lies, starts, links.base, replicas, links.aside).calls()

    def _replicas(self, links: Links) -> list[Communicator | None]:
        """The communicators that stripes are shared over. Splits are collective, also for ranks that only send."""
        return [links.replicas(layout) for layout in self.splits]


class Warm(NamedTuple):
    """A call that was made before: all that was seen of it, at fault in nothing and agreed on.

    `lies` has how its tensors looked, and `guard` tells whether others at the same places look alike. `calls` enqueue it; None
    where other memory stands in for some tensor, or the transport takes no addresses.
    """

    how: How
    lies: list[Look | None]
    guard: Callable[..., bool]
    bound: Bound
    calls: list[Enqueue] | None


def fault_in(call: Call, plans: Sequence[RankPlan], communicator: Communicator) -> ReshardError | None:
    """The first fault of the table that this rank sees in what it passes."""
    faults: list[ReshardError] = []
    for (item, src, dst), planned in zip(call.sides(), plans, strict=False):
        try:
            check(item, planned, communicator.rank, communicator.device, src, dst)
        except ReshardError as error:
            faults.append(error)
    memory = overlap(call, _reaches(call.tensors, plans))
    if memory is not None:
        faults.append(memory)
    if not faults:
        return None
    return at(communicator.rank, min(faults, key=lambda fault: PRECEDENCE.index(type(fault))))


def overlap(call: Call, reaches: Sequence[tuple[int, int]]) -> ReshardError | None:
    """The fault that some tensor has no memory, or that a destination shares elements with another, if there is one."""
    try:
        check_memory(call.items, call.tensors, reaches)
    except ReshardError as error:
        return error
    return None


def bound_to(call: Call, plans: Sequence[RankPlan], staging_bytes: int) -> Bound:
    """The call bound to its tensors."""
    schedule = rounds(plans, [item.dtype.itemsize for item in call.items], staging_bytes)
    tensors = stand_ins(call.tensors)
    lies = [None if tensor is None else geometry(tensor) for tensor in tensors]
    splits, seats = _splits(call.items, plans)
    program = bind(plans, schedule, list(zip(lies[::2], lies[1::2], strict=True)), seats)
    lazy = any(one is not other for one, other in zip(tensors, call.tensors, strict=True))
    return Bound(program, lies, splits, _reaches(call.tensors, plans), lazy)


def _splits(items: Sequence[Whole], plans: Sequence[RankPlan]) -> tuple[list[Layout], list[int]]:
    """The layouts whose replicas are split, in the order that all ranks share, and the number of each item's among them.

    Whether a call splits depends on meshes and placements alone.
    """
    numbers: dict[Hashable, int] = {}
    found: list[Layout] = []
    seats = []
    for item, plan in zip(items, plans, strict=True):
        key = (item.dst.mesh, item.dst.replicating)
        if item.dst.replicas > 1 and plan.reason is not Reason.LOCAL and key not in numbers:
            numbers[key] = len(found)
            found.append(item.dst)
        seats.append(numbers.get(key, -1))
    return found, seats


def pair_of(item: Whole) -> Pair:
    """What an item's plans follow from."""
    return item.src, item.dst, item.shape


def stand_ins(tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """What is read and written for sources and destinations, in turn."""
    found = list(tensors)
    found[::2] = [one if one is None else readable(one) for one in tensors[::2]]
    found[1::2] = [one if one is None else writable(one) for one in tensors[1::2]]
    return found


def _reaches(tensors: Sequence[torch.Tensor | None], plans: Sequence[RankPlan]) -> list[tuple[int, int]]:
    return [
        (_reach(src, moves=not plan.idle), _reach(dst, moves=not plan.idle))
        for src, dst, plan in zip(tensors[::2], tensors[1::2], plans, strict=True)
    ]


def _reach(tensor: torch.Tensor | None, *, moves: bool) -> int:
    return geometry(tensor).extent if moves and tensor is not None else 0


def at(rank: int, error: ReshardError) -> ReshardError:
    """The error with the rank that holds the fault named in front."""
    return type(error)(f"rank {rank}: {error}")
