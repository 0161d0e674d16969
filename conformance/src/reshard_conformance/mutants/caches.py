"""Mutants that send too much, or keep what they must not: chapters TRAFFIC, BATCH and CACHE, and cache keys."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress

import torch

from reshard_conformance.contract import Communicator, Group, Item
from reshard_conformance.mutants.calls import Call, Layout
from reshard_conformance.mutants.plain import Message, Plain, State, breaks


@breaks("RS-TRAFFIC-1")
class Every(Plain):
    """Every replica receives its whole shard from a holder."""

    def receivers(self, members: Sequence[int]) -> Sequence[int]:
        return members

    def replicate(self, call: Call, group: Group, state: State) -> None:
        pass


@breaks("RS-TRAFFIC-2")
class Distant(Plain):
    """The first other holder sends, though the receiver holds the bytes itself."""

    def holder(self, holders: Sequence[int], receiver: int, number: int) -> int:
        others = [rank for rank in holders if rank != receiver]
        return others[number % len(others)] if others else receiver


@breaks("RS-TRAFFIC-3")
class Wholesale(Plain):
    """Every call makes a tensor of the global shape for a start."""

    def move(self, calls: Sequence[Call], first: int, group: Group, state: State) -> None:
        whole = [torch.empty(call.shape, dtype=call.dtype) for call in calls]
        super().move(calls, first, group, state)
        del whole


@breaks("RS-BATCH-2")
class Unsorted(Plain):
    """Items are moved in the order in which a rank lists them."""

    def sorted_items(self, items: Sequence[Item]) -> list[Item]:
        return list(items)


@breaks("RS-BATCH-1")
class Impatient(Plain):
    """A batch ends at its first tensor without elements."""

    def rounds(self, calls: Sequence[Call], group: Group) -> Iterable[tuple[int, Sequence[Call]]]:
        del group
        for place, call in enumerate(calls):
            if not math.prod(call.shape):
                return
            yield place, [call]


@breaks("RS-BATCH-3")
class Namesakes(Plain):
    """Of two items of one name the later one counts."""

    def read(self, items: Sequence[Item], group: Group) -> list[Call]:
        return super().read(list({item[0]: item for item in items}.values()), group)


@breaks("RS-BATCH-4")
class Unbounded(Plain):
    """A batch is submitted at once, however long it is."""

    def rounds(self, calls: Sequence[Call], group: Group) -> Iterable[tuple[int, Sequence[Call]]]:
        del group
        return [(0, calls)] if calls else []


@breaks("RS-BATCH-2")
class Crossed(Plain):
    """Odd ranks receive the messages of a call after the next one's, as they take a batch from its end."""

    def rounds(self, calls: Sequence[Call], group: Group) -> Iterable[tuple[int, Sequence[Call]]]:
        parts = list(super().rounds(calls, group))
        return parts[::-1] if group.rank % 2 else parts


@breaks("RS-CACHE-5")
class First(Plain):
    """Only rank 0 clears."""

    def clear_caches(self, group: Group) -> None:
        if group.rank == 0:
            self.release(self.state(group))
            self.states[group] = State(mode=self.state(group).mode)


@breaks("RS-CACHE-7")
class Leaky(Plain):
    """The communicator of the ranks that are left over is forgotten at a clear."""

    def communicator(self, layout: Layout, group: Group, state: State) -> Communicator | None:
        found = super().communicator(layout, group, state)
        if group.rank not in layout.ranks and found in state.made:
            state.made.remove(found)
        return found


@breaks("RS-CACHE-7")
class Twice(Plain):
    """Every communicator is destroyed twice."""

    def release(self, state: State) -> None:
        for communicator in state.made:
            communicator.destroy()
        super().release(state)


@breaks("RS-CACHE-2")
class Active(Plain):
    """Only ranks of the destination take part in a split."""

    def replicate(self, call: Call, group: Group, state: State) -> None:
        if call.dst.local is not None:
            super().replicate(call, group, state)


@breaks("RS-CACHE-4")
class Strided(Plain):
    """Each rank decides by its own strides whether its replicas broadcast, or receive messages."""

    def replicate(self, call: Call, group: Group, state: State) -> None:
        local = call.dst.local
        if local is None or local.is_contiguous():
            super().replicate(call, group, state)
            return
        members = next(ranks for ranks in self.groups(call.dst.layout) if group.rank in ranks)
        piece = self.landing(local)
        with group.communicator.group():
            for member in members[1:]:
                if group.rank == members[0]:
                    group.communicator.send(self.pack(local, call, None, group), member)
                elif group.rank == member:
                    group.communicator.recv(piece.buffer, members[0])
        if group.rank != members[0]:
            self.unpack(piece)


@breaks("RS-CACHE-8")
class Collected(Plain):
    """When a group is collected, its communicators end together."""

    def communicator(self, layout: Layout, group: Group, state: State) -> Communicator | None:
        found = super().communicator(layout, group, state)
        weakref.finalize(group, finish, state.made)
        return found


def finish(made: list[Communicator]) -> None:
    with suppress(RuntimeError):  # the group's own end may have come first
        while made:
            made.pop(0).finalize()


@breaks("RS-CACHE-9")
class Identity(Plain):
    """What is kept for a group is found by its number, which a later group gets again."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: weakref.WeakKeyDictionary[Group, int] = weakref.WeakKeyDictionary()
        self.known: dict[tuple[int, int], State] = {}

    def state(self, group: Group) -> State:
        if group not in self.numbers:
            taken = {number for other, number in self.numbers.items() if other.rank == group.rank}
            self.numbers[group] = min(set(range(len(taken) + 1)) - taken)
        return self.known.setdefault((group.rank, self.numbers[group]), State())

    def clear_caches(self, group: Group) -> None:
        super().clear_caches(group)
        self.known.pop((group.rank, self.numbers[group]))


@breaks("RS-CACHE-1")
class Groupless(Plain):
    """Communicators are kept by ranks alone, for all groups."""

    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[object, Communicator | None] = {}

    def communicator(self, layout: Layout, group: Group, state: State) -> Communicator | None:
        key = group.rank, group.size, layout
        if key not in self.shared:
            self.shared[key] = super().communicator(layout, group, state)
        return self.shared[key]


@breaks("RS-CACHE-10")
class Unaware(Plain):
    """Clearing is nobody's business but the rank's own."""

    def clear_caches(self, group: Group) -> None:
        state = self.state(group)
        self.release(state)
        self.states[group] = State(state.mode, state.calls)


@breaks("RS-EXACT-12")
class Typeless(Plain):
    """The sizes of messages, in bytes, are kept without regard to the dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: weakref.WeakKeyDictionary[Group, dict[object, int]] = weakref.WeakKeyDictionary()

    def pack(self, view: torch.Tensor, call: Call, message: Message | None, group: Group) -> torch.Tensor:
        found = super().pack(view, call, message, group)
        return found[: self.sizes.setdefault(group, {}).setdefault((self.plan_key(call), message), found.numel())]


@breaks("RS-EXACT-12")
class Orderless(Plain):
    """A plan is found by the set of a mesh's ranks."""

    def plan_key(self, call: Call) -> object:
        layouts = (call.src.layout, call.dst.layout)
        return tuple(layout._replace(ranks=tuple(sorted(layout.ranks))) for layout in layouts), call.shape


@breaks("RS-EXACT-12")
class Shapeblind(Plain):
    """A plan is found without regard to the shape."""

    def plan_key(self, call: Call) -> object:
        return call.src.layout, call.dst.layout
