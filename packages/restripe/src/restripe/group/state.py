"""The state of one process group: what is agreed on, planned, bound and split there, and how a call goes.

Every decision that leads to a collective call follows from the group's call history alone, so all ranks take it alike.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch

from restripe.errors import CaptureError, MissingTensorError, ReshardError
from restripe.execution.streams import Work
from restripe.group import agreement
from restripe.group.call import (
    Bound,
    Call,
    Check,
    How,
    Options,
    Pair,
    Submission,
    Warm,
    at,
    bound_to,
    fault_in,
    overlap,
    pair_of,
)
from restripe.group.communicators import Links
from restripe.group.communicators import release as release_links
from restripe.group.inputs import Item, Look, Told, Whole, guard, looks
from restripe.group.recent import Recent, remember
from restripe.planning.balance import turns
from restripe.planning.plan import RankPlan
from restripe.planning.planner import plan
from restripe.transport import connect as comm

PLANS = 1024  # pairs of layouts and shapes whose plans a group keeps
WAYS = 64  # turns and ways to lie of the tensors of one call, of which a group keeps what they are bound to
PLACES = 8192  # tensors whose places in memory a group finds again at once
#: What is moved, the turn, where the tensors lie, and what references tell.
Place = tuple[agreement.Terms, int, tuple[int | None, ...], tuple[Told, ...]]


class State:
    """What restripe keeps for one process group: calls, agreements, plans and communicators.

    Args:
        number: the group's place in the order in which this process first used its groups.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = 0
        self.torn = False
        self._links: Links | None = None
        self._brings: str | None = None
        self._source: Any = None
        self._retired: list[Links] = []
        self._twins: list[Links] = []
        self._check: Any = os.environ.get("RESTRIPE_CHECK") or "first"
        self._hows: dict[Any, How] = {}
        self._generation = 0
        self._agreed: set[agreement.Terms | None] = set()
        self.near: dict[Hashable, tuple[Submission, Any, Any]] = {}
        self.singles: Recent[Hashable, Submission] = Recent(PLANS)
        self._plans: Recent[Pair, dict[int, RankPlan]] = Recent(PLANS)
        self._bound: Recent[agreement.Terms, dict[Hashable, Bound]] = Recent(PLANS)
        self._warm: dict[Place, Warm] = {}

    def how(self, group: Any, check: Check | None) -> How:
        """Over which communicators and with which options a call is made: `links` and `options`, in fewer steps."""
        said = check or getattr(group, "check", None)
        how = self._hows.get(said)
        if how is None or (self._brings is not None and getattr(group, self._brings, None) is not self._source):
            options = self.options(group, check)
            links = self.links(group)
            how = self._hows[said] = links, options
        return how

    def options(self, group: Any, check: Check | None) -> Options:
        """With the check mode given, or the group's `check`, or what RESTRIPE_CHECK said at first use."""
        return Options(check or getattr(group, "check", None) or self._check)

    @property
    def live(self) -> int:
        """How many communicators restripe has made for the group and not yet released."""
        return sum(links.live for links in [*self._shared(), *self._twins])

    def links(self, group: Any) -> Links:
        """The communicators made over what the group brings, or over restripe's own (made at first use, collective)."""
        if self._links is not None and (self._brings is None or getattr(group, self._brings, None) is self._source):
            return self._links
        if self._links is not None:  # nothing agreed on another communicator holds on this one
            self._retired.append(self._links)
            self.calls = 0
            self._forget()
        self._brings = comm.brings(group)
        self._source = None if self._brings is None else getattr(group, self._brings)
        self._links = Links(comm.connect(group, self._generation), owned=self._brings is None)
        return self._links

    def agree(self, links: Links, key: agreement.Terms | None, fault: ReshardError | None, options: Options) -> None:
        """Raise this call's fault: on every rank where the call exchanges a record, else on the rank that holds it.

        A rank whose own arguments make no key takes part where nothing was agreed on so far, since all then exchange.
        """
        fresh = not self._agreed if key is None else key not in self._agreed
        if options.check == "always" or (options.check == "first" and fresh):
            self._exchange(links, fault, {} if key is None else key.told(), options)
            self._agreed.add(key)
        elif fault is not None:
            raise fault

    def prepare(
        self, links: Links, fault: ReshardError | None, items: Sequence[Item], options: Options, *, graph: bool
    ) -> list[Whole]:
        """Every rank's items as one list, on which the ranks agree from then on.

        Of ranks that list the same one sends its list: at thousands of ranks they are long, and all but a few alike.
        """
        self.calls += 1
        mine = agreement.listing(() if fault is not None else items)
        told = self._exchange(links, fault, agreement.describe(mine, graph=graph), options)
        rank, firsts = links.base.rank, agreement.first_of(told)
        first = firsts[told[rank]["items"]]
        listings = self._gather(links, mine if first == rank else b"")
        listings[first] = mine
        whole = agreement.merge({one: listings[one] for one in firsts.values()})
        self._agreed.add(agreement.Terms.of(whole))
        return whole

    def twin(self, links: Links) -> Links:
        """Communicators for one user alone, which outlive a clear unless it names them. Collective."""
        with self._tearing():
            self._twins.append(links.twin())
        return self._twins[-1]

    def _exchange(
        self, links: Links, fault: ReshardError | None, what: dict[str, Any], options: Options
    ) -> list[dict[str, Any]]:
        record = agreement.record(fault, what, self.calls, options.staging_bytes)
        return agreement.compare(self._gather(links, record))

    def _gather(self, links: Links, record: bytes) -> list[bytes]:
        with self._tearing():
            if links.streams is not None:
                links.streams.after(links.streams.current()[1])
            return links.base.exchange(record)

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
        how: How,
        moved: Submission,
        tensors: Sequence[torch.Tensor | None],
        told: tuple[Told, ...],
        turn: int,
        stream: Any = None,
    ) -> Work:
        """One call: check, agree, split, and move the tensors; see `Call`."""
        streams, handle, recorded = how[0].streams, stream, False
        if streams is not None:
            handle, current, recorded = streams.current()
            if stream is not None and stream != current:
                with torch.cuda.stream(stream):
                    return self.run(how, moved, tensors, told, turn)
            stream = current
        try:
            present = [one for one in tensors if one is not None]
            lying = tuple([None if one is None else one.data_ptr() for one in tensors])  # `addresses`, in fewer steps
            place = moved.terms, turn, lying, told
            warm = self._warm.get(place)
            if warm is None or recorded or warm.how != how or not warm.guard(*present):
                warm, lies = None, looks(tensors)
        except (RuntimeError, ValueError) as error:
            message = f"expected dense tensors, whose elements lie at strides in memory ({error})"
            self.refuse(how, moved.terms, MissingTensorError(message))
        self.calls += 1
        if warm is None:
            warm = self._warmed(Call(moved, tensors, told, turn), place, how, lies, recorded=recorded)
        calls = [partial(warm.bound.move, how[0], tensors, stream)] if warm.calls is None else warm.calls
        work = Work() if streams is None or recorded else streams.after(stream)
        try:
            for enqueue in calls:
                enqueue(handle)
        except BaseException:
            self.torn = True
            raise
        finally:
            if work.stream is not None:  # what a recorded call uses is its graph's to keep
                for one in present:  # memory that is dropped is not used again before the stream has come past here
                    one.record_stream(stream)
        return work

    def refuse(self, how: How, key: agreement.Terms | None, error: ReshardError) -> NoReturn:
        """A call of which this rank cannot read its part, and maybe not even what it moves: it counts, and raises."""
        links, options = how
        self.calls += 1
        fault = at(links.base.rank, error)
        if links.streams is None or not links.streams.current()[-1]:
            self.agree(links, key, fault, options)
        raise fault

    def _warmed(self, call: Call, place: Place, how: How, lies: list[Look | None], *, recorded: bool) -> Warm:
        """The call bound to where its tensors lie; found again where it was made before, unless it is checked always."""
        earlier = self._warm.get(place)
        if earlier is not None and (earlier.how, earlier.lies) != (how, lies):
            earlier = None
        if earlier is None or recorded:
            warm = self._checked(call, how, lies, earlier and earlier.bound, recorded=recorded)
        else:  # told apart by what a guard asks beside
            warm = earlier._replace(guard=guard(call.tensors))
        if how[1].check != "always":
            remember(self._warm, place, warm, PLACES // (len(lies) or 1))
        return warm

    def _checked(self, call: Call, how: How, lies: list[Look | None], bound: Bound | None, *, recorded: bool) -> Warm:
        """The call bound to where its tensors lie, after every check that it needs; `bound` where it is known already."""
        links, options = how
        way = links, options, call.told, call.turn, tuple([one and one[1:] for one in lies])
        known = self._bound.made(call.moved.terms, dict)
        bound = bound or known.get(way)
        if recorded:
            self._capturable(links, bound)
            options = replace(options, check="off")  # agreed on when it was warmed
        if bound is None:
            bound = self._bind(links, call, options)
            remember(known, way, bound, WAYS)
        else:
            fault = overlap(call, bound.reaches)
            self.agree(links, call.moved.terms, None if fault is None else at(links.base.rank, fault), options)
        with self._tearing():
            calls = bound.calls(links, call.tensors) if links.posting and not bound.lazy else None
            return Warm(how, lies, guard(call.tensors), bound, calls)

    def _bind(self, links: Links, call: Call, options: Options) -> Bound:
        """The first call with such tensors: plan, check, agree and bind."""
        base = links.base
        places = zip(call.items, turns(call.items), strict=True)
        plans = [self._plan(item, base.rank, call.turn + turn) for item, turn in places]
        self.agree(links, call.moved.terms, fault_in(call, plans, base), options)
        with self._tearing():
            return bound_to(call, plans, options.staging_bytes)

    def _capturable(self, links: Links, bound: Bound | None) -> None:
        """Refuse to be recorded in a CUDA graph where that would need what cannot be recorded, or could be shared."""
        if links is self._links:
            raise CaptureError(
                f"rank {links.base.rank}: a CUDA graph needs communicators of its own: prepare the items with graph=True, "
                "run the refit once, then capture it"
            )
        if bound is None or not all(map(links.known, bound.splits)):
            raise CaptureError(
                f"rank {links.base.rank}: the refit is cold: run it once outside the capture with tensors of the same sizes "
                "and strides, then capture it"
            )

    def _plan(self, item: Whole, rank: int, turn: int) -> RankPlan:
        """The rank's plan for the item, remembered once for each source holder whose turn it can be."""
        known = self._plans.made(pair_of(item), dict)
        turn %= item.src.replicas
        if turn not in known:
            known[turn] = plan(item.src, item.dst, item.shape, rank, turn)
        return known[turn]

    def clear(self, twins: Iterable[Links] = ()) -> None:
        """Drop plans, agreements and every communicator made for the group but twins, of which those given.

        Collective, unless a call failed halfway.

        A clear is a call like others, so that ranks that clear alone find out from what the others exchange, and nothing
        is dropped then. It tells no call number: a clear on all ranks brings ranks that are out of step together again.
        """
        used = next((twin for twin in twins if twin.live), None) if self._links is None else self._links
        if used is not None and not self.torn:
            self.calls += 1
            agreement.compare(self._gather(used, agreement.CLEAR))
        self._release(twins)

    def abort(self, twins: Iterable[Links] | None = None) -> None:
        """Release the same without waiting for any other rank; all twins where none are given."""
        self.torn = True
        self._release(self._twins if twins is None else twins)

    def _shared(self) -> list[Links]:
        """The links that are no twins, as they were made."""
        return [*self._retired, *([] if self._links is None else [self._links])]

    def _release(self, twins: Iterable[Links]) -> None:
        ending, torn = [*self._shared(), *twins], self.torn
        self.calls, self.torn = 0, False
        self._generation += 1
        self._links, self._source, self._retired = None, None, []
        self._twins = [one for one in self._twins if one not in ending]
        self._forget()
        release_links(reversed(ending), waiting=not torn)

    def _forget(self) -> None:
        """Drop what was agreed on, planned and bound."""
        for table in (self._hows, self._agreed, self.near, self.singles, self._plans, self._bound, self._warm):
            table.clear()
