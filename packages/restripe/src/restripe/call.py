"""One call as a value: what it asks for, how it is made, and the program that it is bound to."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch

from restripe.arguments import Given, Whole, check, check_memory
from restripe.binding import Round, bind
from restripe.comm import Communicator
from restripe.errors import PRECEDENCE, LayoutError, ReshardError
from restripe.layout import Layout
from restripe.planning import RankPlan, Reason, rounds
from restripe.staging import geometry, readable, writable

Check = Literal["first", "always", "off"]
STAGING_BYTES = 256 * 2**20


class Request(NamedTuple):
    """One tensor of a call, with what this rank passes for it."""

    item: Whole
    src: Given
    dst: Given


class Call(NamedTuple):
    """What one call asks for.

    `key` stands for it among the agreements; None where a fault leaves it unknown. `requests` has one a tensor, in the same
    order on every rank. `fault` is what reading the arguments raised, if anything: it is raised after the exchange. `turn`
    is the first tensor's; see `plan`.
    """

    key: Hashable
    requests: Sequence[Request]
    fault: ReshardError | None
    turn: int


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


class Bound(NamedTuple):
    """What a warm call needs, for tensors of one geometry.

    `program` is what to run, `replicated` the layouts whose replicas are split, by tensor; `reaches` has the bytes that each
    tensor's source and destination span, 0 where this rank reads and writes none of them; `lazy` says that some destination
    is a conj or neg view, for which another tensor stands in. `pairs` has the keys of the plans that it came from.
    """

    program: list[Round]
    pairs: list[Pair]
    replicated: dict[int, Layout]
    reaches: list[tuple[int, int]]
    lazy: bool


def fault_in(
    requests: Sequence[Request], plans: Sequence[RankPlan], bound: Bound | None, communicator: Communicator
) -> ReshardError | None:
    """The first fault of the table that this rank sees in what it passes; of what is bound, only the place can be new."""
    faults: list[ReshardError] = []
    for (item, src, dst), planned in zip(requests, plans, strict=False):
        try:
            check(item, planned, communicator.rank, communicator.device, src, dst)
        except ReshardError as error:
            faults.append(error)
    try:
        check_memory(requests, _reaches(requests, plans) if bound is None else bound.reaches)
    except ReshardError as error:
        faults.append(error)
    if not faults:
        return None
    return at(communicator.rank, min(faults, key=lambda fault: PRECEDENCE.index(type(fault))))


def bound_to(
    requests: Sequence[Request],
    plans: Sequence[RankPlan],
    tensors: Sequence[torch.Tensor | None],
    staging_bytes: int,
) -> Bound:
    """The requests bound to tensors: source and destination of each, in turn, or what stands in for them."""
    schedule = rounds(plans, [request.item.dtype.itemsize for request in requests], staging_bytes)
    lies = [None if tensor is None else geometry(tensor) for tensor in tensors]
    program = bind(plans, schedule, list(zip(lies[::2], lies[1::2], strict=True)))
    # Whether a call splits depends on meshes and placements alone.
    replicated = {
        place: request.item.dst
        for place, (request, plan) in enumerate(zip(requests, plans, strict=True))
        if request.item.dst.replicas > 1 and plan.reason is not Reason.LOCAL
    }
    lazy = any(request.dst.local is not tensor for request, tensor in zip(requests, tensors[1::2], strict=True))
    pairs = list(dict.fromkeys(pair_of(request.item) for request in requests))
    return Bound(program, pairs, replicated, _reaches(requests, plans), lazy)


def pair_of(item: Whole) -> Pair:
    """What an item's plans follow from."""
    return item.src, item.dst, item.shape


def stand_ins(src: torch.Tensor | None, dst: torch.Tensor | None) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What is read and written for a source and a destination, where there is one."""
    return src if src is None else readable(src), dst if dst is None else writable(dst)


def _reaches(requests: Sequence[Request], plans: Sequence[RankPlan]) -> list[tuple[int, int]]:
    return [
        (_reach(src.local, moves=not plan.idle), _reach(dst.local, moves=not plan.idle))
        for (_, src, dst), plan in zip(requests, plans, strict=True)
    ]


def _reach(tensor: torch.Tensor | None, *, moves: bool) -> int:
    return geometry(tensor).extent if moves and tensor is not None else 0


def at(rank: int, error: ReshardError) -> ReshardError:
    """The error with the rank that holds the fault named in front."""
    return type(error)(f"rank {rank}: {error}")
