"""Reads the arguments of a call and checks them against the table of errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise, product
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from reshard_conformance.contract import Group, Item

__all__ = ["Box", "Call", "Kind", "Layout", "Reader", "Refusal", "Runs", "Side", "lengths", "section"]

Box: TypeAlias = tuple[tuple[int, int], ...]
#: What a rank holds of a tensor dim: nonempty intervals, one after another.
Runs: TypeAlias = list[tuple[int, int]]
#: What a placement cuts by itself: so many chunks (a split factor; 1 if it is plain), or segments of these sizes.
Kind: TypeAlias = int | tuple[int, ...]


class Refusal(ValueError):  # noqa: N818 - the specification's word
    """A call that is refused; `kind` is the specification's word for its defect."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Layout(NamedTuple):
    """A mesh, row-major, and the tensor dim that each of its dims shards (None: it replicates), and into what by itself."""

    ranks: tuple[int, ...]
    grid: tuple[int, ...]
    dims: tuple[int | None, ...]
    kinds: tuple[Kind, ...] = ()

    def coordinates(self) -> Iterable[tuple[int, tuple[int, ...]]]:
        """Every rank with its coordinate."""
        return zip(self.ranks, product(*map(range, self.grid)), strict=True)


class Side(NamedTuple):
    """The source or the destination as a rank passes it."""

    name: str
    tensor: Any
    local: torch.Tensor | None
    layout: Layout


class Call(NamedTuple):
    """One tensor to move, as a rank passes it."""

    name: str
    src: Side
    dst: Side
    shape: tuple[int, ...]
    dtype: torch.dtype


