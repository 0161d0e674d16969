"""The call cache of a group: a call that was made before costs little more than its launch."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from restripe.group.agreement import CallSignature
from restripe.group.call import BoundCall, CachedCall, Call, CallConfig, Submission
from restripe.group.inputs import Declared, LayoutInputs, ResolvedItem, resolve_item
from restripe.group.snapshots import TensorSnapshot, layout_key, tensor_snapshot, watches
from restripe.layout.mesh import Layout
from restripe.planning.plan import RankPlan
from restripe.planning.planner import plan

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
MAX_PLANS = 1024  # as many as the published function keeps
MAX_TENSORS = 131_072  # seven times the tensors of a mixture of experts of 30B parameters, which users move one by one
#: Ranks of the meshes found by identity, about 100 MB where every call brings new meshes. Beyond it a layout is found by its
#: contents, which takes 2 us more.
MAX_IDENTITY_RANKS = 2**19
logger = logging.getLogger("restripe")


@dataclass
class CacheCounters:
    """Counts of the values that a group's cache had to make, and of the whole calls that it found."""

    submissions_resolved: int = 0
    plans_made: int = 0
    programs_lowered: int = 0
    launches_built: int = 0
    launches_reused: int = 0
    evictions: int = 0


class LruCache(Generic[Key, Value]):
    """Values by key up to a total weight; beyond it the values that were not used for longest go.

    Args:
        name: for the log, where the first eviction is told; None where evictions cost too little to be told.
        capacity: the total weight.
        counters: count the evictions.
    """

    def __init__(self, name: str | None, capacity: int, counters: CacheCounters) -> None:
        self._name, self._capacity, self._counters = name, capacity, counters
        self._weight, self._warned = 0, False
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return the value of a key and count it as used, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def store(self, key: Key, value: Value, weight: int = 1) -> Value:
        """Store a value as the one used last, and return it."""
        earlier = self._entries.pop(key, None)
        self._weight += weight - (0 if earlier is None else earlier[1])
        self._entries[key] = value, weight
        while self._weight > self._capacity and len(self._entries) > 1:
            self._weight -= self._entries.popitem(last=False)[1][1]
            self._count_eviction()
        return value

    def get_or_make(self, key: Key, make: Callable[[], Value], weight: int = 1) -> Value:
        """Return the value of a key, made and stored where it is missing."""
        value = self.get(key)
        return self.store(key, make(), weight) if value is None else value

    def clear(self) -> None:
        """Drop all values."""
        self._entries.clear()
        self._weight = 0

    def _count_eviction(self) -> None:
        self._counters.evictions += 1
        if not self._warned and self._name is not None:
            self._warned = True
            logger.warning(
                "a group's cache of %s is full at %d and drops those not used for longest", self._name, self._capacity
            )


Layouts = tuple[Any, Any, Any, Any]  # the fields of LayoutInputs
Snapshots = tuple[TensorSnapshot | None, ...]
ProgramKey = tuple[CallSignature, CallConfig, int, tuple[Declared, ...], Snapshots]
LaunchKey = tuple[Submission, int, tuple[int | None, ...], tuple[Declared, ...]]


def program_key(call: Call, config: CallConfig) -> ProgramKey:
    """Return the key of a call's program."""
    snapshots = tuple([None if tensor is None else tensor_snapshot(tensor) for tensor in call.tensors])
    return call.submission.signature, config, call.rotation, call.declared, snapshots


class WatchedSubmission:
    """A submission found by the identity of its meshes and placements, while what watches them sees no change.

    It keeps the objects, so that no other object gets their ids.
    """

    __slots__ = ("_layouts", "_watches", "submission")

    def __init__(self, submission: Submission, layouts: Layouts, watches: Sequence[Callable[[], bool]]) -> None:
        self.submission, self._layouts, self._watches = submission, layouts, watches

    def is_current(self) -> bool:
        """Return whether the meshes and placements say what they said."""
        for unchanged in self._watches:  # noqa: SIM110  (a generator takes longer than the watches)
            if not unchanged():
                return False
        return True


