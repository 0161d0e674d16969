"""The state of one process group: the order of its calls, the agreements of its ranks, the release of its communicators.

Every decision that leads to a collective call follows from the group's call history alone, so all ranks take it alike.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch

from restripe.errors import CaptureError, LayoutError, MissingTensorError, ReshardError
from restripe.execution.streams import Work
from restripe.group import agreement
from restripe.group.agreement import CallSignature
from restripe.group.cache import CallCache, LaunchKey, program_key
from restripe.group.call import (
    STAGING_BYTES,
    BoundCall,
    CachedCall,
    Call,
    CallConfig,
    CallOptions,
    Check,
    Submission,
    bind_call,
    extents,
)
from restripe.group.checks import find_memory_fault, first_fault, with_rank
from restripe.group.communicators import Communicators, release_all
from restripe.group.inputs import Declared, Item, ResolvedItem
from restripe.planning.balance import rotations
from restripe.transport.connect import brought_attribute, connect


class State:
    """The memory of restripe for one process group.

    `cache` has what is remembered of earlier calls, with counters. `calls` counts the calls on the group, refused ones included.

    Args:
        number: the group's place in the order in which this process first used its groups.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = 0
        self.cache = CallCache()
        self.torn = False
        self._tearing = _Tearing(self)
        self._communicators: Communicators | None = None
        self._brought_attribute: str | None = None
        self._brought: Any = None
        self._retired: list[Communicators] = []
        self._for_graphs: list[Communicators] = []
        self._default_check = os.environ.get("RESTRIPE_CHECK") or "first"
        self._configs: dict[Any, CallConfig] = {}
        self._generation = 0
        self._agreed: set[CallSignature | None] = set()

    @property
    def live(self) -> int:
        """The number of communicators that restripe has made for the group and not yet released."""
        return sum(communicators.live for communicators in [*self._shared(), *self._for_graphs])

    def config(self, group: Any, check: Check | None, staging_bytes: int = STAGING_BYTES) -> CallConfig:
        """Return how a call is made: over the group's communicators, in the check mode of the call, the group or RESTRIPE_CHECK.

        A mode or a budget that cannot be is the config's fault, which the call raises where the other ranks can hear of it.
        """
        group_check = getattr(group, "check", None)
        key: Any = check, group_check, staging_bytes
        try:
            config = self._configs.get(key)
        except TypeError:  # a mode or a budget that cannot be hashed
            key, config = repr(key), None
        attribute = self._brought_attribute  # `_brings_another` in one step less
        if config is None or (attribute is not None and getattr(group, attribute, None) is not self._brought):
            communicators = self.communicators(group)  # first: another communicator drops the configs of the one before
            config = _checked_config(communicators, (check, group_check, self._default_check), staging_bytes)
            self._configs[key] = config
        return config

    def communicators(self, group: Any) -> Communicators:
        """Return the communicators over what the group brings, or over restripe's own (made at first use, collective)."""
        if self._communicators is not None and not self._brings_another(group):
            return self._communicators
        if self._communicators is not None:  # what was agreed on over another communicator does not hold on this one
            self._retired.append(self._communicators)
            self.calls = 0
            self._forget()
        self._brought_attribute = brought_attribute(group)
        self._brought = None if self._brought_attribute is None else getattr(group, self._brought_attribute)
        base = connect(group, self._generation)
        self._communicators = Communicators(base, owned=self._brought_attribute is None)
        return self._communicators

    def _brings_another(self, group: Any) -> bool:
        attribute = self._brought_attribute
        return attribute is not None and getattr(group, attribute, None) is not self._brought

    def prepare(
        self, config: CallConfig, fault: ReshardError | None, items: Sequence[Item], *, graph: bool
    ) -> list[ResolvedItem]:
        """Return every rank's items as one list, on which the ranks agree from then on. Collective.

        Of ranks with equal lists one sends its list: at thousands of ranks they are long, and all but a few alike.
        """
        communicators = config.communicators
        self.calls += 1
        listing = agreement.list_items(() if fault is not None else items)
        calls = self._exchange(config, fault, agreement.prepare_fields(listing, graph=graph))
        rank, first_ranks = communicators.base.rank, agreement.first_ranks(calls)
        first = first_ranks[calls[rank]["items"]]
        listings = self._gather(communicators, listing if first == rank else b"")
        listings[first] = listing
        resolved = agreement.merge_listings({rank: listings[rank] for rank in first_ranks.values()})
        self._agreed.add(CallSignature.of(resolved))
        return resolved

    def for_graph(self, communicators: Communicators) -> Communicators:
        """Make communicators for one CUDA graph alone, which outlive a clear unless it names them. Collective."""
        with self._tearing:
            self._for_graphs.append(communicators.for_graph())
        return self._for_graphs[-1]

    def run(
        self,
        config: CallConfig,
        submission: Submission,
        tensors: Sequence[torch.Tensor | None],
        declared: tuple[Declared, ...],
        rotation: int,
        stream: Any = None,
    ) -> Work:
        """Check, agree on and enqueue one call; see `Call`. Collective."""
        streams, handle, capturing = config.communicators.streams, None, False
        if streams is not None:
            handle, current, capturing = streams.current()
            if stream is not None and stream != current:
                with torch.cuda.stream(stream):
                    return self.run(config, submission, tensors, declared, rotation)
            stream = current
        try:
            present = [tensor for tensor in tensors if tensor is not None]
            addresses = tuple([None if tensor is None else tensor.data_ptr() for tensor in tensors])
            key: LaunchKey = submission, rotation, addresses, declared
            cached = self.cache.launches.get(key)
            if cached is None or capturing or not cached.serves(config, present):
                cached = None
        except (RuntimeError, ValueError) as error:
            message = f"expected dense tensors, whose elements lie at strides in memory ({error})"
            self.raise_on_all_ranks(config, submission.signature, MissingTensorError(message))
        if cached is None:
            cached = self._make_call(config, Call(submission, tensors, declared, rotation), key, capturing=capturing)
        else:
            self.calls += 1
            self.cache.counters.launches_reused += 1
        work = Work() if streams is None or capturing else streams.order_call(config.communicators.order, stream)
        try:
            for enqueue in cached.calls:
                enqueue(handle)
        except BaseException:
            self.torn = True
            raise
        finally:
            if work.stream is not None:  # a graph keeps what its captured calls use
                for tensor in present:  # memory that is dropped is not used again before the stream is past this point
                    tensor.record_stream(stream)
        return work

    def raise_on_all_ranks(self, config: CallConfig, signature: CallSignature | None, error: ReshardError) -> NoReturn:
        """Count a call that this rank cannot make, and raise its error, on every rank where the call exchanges a record.

        Args:
            signature: of the call; None where this rank cannot even tell what it moves.
        """
        self.calls += 1
        communicators = config.communicators
        fault = with_rank(communicators.base.rank, error)
        if communicators.streams is None or not communicators.streams.current()[-1]:
            self._agree(config, signature, fault)
        raise fault

    def _make_call(self, config: CallConfig, call: Call, key: LaunchKey, *, capturing: bool) -> CachedCall:
        """Make a call after every check that it needs; nothing of it is remembered where every call is checked."""
        if config.fault is not None:
            self.raise_on_all_ranks(config, call.submission.signature, config.fault)
        self.calls += 1
        weight = max(1, sum(tensor is not None for tensor in call.tensors))
        lowered_for = program_key(call, config)
        bound = self.cache.program(lowered_for)
        if capturing:
            self._check_capture(config.communicators, bound)
        if bound is None:
            bound = self._bind(config, call)
            self.cache.store_program(lowered_for, bound, weight)
        elif not capturing:  # what a graph captures was agreed on when it ran before
            fault = find_memory_fault(call.items, call.tensors, bound.extents)
            self._agree(config, call.submission.signature, fault and with_rank(config.communicators.base.rank, fault))
        with self._tearing:
            _, _, addresses, _ = key
            cached = CachedCall(config, lowered_for[-1], bound.calls(call.tensors, addresses))
            self.cache.counters.launches_built += 1
        if config.options.check != "always" and not bound.has_lazy_views:
            self.cache.launches.store(key, cached, weight)
        return cached

    def _bind(self, config: CallConfig, call: Call) -> BoundCall:
        """Plan, check, agree on and lower the first call of tensors with such sizes and strides."""
        base = config.communicators.base
        plans = [
            self.cache.plan(item, base.rank, call.rotation + rotation)
            for item, rotation in zip(call.items, rotations(call.items), strict=True)
        ]
        memory_fault = find_memory_fault(call.items, call.tensors, extents(call.tensors, plans))
        fault = first_fault(call.sides(), plans, memory_fault, base.rank, base.device)
        self._agree(config, call.submission.signature, fault)
        with self._tearing:
            return bind_call(call, plans, config)

    def _agree(self, config: CallConfig, signature: CallSignature | None, fault: ReshardError | None) -> None:
        """Raise this call's fault: on every rank where the call exchanges a record, else on the rank that holds it.

        A rank whose own arguments make no signature takes part where nothing was agreed on so far, since all then exchange.
        """
        check = config.options.check
        new = not self._agreed if signature is None else signature not in self._agreed
        if check == "always" or (check == "first" and new):
            self._exchange(config, fault, {} if signature is None else signature.fields())
            self._agreed.add(signature)
        elif fault is not None:
            raise fault

    def _exchange(self, config: CallConfig, fault: ReshardError | None, fields: dict[str, Any]) -> list[dict[str, Any]]:
        record = agreement.make_record(fault, fields, self.calls, config.options.staging_bytes)
        return agreement.compare_records(self._gather(config.communicators, record))

    def _gather(self, communicators: Communicators, record: bytes) -> list[bytes]:
        with self._tearing:
            if communicators.streams is not None:
                communicators.streams.order_call(communicators.order, communicators.streams.current()[1])
            return communicators.base.exchange(record)

    def _check_capture(self, communicators: Communicators, bound: BoundCall | None) -> None:
        """Refuse to be captured in a CUDA graph where that would need what cannot be captured, or could be shared."""
        rank = communicators.base.rank
        if communicators is self._communicators:
            raise CaptureError(
                f"rank {rank}: a CUDA graph needs communicators of its own: prepare the items with graph=True, "
                "run the refit once, then capture it"
            )
        if bound is None or not all(map(communicators.has_split, bound.splits)):
            raise CaptureError(
                f"rank {rank}: the refit is cold: run it once outside the capture with tensors of the same sizes "
                "and strides, then capture it"
            )

    def clear(self, for_graphs: Iterable[Communicators] = ()) -> None:
        """Drop plans, agreements and every communicator made for the group; of those for graphs the given ones.

        Collective, unless a call failed halfway.

        A clear is a call like others, so that ranks that clear alone find out from what the others exchange, and nothing
        is dropped then. Its record has no call number: a clear on all ranks brings ranks that are out of step together again.
        """
        live_for_graph = (communicators for communicators in for_graphs if communicators.live)
        used = next(live_for_graph, None) if self._communicators is None else self._communicators
        if used is not None and not self.torn:
            self.calls += 1
            agreement.compare_records(self._gather(used, agreement.CLEAR_RECORD))
        self._release(for_graphs)

    def abort(self, for_graphs: Iterable[Communicators] | None = None) -> None:
        """Release the same without waiting for any other rank; of those for graphs all where none are given."""
        self.torn = True
        self._release(self._for_graphs if for_graphs is None else for_graphs)

    def _shared(self) -> list[Communicators]:
        """Return the communicators that are for no graph, in the order in which they were made."""
        return [*self._retired, *([] if self._communicators is None else [self._communicators])]

    def _release(self, for_graphs: Iterable[Communicators]) -> None:
        ending, torn = [*self._shared(), *for_graphs], self.torn
        self.calls, self.torn = 0, False
        self._generation += 1
        self._communicators, self._brought, self._retired = None, None, []
        self._for_graphs = [communicators for communicators in self._for_graphs if communicators not in ending]
        self._forget()
        release_all(reversed(ending), waiting=not torn)

    def _forget(self) -> None:
        """Drop what was agreed on and remembered."""
        self._configs.clear()
        self._agreed.clear()
        self.cache.clear()


class _Tearing:
    """Notes that ranks are out of step where something fails inside: the next clear must not wait for any of them."""

    def __init__(self, state: State) -> None:
        self._state = weakref.proxy(state)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._state.torn = True


def _checked_config(communicators: Communicators, modes: Sequence[Any], staging_bytes: int) -> CallConfig:
    """Return the config of the first mode that is given; where that does not exist, of the next one that does, with the fault."""
    fault = None
    for mode in [mode for mode in modes if mode]:
        try:
            return CallConfig(communicators, CallOptions(mode, staging_bytes), fault)
        except LayoutError as error:
            fault = fault or error
    return CallConfig(communicators, CallOptions(), fault)
