"""Mutants that refuse what they must not, or the other way round: chapters ERROR and AGREE."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from reshard_conformance.contract import Group, Item
from reshard_conformance.mutants.calls import Call, Layout, Refusal, Side
from reshard_conformance.mutants.plain import Plain, State, breaks


@breaks("RS-ERROR-1")
class Tolerant(Plain):
    """A placement of an unknown kind is taken for Replicate."""

    def check_kind(self, placement: Any, group: Group) -> None:
        pass


@breaks("RS-ERROR-2")
class Wrapping(Plain):
    """A shard dim out of range wraps around."""

    def shard_dim(self, dim: int, ndim: int | None) -> int:
        return dim % ndim if ndim else 0


@breaks("RS-ERROR-3")
class Doubled(Plain):
    """A rank may be named twice."""

    def check_layout(self, layout: Layout, group: Group) -> None:
        if len(set(layout.ranks)) == len(layout.ranks):
            super().check_layout(layout, group)


@breaks("RS-ERROR-7")
class Shapeless(Plain):
    """Local shapes are not checked."""

    def check_shape(self, side: Side, call: Call, group: Group) -> str:
        del side, call, group
        return ""


@breaks("RS-ERROR-9")
class Backwards(Plain):
    """Meshes are looked at before placements."""

    def read_item(self, item: Item, group: Group) -> Call:
        for mesh in (item[2], item[5]):
            ranks = mesh.mesh.flatten().tolist()
            self.check_layout(Layout(tuple(ranks), (len(ranks),), (None,)), group)
        return super().read_item(item, group)


@breaks("RS-ERROR-10")
class Eager(Plain):
    """A destination is prepared before the call is checked."""

    def check(self, call: Call, group: Group) -> None:
        if call.dst.local is not None and call.dst.local.device.type == "cpu":
            with torch.inference_mode():
                call.dst.local.zero_()
        super().check(call, group)


@breaks("RS-AGREE-1")
class Selfish(Plain):
    """A rank raises its own fault before the others hear of it."""

    def agree(self, calls: Sequence[Call], fault: Refusal | None, group: Group, state: State) -> None:
        if fault is not None:
            raise fault
        super().agree(calls, fault, group, state)


@breaks("RS-AGREE-2")
class Trusting(Plain):
    """Records hold dtypes and shapes, but no layouts."""

    def told(self, calls: Sequence[Call], state: State) -> dict[str, object]:
        return {**super().told(calls, state), "rest": ""}


@breaks("RS-AGREE-3")
class Offended(Plain):
    """After one refusal a group refuses everything."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: weakref.WeakKeyDictionary[Group, Refusal] = weakref.WeakKeyDictionary()

    def agree(self, calls: Sequence[Call], fault: Refusal | None, group: Group, state: State) -> None:
        try:
            super().agree(calls, self.refused.get(group, fault), group, state)
        except Refusal as refusal:
            self.refused[group] = refusal
            raise


@breaks("RS-AGREE-4")
class Forever(Plain):
    """With "first" every call is agreed on."""

    def set_check(self, group: Group, mode: str) -> None:
        super().set_check(group, "always" if mode == "first" else mode)


@breaks("RS-AGREE-5")
class Talkative(Plain):
    """With "off" records are exchanged all the same."""

    def set_check(self, group: Group, mode: str) -> None:
        super().set_check(group, "first" if mode == "off" else mode)
