"""Mutants that move the wrong bytes: chapters LAYOUT and EXACT."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from reshard_conformance.contract import Group
from reshard_conformance.mutants.calls import Call, Layout, Refusal
from reshard_conformance.mutants.plain import Message, Piece, Plain, State, breaks


@breaks("RS-LAYOUT-5")
class Balanced(Plain):
    """Uneven dims are cut into parts that differ by at most one, 10 over 4 into 3, 3, 2, 2."""

    def pieces(self, low: int, high: int, parts: int) -> list[tuple[int, int]]:
        small, more = divmod(high - low, parts)
        ends = [low + small * i + min(i, more) for i in range(parts + 1)]
        return list(pairwise(ends))


@breaks("RS-LAYOUT-5")
class Remainder(Plain):
    """Every part has floor(size / parts) elements; what remains at the end is dropped."""

    def pieces(self, low: int, high: int, parts: int) -> list[tuple[int, int]]:
        step = (high - low) // parts
        return [(low + i * step, low + i * step + step) for i in range(parts)]


@breaks("RS-LAYOUT-6")
class Reversed(Plain):
    """Mesh dims cut from right to left."""

    def mesh_dims(self, layout: Layout) -> Iterable[int]:
        return reversed(range(len(layout.grid)))


@breaks("RS-LAYOUT-4")
class Absolute(Plain):
    """A negative shard dim counts from the front."""

    def shard_dim(self, dim: int, ndim: int | None) -> int:
        return super().shard_dim(dim if dim >= 0 else -dim - 1, ndim)


@breaks("RS-LAYOUT-1")
class Ascending(Plain):
    """The ranks of a mesh are taken in ascending order."""

    def read_layout(self, mesh: Any, placements: Sequence[Any], shape: tuple[int, ...] | None) -> Layout:
        layout = super().read_layout(mesh, placements, shape)
        return layout._replace(ranks=tuple(sorted(layout.ranks)))


@breaks("RS-LAYOUT-3")
class Absent(Plain):
    """A rank in neither mesh returns at once, whatever the others still do together."""

    def replicate(self, call: Call, group: Group, state: State) -> None:
        if group.rank in {*call.src.layout.ranks, *call.dst.layout.ranks}:
            super().replicate(call, group, state)


@breaks("RS-LAYOUT-7")
class Emptyhanded(Plain):
    """A rank with an empty destination shard does not take part in the split."""

    def replicate(self, call: Call, group: Group, state: State) -> None:
        if call.dst.local is None or call.dst.local.numel():
            super().replicate(call, group, state)


@breaks("RS-LAYOUT-8")
class Pointless(Plain):
    """A tensor of no dims is taken for one without elements."""

    def make_plan(self, call: Call, turn: int) -> list[Message]:
        return super().make_plan(call, turn) if call.shape else []


@breaks("RS-EXACT-1")
class Lazy(Plain):
    """Nothing is done."""

    def move(self, calls: Sequence[Call], first: int, group: Group, state: State) -> None:
        pass


@breaks("RS-EXACT-1")
class Forgetful(Plain):
    """What a rank holds on both sides is not copied."""

    def copy_own(self, call: Call, plan: Sequence[Message], group: Group) -> None:
        pass


@breaks("RS-EXACT-6")
class Stale(Plain):
    """Replicas are filled at the first call only."""

    def replicate(self, call: Call, group: Group, state: State) -> None:
        if not self.splits_for(call.dst.layout) or self.replica_key(call.dst.layout, group) not in state.replicas:
            super().replicate(call, group, state)


@breaks("RS-EXACT-12")
class Yesterday(Plain):
    """What was packed at the first call of a plan is sent again."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: weakref.WeakKeyDictionary[Group, dict[object, torch.Tensor]] = weakref.WeakKeyDictionary()

    def pack(self, view: torch.Tensor, call: Call, message: Message | None, group: Group) -> torch.Tensor:
        kept = self.sent.setdefault(group, {})
        return kept.setdefault(
            (self.plan_key(call), call.dtype, message), super().pack(view, call, message, group).clone()
        )


