"""Agreement: the small record of a call that ranks exchange, and the errors that follow where records differ."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from restripe import errors
from restripe.errors import PRECEDENCE, AgreementError, DtypeError, MissingTensorError, ReshardError, ShapeError
from restripe.group.inputs import Item, ResolvedItem
from restripe.layout.mesh import Layout, Mesh, short
from restripe.layout.segmented import Segmented

PLANNER_VERSION = 3  # raised when the same arguments plan otherwise than before
CLEAR_RECORD = b'{"call": {"call": "clear"}}'
SHOWN = 3  # items of a submission whose dtypes, shapes and layouts an error shows
_DIGEST = re.compile(r", digest [0-9a-f]{32}")


class CallSignature(NamedTuple):
    """The content of a call as text: two ranks with equal signatures make the same plans.

    Each field shows its first values, and ends with a digest of all where it does not show all.
    """

    dtype: str
    shape: str
    layouts: str

    @classmethod
    def of(cls, items: Sequence[ResolvedItem]) -> CallSignature:
        """Return the signature of a submission of these items, names included."""
        shown = [f"{_show_layout(item.src)} to {_show_layout(item.dst)}" for item in items[:SHOWN]]
        digest = _digest(f"{item.name!r} {_spell(item.src)} {_spell(item.dst)}" for item in items)
        return cls(
            dtype=_show([str(item.dtype) for item in items]),
            shape=_show([str(item.shape) for item in items]),
            layouts=f"{_count(items)}{', '.join(shown)}, digest {digest}",
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields of a record of a call with this signature."""
        return {"call": "reshard", "dtype": self.dtype, "shape": self.shape, "layouts": self.layouts}


def _show(values: list[str]) -> str:
    """Return a single value as it is; the first of several, with a digest of all."""
    if len(values) == 1:
        return values[0]
    return f"{_count(values)}{', '.join(values[:SHOWN])}, digest {_digest(values)}"


def _count(values: Sequence[Any]) -> str:
    """Return how many values there are, before the first of them; nothing for a single one."""
    return (
        ""
        if len(values) == 1
        else f"{len(values)} tensors: "
        if len(values) <= SHOWN
        else f"{len(values)} tensors, the first: "
    )


def _show_layout(layout: Layout) -> str:
    return f"{layout.mesh} {short(layout.placements)}"


def _spell(layout: Layout) -> str:
    return f"{layout.mesh.digest} {layout.placements}"


def _digest(parts: Iterable[str]) -> str:
    return blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def make_record(fault: ReshardError | None, fields: dict[str, Any], number: int, staging_bytes: int) -> bytes:
    """Return this rank's record of its call of this number: its fault, or the call that it is about to make."""
    if fault is not None:
        return json.dumps({"fault": [type(fault).__name__, str(fault)]}).encode()
    call = {**fields, "call number": number, "staging budget": staging_bytes, "planner": PLANNER_VERSION}
    return json.dumps({"call": call}).encode()