class CallCache:
    """The tables of one group.

    | table       | key                                                             | value                     | bound          |
    | ----------- | --------------------------------------------------------------- | ------------------------- | -------------- |
    | by_identity | ids of meshes and placements, global shape, dtype               | the same, with watches    | 524,288 ranks  |
    | submissions | contents of meshes and placements, global shape, dtype          | what a call moves         | 131,072        |
    | plans       | both layouts, global shape                                      | a plan for each rotation  | 1,024          |
    | programs    | call signature, config, rotation, sizes and strides of tensors  | a program to launch       | 131,072 tensors |
    | launches    | submission, rotation, addresses of tensors, declarations        | a call ready to enqueue   | 131,072 tensors |

    All are dropped when the group's caches are cleared, and when the group brings another communicator. Objects that stand in a
    key by their id are kept with the value; those that can change are watched. Only `launches` has addresses in its key: a temporary buffer costs a launch, and
    no plan or program.
    """

    def __init__(self, max_plans: int = MAX_PLANS, max_tensors: int = MAX_TENSORS) -> None:
        self.counters = CacheCounters()
        self._by_identity: LruCache[Hashable, WatchedSubmission] = LruCache(None, MAX_IDENTITY_RANKS, self.counters)
        self._submissions: LruCache[Hashable, tuple[Submission, object]] = LruCache(
            "submissions", max_tensors, self.counters
        )
        self._plans: LruCache[tuple[Layout, Layout, tuple[int, ...]], dict[int, RankPlan]] = LruCache(
            "plans", max_plans, self.counters
        )
        self._programs: LruCache[Hashable, BoundCall] = LruCache("programs", max_tensors, self.counters)
        #: The calls that were made for tensors at given addresses.
        self.launches: LruCache[LaunchKey, CachedCall] = LruCache("launches", max_tensors, self.counters)

    def submission(
        self,
        layouts: Layouts,
        shape: tuple[int, ...] | None,
        dtype: torch.dtype | None,
        group: Any,
        size: int,
    ) -> Submission:
        """Return what a call for one tensor moves; see `resolve_item`, which reads layouts that were not seen before.

        Args:
            layouts: the fields of `LayoutInputs`.
        """
        src_mesh, src_placements, dst_mesh, dst_placements = layouts
        identities = id(src_mesh), id(src_placements), id(dst_mesh), id(dst_placements), shape, dtype
        try:
            watched = self._by_identity.get(identities)
        except TypeError:  # a dtype that is none may not be hashable; it is refused when it is read
            return self._resolve(layouts, shape, dtype, group, size)
        if watched is not None and watched.is_current():
            return watched.submission
        src, dst = layout_key(src_mesh, src_placements), layout_key(dst_mesh, dst_placements)
        if src is None or dst is None:
            return self._resolve(layouts, shape, dtype, group, size)
        entry = self._submissions.get((src, dst, shape, dtype))
        if entry is None:
            resolved = self._resolve(layouts, shape, dtype, group, size)
            entry = self._submissions.store((src, dst, shape, dtype), (resolved, layouts))
        src_watches, dst_watches = watches(src_mesh, src_placements), watches(dst_mesh, dst_placements)
        if src_watches is not None and dst_watches is not None:
            watching = [watch.unchanged for watch in (*src_watches, *dst_watches)]
            item = entry[0].items[0]
            weight = len(item.src.mesh.ranks) + len(item.dst.mesh.ranks)
            self._by_identity.store(identities, WatchedSubmission(entry[0], layouts, watching), weight)
        return entry[0]

    def _resolve(
        self, layouts: Layouts, shape: tuple[int, ...] | None, dtype: torch.dtype | None, group: Any, size: int
    ) -> Submission:
        self.counters.submissions_resolved += 1
        return Submission((resolve_item(LayoutInputs(*layouts), shape, dtype, group, size),))

    def plan(self, item: ResolvedItem, rank: int, rotation: int) -> RankPlan:
        """Return the rank's plan for an item, made once for each holder that can be the first to send."""
        rotations = self._plans.get_or_make((item.src, item.dst, item.shape), dict)
        rotation %= item.src.replicas
        if rotation not in rotations:
            self.counters.plans_made += 1
            rotations[rotation] = plan(item.src, item.dst, item.shape, rank, rotation)
        return rotations[rotation]

    def program(self, key: ProgramKey) -> BoundCall | None:
        """Return the program of calls of tensors with such sizes and strides, if one was lowered."""
        return self._programs.get(key)

    def store_program(self, key: ProgramKey, bound: BoundCall, tensors: int) -> BoundCall:
        """Remember a program for calls of so many tensors."""
        self.counters.programs_lowered += 1
        return self._programs.store(key, bound, tensors)

    def clear(self) -> None:
        """Drop all tables; the counters go on."""
        for table in (self._by_identity, self._submissions, self._plans, self._programs, self.launches):
            table.clear()