class Reader:
    """The part of the plain implementation that reads and checks arguments."""

    def read(self, items: Sequence[Item], group: Group) -> list[Call]:
        """The calls in the order of their names."""
        names = [item[0] for item in items]
        if len(set(names)) < len(names):
            raise Refusal("layout", f"rank {group.rank}: two items have the same name")
        return [self.read_item(item, group) for item in self.sorted_items(items)]

    def sorted_items(self, items: Sequence[Item]) -> list[Item]:
        """The items in an order that all ranks share."""
        return sorted(items, key=lambda item: item[0])

    def read_item(self, item: Item, group: Group) -> Call:
        name, src, src_mesh, src_placements, dst, dst_mesh, dst_placements = item
        known = dst if src is None else src
        shape = None if known is None else tuple(known.shape)
        for placement in (*src_placements, *dst_placements):
            self.check_kind(placement, group)
        layouts = [
            self.read_layout(mesh, placements, shape)
            for mesh, placements in ((src_mesh, src_placements), (dst_mesh, dst_placements))
        ]
        for layout in layouts:
            self.check_layout(layout, group)
        if shape is None or known is None:
            raise Refusal("missing", f"rank {group.rank}: neither source nor destination tells the shape")
        sides = [
            Side(side, tensor, self.local(tensor), layout)
            for side, tensor, layout in zip(("source", "destination"), (src, dst), layouts, strict=True)
        ]
        return Call(name, sides[0], sides[1], shape, known.dtype)

    def read_layout(self, mesh: Any, placements: Sequence[Any], shape: tuple[int, ...] | None) -> Layout:
        ndim = None if shape is None else len(shape)
        dims = tuple(None if isinstance(p, Replicate) else self.shard_dim(p.dim, ndim) for p in placements)
        kinds = tuple(map(self.read_kind, placements))
        for place, (dim, kind) in enumerate(zip(dims, kinds, strict=True)):
            if isinstance(kind, tuple) and (dim in dims[:place] or not kind or min(kind) < 0):
                raise Refusal(
                    "placement", f"segments {kind} of tensor dim {dim}, which is to be cut for the first time"
                )
        return Layout(tuple(mesh.mesh.flatten().tolist()), tuple(mesh.mesh.shape), dims, kinds)

    def read_kind(self, placement: Any) -> Kind:
        """What the placement cuts by itself."""
        if isinstance(placement, _StridedShard):
            return int(placement.split_factor)
        return getattr(placement, "sizes", 1)

    def shard_dim(self, dim: int, ndim: int | None) -> int:
        """A shard dim counted from the front."""
        if ndim is not None and not -ndim <= dim < ndim:
            raise Refusal("placement", f"shard dim {dim} of a tensor of {ndim} dims")
        return dim if ndim is None else dim % ndim

    def check_kind(self, placement: Any, group: Group) -> None:
        if type(placement) not in {Shard, Replicate, _StridedShard} and not hasattr(placement, "sizes"):
            raise Refusal("placement", f"rank {group.rank}: {placement} is neither a shard nor Replicate")

    def check_layout(self, layout: Layout, group: Group) -> None:
        if len(layout.dims) != len(layout.grid):
            raise Refusal(
                "layout", f"rank {group.rank}: {len(layout.dims)} placements for {len(layout.grid)} mesh dims"
            )
        if len(set(layout.ranks)) < len(layout.ranks) or not set(layout.ranks) <= set(range(group.size)):
            raise Refusal("layout", f"rank {group.rank}: {layout.ranks} are not distinct ranks below {group.size}")

    def local(self, tensor: Any) -> torch.Tensor | None:
        """The local tensor, waited for and without its history."""
        local: torch.Tensor | None = None if tensor is None else tensor._local_tensor  # noqa: SLF001 - the callers' name
        if isinstance(local, AsyncCollectiveTensor):
            local = local.wait()
        return None if local is None else local.detach()

    def check(self, call: Call, group: Group) -> None:
        """Refuse what this rank passes, by the first defect of the table."""
        where = f"rank {group.rank}"
        for rule in (self.check_missing, self.check_device, self.check_dtype, self.check_shape):
            for side in (call.src, call.dst):
                wrong = rule(side, call, group)
                if wrong:
                    raise Refusal(rule.__name__.removeprefix("check_"), f"{where}: {side.name} {wrong}")
        if shares_elements(call.src.local, call.dst.local):
            raise Refusal("aliasing", f"{where}: source and destination share elements")

    def check_missing(self, side: Side, call: Call, group: Group) -> str:
        del call
        if (group.rank in side.layout.ranks) == (side.local is not None):
            return ""
        return "has no tensor" if side.local is None else "has a tensor, but its mesh lacks this rank"

    def check_device(self, side: Side, call: Call, group: Group) -> str:
        del call
        wrong = side.local is not None and side.local.device != group.communicator.device
        return f"is on another device than {group.communicator.device}" if wrong else ""

    def check_dtype(self, side: Side, call: Call, group: Group) -> str:
        del group
        found = [
            tensor.dtype for tensor in (side.tensor, side.local) if tensor is not None and tensor.dtype != call.dtype
        ]
        return f"has dtype {found[0]}, expected {call.dtype}" if found else ""

    def check_shape(self, side: Side, call: Call, group: Group) -> str:
        if side.tensor is not None and tuple(side.tensor.shape) != call.shape:
            return f"has global shape {tuple(side.tensor.shape)}, expected {call.shape}"
        wrong = self.check_segments(side.layout, call.shape)
        if wrong:
            return wrong
        expected = tuple(sum(lengths(runs)) for runs in self.runs(side.layout, call.shape).get(group.rank, ()))
        if side.local is None or tuple(side.local.shape) == expected:
            return ""
        return f"has local shape {tuple(side.local.shape)}, expected {expected}"

    def check_segments(self, layout: Layout, shape: tuple[int, ...]) -> str:
        for dim, kind in zip(layout.dims, layout.kinds, strict=True):
            if dim is not None and isinstance(kind, tuple) and sum(kind) != shape[dim]:
                return f"has segments {kind} for a dim of {shape[dim]}"
        return ""

    def pieces(self, low: int, high: int, parts: int) -> list[tuple[int, int]]:
        """Return the chunks of an interval, as torch.chunk cuts it."""
        step = -(-(high - low) // parts)
        return [(min(low + i * step, high), min(low + i * step + step, high)) for i in range(parts)]

    def mesh_dims(self, layout: Layout) -> Iterable[int]:
        """The mesh dims in the order in which they cut."""
        return range(len(layout.grid))

    def runs(self, layout: Layout, shape: tuple[int, ...]) -> dict[int, list[Runs]]:
        """Return the runs of every tensor dim that each rank of a layout holds."""
        found = {}
        for rank, coordinate in layout.coordinates():
            held = [[(0, size)] for size in shape]
            for mesh_dim in self.mesh_dims(layout):
                dim = layout.dims[mesh_dim]
                if dim is not None:
                    held[dim] = self.cut(held[dim], layout, mesh_dim, coordinate[mesh_dim])
            found[rank] = held
        return found

    def cut(self, runs: Runs, layout: Layout, mesh_dim: int, index: int) -> Runs:
        """What a mesh dim leaves of some runs at an index: its piece of each part, in their order."""
        parts = self.parts(layout.kinds[mesh_dim], sum(lengths(runs)))
        places = [self.pieces(*part, layout.grid[mesh_dim])[index] for part in parts]
        return [run for place in places for run in section(runs, *place)]

    def parts(self, kind: Kind, size: int) -> Runs:
        """What is cut by itself of a list of so many elements."""
        return self.pieces(0, size, kind) if isinstance(kind, int) else list(pairwise(accumulate(kind, initial=0)))

    def boxes(self, layout: Layout, shape: tuple[int, ...]) -> dict[int, list[Box]]:
        """Return the boxes that each rank of a layout holds."""
        return {rank: list(product(*runs)) for rank, runs in self.runs(layout, shape).items()}


def section(runs: Sequence[tuple[int, int]], low: int, high: int) -> Runs:
    """The elements `low` to `high` of some runs."""
    found = []
    for start, end in runs:
        first, last = start + max(low, 0), min(start + high, end)
        found += [(first, last)] if first < last else []
        low, high = low - (end - start), high - (end - start)
    return found


def lengths(box: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(high - low for low, high in box)


def shares_elements(src: torch.Tensor | None, dst: torch.Tensor | None) -> bool:
    """Return True if the tensors share an element."""
    if src is None or dst is None or not src.numel() or not dst.numel():
        return False
    if src.untyped_storage().data_ptr() != dst.untyped_storage().data_ptr():
        return False
    return bool(torch.isin(offsets(src), offsets(dst)).any())


def offsets(tensor: torch.Tensor) -> torch.Tensor:
    """Return the offset of every element in the storage, in elements."""
    places = torch.tensor(tensor.storage_offset())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return places.flatten()
