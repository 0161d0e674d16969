"""What the ranks of a group must agree on: a small record of each call, and what follows when records differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from restripe import errors
from restripe.errors import PRECEDENCE, AgreementError, DtypeError, MissingTensorError, ReshardError, ShapeError
from restripe.group.inputs import Item, Whole
from restripe.layout.mesh import Layout, Mesh
from restripe.layout.segmented import Segmented

PLANNER = 3  # raised when the same arguments plan otherwise than before
CLEAR = b'{"told": {"call": "clear"}}'


class Terms(NamedTuple):
    """What one call moves: two ranks with equal terms make the same plans."""

    dtype: str
    shape: str
    layouts: str

    @classmethod
    def of(cls, items: Sequence[Whole]) -> Terms:
        """The terms of a submission of these items, names included."""
        return cls(
            dtype=_text([str(item.dtype) for item in items]),
            shape=_text([str(item.shape) for item in items]),
            layouts=_digest([f"{item.name!r} {_spell(item.src)} {_spell(item.dst)}" for item in items]),
        )

    def told(self) -> dict[str, Any]:
        """What a record tells of a call with these terms."""
        return {"call": "reshard", "dtype": self.dtype, "shape": self.shape, "layouts": self.layouts}


def _text(parts: list[str]) -> str:
    """A single part as it is, so that a message can show it; several as a digest."""
    return parts[0] if len(parts) == 1 else f"{len(parts)} tensors, digest {_digest(parts)}"


def _digest(parts: list[str]) -> str:
    return blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def _spell(layout: Layout) -> str:
    return f"{layout.mesh.digest} {layout.placements}"


def record(fault: ReshardError | None, what: dict[str, Any], number: int, staging_bytes: int) -> bytes:
    """This rank's record of its call of this number: its fault, or what it is about to do."""
    if fault is not None:
        return json.dumps({"fault": [type(fault).__name__, str(fault)]}).encode()
    told = {**what, "call number": number, "staging budget": staging_bytes, "planner": PLANNER}
    return json.dumps({"told": told}).encode()


def _decode(records: Sequence[bytes]) -> list[dict[str, Any]]:
    """What each rank told; where ranks told faults, the one that stands first in the table of errors is raised."""
    lines = [json.loads(line) for line in records]
    faults = [(getattr(errors, line["fault"][0]), line["fault"][1]) for line in lines if "fault" in line]
    if faults:
        kind, text = min(faults, key=lambda fault: PRECEDENCE.index(fault[0]))
        raise kind(text)
    return [line["told"] for line in lines]


def compare(records: Sequence[bytes]) -> list[dict[str, Any]]:
    """What each rank told. Raises, on every rank alike, where a rank holds a fault or the calls differ.

    Items are not compared: each rank lists those that it knows. Where nothing differs but dtypes or shapes, that is the
    error; else AgreementError.
    """
    told = _decode(records)
    first = told[0]
    differing = [field for field in first if field != "items" and any(one.get(field) != first[field] for one in told)]
    if not differing:
        return told
    field = differing[0]
    if field == "call":  # two different calls have hardly a field in common
        differing = [field]
    kind = {"dtype": DtypeError, "shape": ShapeError}[field] if set(differing) <= {"dtype", "shape"} else AgreementError
    rank = next(rank for rank, one in enumerate(told) if one.get(field) != first[field])
    raise kind(
        f"rank {rank} calls with another {' and '.join(differing)}: expected {field} {first[field]} as on rank 0, got {told[rank].get(field)}; "
        "every rank of a group must make the same calls in the same order, clears included"
    )


def listing(items: Sequence[Item]) -> bytes:
    """The items that this rank knows, as it tells them to the others; each layout once, since meshes are long."""
    layouts: dict[Layout, int] = {}
    lines = [
        [item.name, item.shape, str(item.dtype).removeprefix("torch.")]
        + [None if side is None else layouts.setdefault(side, len(layouts)) for side in (item.src, item.dst)]
        for item in items
    ]
    return json.dumps({"layouts": [_told(layout) for layout in layouts], "items": lines}).encode()


def describe(listed: bytes, *, graph: bool) -> dict[str, Any]:
    """What a record tells of a call that prepares the listed items, to be recorded in a CUDA graph or not."""
    return {"call": "prepare", "graph": graph, "items": blake2b(listed, digest_size=16).hexdigest()}


def first_of(told: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The first rank with each digest of items; it lists them for all that have the same."""
    return {one["items"]: rank for rank, one in reversed(list(enumerate(told)))}


def _told(layout: Layout) -> Any:
    mesh, placements = layout.mesh, layout.placements
    return [mesh.shape, mesh.ranks, mesh.hosts, [_told_placement(placement) for placement in placements]]


def _told_placement(placement: Placement) -> Any:
    if isinstance(placement, _StridedShard):
        return {"dim": placement.dim, "split_factor": int(placement.split_factor)}
    if isinstance(placement, Segmented):
        return {"dim": placement.dim, "sizes": placement.sizes}
    return placement.dim if isinstance(placement, Shard) else None


def _heard(told: Any) -> Layout:
    shape, ranks, hosts, placements = told
    return Layout(Mesh(shape, ranks, hosts), tuple(map(_heard_placement, placements)))


def _heard_placement(told: Any) -> Placement:
    if isinstance(told, dict):
        return Segmented(**told) if "sizes" in told else _StridedShard(**told)
    return Replicate() if told is None else Shard(told)


def merge(listings: Mapping[int, bytes]) -> list[Whole]:
    """Every rank's items as one list, sorted by name, each with both layouts.

    Args:
        listings: by rank, of ranks that list the same the first.

    Raises:
        DtypeError, ShapeError, AgreementError: two ranks say different things of one item.
        MissingTensorError: no rank names one of an item's layouts.
    """
    found: dict[str, tuple[int, Item]] = {}
    for rank, listed in sorted(listings.items()):
        told = json.loads(listed)
        layouts = [None, *map(_heard, told["layouts"])]
        for name, shape, dtype, *sides in told["items"]:
            src, dst = (layouts[0 if side is None else side + 1] for side in sides)
            item = Item(name, tuple(shape), getattr(torch, dtype), src, dst)
            first, known = found.get(name, (rank, item))
            found[name] = (first, _join(known, item, first, rank))
    return [_whole(item) for _, (_, item) in sorted(found.items())]


def _join(known: Item, item: Item, first: int, rank: int) -> Item:
    for kind, field in ((DtypeError, "dtype"), (ShapeError, "shape"), (AgreementError, "src"), (AgreementError, "dst")):
        one, other = getattr(known, field), getattr(item, field)
        if one is not None and other is not None and one != other:
            raise kind(
                f"rank {rank}: item {known.name!r} has {field} {other}, but rank {first} gave {one}; give the same everywhere"
            )
    return Item(known.name, known.shape, known.dtype, known.src or item.src, known.dst or item.dst)


def _whole(item: Item) -> Whole:
    if item.src is None or item.dst is None:
        side = "source" if item.src is None else "destination"
        raise MissingTensorError(
            f"item {item.name!r}: no rank names its {side} layout; prepare it on a rank that has it"
        )
    return Whole(item.name, item.shape, item.dtype, item.src, item.dst)