def _calls_of(records: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return each rank's call; where ranks hold faults, raise the one that stands first in the table of errors."""
    decoded = [json.loads(record) for record in records]
    faults = [(getattr(errors, record["fault"][0]), record["fault"][1]) for record in decoded if "fault" in record]
    if faults:
        kind, text = min(faults, key=lambda fault: PRECEDENCE.index(fault[0]))
        raise kind(text)
    return [record["call"] for record in decoded]


def compare_records(records: Sequence[bytes]) -> list[dict[str, Any]]:
    """Return each rank's call. Raise, on every rank alike, where a rank holds a fault or the calls differ.

    Items are not compared: each rank lists those that it knows. Where nothing differs but dtypes or shapes, that is the
    error; else AgreementError.
    """
    calls = _calls_of(records)
    reference = calls[0]
    differing = [
        name for name in reference if name != "items" and any(call.get(name) != reference[name] for call in calls)
    ]
    if not differing:
        return calls
    field = differing[0]
    if field == "call":  # two different calls have hardly a field in common
        differing = [field]
    kind = {"dtype": DtypeError, "shape": ShapeError}[field] if set(differing) <= {"dtype", "shape"} else AgreementError
    rank = next(rank for rank, call in enumerate(calls) if call.get(field) != reference[field])
    expected, actual = _show_difference(reference[field], calls[rank].get(field))
    raise kind(
        f"rank {rank} calls with another {' and '.join(differing)}: expected {field} {expected} as on rank 0, got {actual}; "
        "every rank of a group must make the same calls in the same order, clears included"
    )


def _show_difference(expected: Any, actual: Any) -> tuple[str, str]:
    """Return two values as text, without digests where they differ without them."""
    texts = str(expected), str(actual)
    plain = _DIGEST.sub("", texts[0]), _DIGEST.sub("", texts[1])
    return texts if plain[0] == plain[1] else plain


def list_items(items: Sequence[Item]) -> bytes:
    """Return the items that this rank knows, as it sends them to the others; each layout once, since meshes are long."""
    layouts: dict[Layout, int] = {}
    lines = [
        [item.name, item.shape, str(item.dtype).removeprefix("torch.")]
        + [None if side is None else layouts.setdefault(side, len(layouts)) for side in (item.src, item.dst)]
        for item in items
    ]
    return json.dumps({"layouts": [_encode_layout(layout) for layout in layouts], "items": lines}).encode()


def prepare_fields(listing: bytes, *, graph: bool) -> dict[str, Any]:
    """Return the fields of a record of a call that prepares the listed items, for a CUDA graph or not."""
    return {"call": "prepare", "graph": graph, "items": blake2b(listing, digest_size=16).hexdigest()}


def first_ranks(calls: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return the first rank with each digest of items; it sends its list for all that have the same."""
    return {call["items"]: rank for rank, call in reversed(list(enumerate(calls)))}


def _encode_layout(layout: Layout) -> Any:
    mesh, placements = layout.mesh, layout.placements
    return [mesh.shape, mesh.ranks, mesh.hosts, [_encode_placement(placement) for placement in placements]]


def _encode_placement(placement: Placement) -> Any:
    if isinstance(placement, _StridedShard):
        return {"dim": placement.dim, "split_factor": int(placement.split_factor)}
    if isinstance(placement, Segmented):
        return {"dim": placement.dim, "sizes": placement.sizes}
    return placement.dim if isinstance(placement, Shard) else None


def _decode_layout(encoded: Any) -> Layout:
    shape, ranks, hosts, placements = encoded
    return Layout(Mesh(shape, ranks, hosts), tuple(map(_decode_placement, placements)))


def _decode_placement(encoded: Any) -> Placement:
    if isinstance(encoded, dict):
        return Segmented(**encoded) if "sizes" in encoded else _StridedShard(**encoded)
    return Replicate() if encoded is None else Shard(encoded)


def merge_listings(listings: Mapping[int, bytes]) -> list[ResolvedItem]:
    """Return every rank's items as one list, sorted by name, each with both layouts.

    Args:
        listings: by rank; of ranks with equal lists the first one's.

    Raises:
        DtypeError, ShapeError, AgreementError: two ranks say different things of one item.
        MissingTensorError: no rank names one of an item's layouts.
    """
    merged: dict[str, tuple[int, Item]] = {}
    for rank, listing in sorted(listings.items()):
        decoded = json.loads(listing)
        layouts = [None, *map(_decode_layout, decoded["layouts"])]
        for name, shape, dtype, *sides in decoded["items"]:
            src, dst = (layouts[0 if side is None else side + 1] for side in sides)
            item = Item(name, tuple(shape), getattr(torch, dtype), src, dst)
            first_rank, earlier = merged.get(name, (rank, item))
            merged[name] = (first_rank, _merge_items(earlier, item, first_rank, rank))
    return [_resolve(item) for _, (_, item) in sorted(merged.items())]


def _merge_items(earlier: Item, item: Item, first_rank: int, rank: int) -> Item:
    for kind, field in ((DtypeError, "dtype"), (ShapeError, "shape"), (AgreementError, "src"), (AgreementError, "dst")):
        expected, actual = getattr(earlier, field), getattr(item, field)
        if expected is not None and actual is not None and expected != actual:
            raise kind(
                f"rank {rank}: item {earlier.name!r} has {field} {actual}, but rank {first_rank} gave {expected}; "
                "give the same everywhere"
            )
    return Item(earlier.name, earlier.shape, earlier.dtype, earlier.src or item.src, earlier.dst or item.dst)


def _resolve(item: Item) -> ResolvedItem:
    if item.src is None or item.dst is None:
        side = "source" if item.src is None else "destination"
        raise MissingTensorError(
            f"item {item.name!r}: no rank names its {side} layout; prepare it on a rank that has it"
        )
    return ResolvedItem(item.name, item.shape, item.dtype, item.src, item.dst)