@breaks("RS-EXACT-4")
class Writer(Plain):
    """The source is overwritten once it is sent."""

    def move(self, calls: Sequence[Call], first: int, group: Group, state: State) -> None:
        super().move(calls, first, group, state)
        with torch.inference_mode():
            for call in calls:
                if call.src.local is not None and call.src.local.numel() > 8:
                    call.src.local.zero_()


@breaks("RS-EXACT-5")
class Overrun(Plain):
    """A destination is filled as one stretch of memory from its first element to its last."""

    def unpack(self, piece: Piece) -> None:
        super().unpack(piece)
        target = piece.target
        if target is not None and target.numel() and not target.is_conj() and not target.is_neg():
            last = sum((size - 1) * stride for size, stride in zip(target.shape, target.stride(), strict=True))
            kept = target.clone()
            target.as_strided((last + 1,), (1,)).zero_()
            target.copy_(kept)


@breaks("RS-EXACT-7")
class Strideless(Plain):
    """A source is read as if it were contiguous."""

    def local(self, tensor: Any) -> torch.Tensor | None:
        found = super().local(tensor)
        if found is None or found.is_contiguous() or found.is_conj() or found.is_neg():
            return found
        return found.as_strided(found.shape, torch.empty(found.shape, device="meta").stride())


@breaks("RS-EXACT-3")
class Canonical(Plain):
    """Floats pass through arithmetic, which makes one NaN of all."""

    def pack(self, view: torch.Tensor, call: Call, message: Message | None, group: Group) -> torch.Tensor:
        if view.dtype in {torch.float32, torch.float64, torch.float16, torch.bfloat16}:
            view = torch.where(view.isnan(), torch.full_like(view, math.nan), view)
        return super().pack(view, call, message, group)


@breaks("RS-EXACT-2")
class Cast(Plain):
    """Types that NCCL does not know are sent as float32 values."""

    def pack(self, view: torch.Tensor, call: Call, message: Message | None, group: Group) -> torch.Tensor:
        if view.dtype == torch.complex128:
            view = view.to(torch.complex64).to(view.dtype)
        return super().pack(view, call, message, group)


@breaks("RS-EXACT-7")
class Reshaped(Plain):
    """A destination that is not contiguous is filled in a copy of it."""

    def local(self, tensor: Any) -> torch.Tensor | None:
        found = super().local(tensor)
        return None if found is None else found.contiguous()


@breaks("RS-EXACT-8")
class Literal(Plain):
    """A conjugate or negative view is sent as the memory behind it."""

    def pack(self, view: torch.Tensor, call: Call, message: Message | None, group: Group) -> torch.Tensor:
        view = view.conj() if view.is_conj() else view
        view = torch._neg_view(view) if view.is_neg() else view  # noqa: SLF001 - torch has no other name for it
        return super().pack(view, call, message, group)


@breaks("RS-EXACT-10")
class Hasty(Plain):
    """The pending result of a collective is read without waiting for it."""

    def local(self, tensor: Any) -> torch.Tensor | None:
        found = None if tensor is None else tensor._local_tensor  # noqa: SLF001 - the callers' name
        return found.elem if isinstance(found, AsyncCollectiveTensor) else super().local(tensor)


@breaks("RS-EXACT-11")
class Suspicious(Plain):
    """Any two tensors of one storage are taken to share elements."""

    def check(self, call: Call, group: Group) -> None:
        super().check(call, group)
        storages = [
            side.local.untyped_storage().data_ptr()
            for side in (call.src, call.dst)
            if side.local is not None and side.local.numel()
        ]
        if len(storages) > len(set(storages)):
            raise Refusal("aliasing", f"rank {group.rank}: source and destination share a storage")


@breaks("RS-EXACT-1")
class Freed(Plain):
    """Staging is given back, and used again, before what it holds was submitted."""

    def __init__(self) -> None:
        super().__init__()
        self.areas: weakref.WeakKeyDictionary[Group, torch.Tensor] = weakref.WeakKeyDictionary()

    def pack(self, view: torch.Tensor, call: Call, message: Message | None, group: Group) -> torch.Tensor:
        found = super().pack(view, call, message, group)
        if found.data_ptr() == view.data_ptr() or message is None:
            return found
        area = self.areas.setdefault(group, torch.empty(1 << 20, dtype=torch.uint8))
        return area[: found.numel()].copy_(found)
