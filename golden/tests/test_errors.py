"""golden refuses bad calls on the faulty rank, by kind, before anything is sent or written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.distributed.tensor.placement_types import Partial, Replicate, Shard, _StridedShard

from reshard_golden import GoldenError, reshard

from .layouts import Mesh, Segmented, reference


class OtherShard(Shard):
    """A subclass means something else than Shard."""


@dataclass(frozen=True)
class Silent:
    """Rank 0 of two; a message would be a failure."""

    rank: int = 0
    size: int = 2

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def broadcast(self, buffer: torch.Tensor, root: int, stream: torch.cuda.Stream | None = None) -> None:
        raise AssertionError("a refused call sent something")


SHAPE = (4, 4)


def full(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, 7.0).to(dtype)


def good() -> dict[str, Any]:
    """A right call, as rank 0 makes it: rows of both ranks to rows of the same ranks in the other order."""
    return {
        "src_tensor": reference(SHAPE, torch.float32, full(2, 4)),
        "src_mesh": Mesh(torch.tensor([0, 1])),
        "src_placement": (Shard(0),),
        "dst_tensor": reference(SHAPE, torch.float32, full(2, 4)),
        "dst_mesh": Mesh(torch.tensor([1, 0])),
        "dst_placement": (Shard(0),),
    }


def tensor(local: torch.Tensor | None, shape: tuple[int, ...] = SHAPE, dtype: torch.dtype = torch.float32) -> Any:
    return reference(shape, dtype, local)


def overlapping() -> dict[str, Any]:
    buffer = full(3, 4)
    return {"src_tensor": tensor(buffer[:2]), "dst_tensor": tensor(buffer[1:])}


def misaligned() -> dict[str, Any]:
    """The first element of the destination begins in the middle of the source's last."""
    memory = bytearray(8 * 4 + 30)
    sides = (torch.frombuffer(memory, dtype=torch.float32, count=8, offset=offset) for offset in (0, 30))
    return {f"{side}_tensor": tensor(t.view(2, 4)) for side, t in zip(("src", "dst"), sides, strict=True)}


#: Defects in the order of the specification's table, each as what it changes in a right call.
DEFECTS: tuple[tuple[str, str, Callable[[], Mapping[str, Any]]], ...] = (
    ("partial", "placement", lambda: {"dst_placement": (Partial(),)}),
    ("subclass", "placement", lambda: {"src_placement": (OtherShard(0),)}),
    ("dim too large", "placement", lambda: {"src_placement": (Shard(2),)}),
    ("dim too small", "placement", lambda: {"dst_placement": (Shard(-3),)}),
    ("dim too large of a strided shard", "placement", lambda: {"src_placement": (_StridedShard(2, split_factor=2),)}),
    ("split factor 0", "placement", lambda: {"dst_placement": (_StridedShard(0, split_factor=0),)}),
    ("dim too small of segments", "placement", lambda: {"src_placement": (Segmented(-3, (4,)),)}),
    ("no segments", "placement", lambda: {"dst_placement": (Segmented(0, ()),)}),
    ("a segment below 0", "placement", lambda: {"dst_placement": (Segmented(0, (5, -1)),)}),
    ("dim cut before its segments", "placement", lambda: {"src_placement": (Shard(0), Segmented(-2, (1, 1)))}),
    ("too many placements", "layout", lambda: {"src_placement": (Shard(0), Replicate())}),
    ("duplicate rank", "layout", lambda: {"dst_mesh": Mesh(torch.tensor([0, 0]))}),
    ("rank out of range", "layout", lambda: {"src_mesh": Mesh(torch.tensor([0, 2]))}),
    ("negative rank", "layout", lambda: {"src_mesh": Mesh(torch.tensor([0, -1]))}),
    ("no shape", "missing", lambda: {"src_tensor": None, "dst_tensor": None}),
    ("source absent", "missing", lambda: {"src_tensor": None}),
    ("local absent", "missing", lambda: {"dst_tensor": tensor(None)}),
    ("not in the mesh", "missing", lambda: {"src_mesh": Mesh(torch.tensor([1]))}),
    ("device", "device", lambda: {"dst_tensor": tensor(full(2, 4).to("meta"))}),
    ("local dtype", "dtype", lambda: {"src_tensor": tensor(full(2, 4, dtype=torch.float16))}),
    (
        "sides' dtypes",
        "dtype",
        lambda: {"dst_tensor": tensor(full(2, 4, dtype=torch.int32), dtype=torch.int32)},
    ),
    ("local shape", "shape", lambda: {"dst_tensor": tensor(full(4, 2))}),
    ("sides' shapes", "shape", lambda: {"dst_tensor": tensor(full(2, 5), (4, 5))}),
    ("too short segments", "shape", lambda: {"src_placement": (Segmented(0, (1, 2)),)}),
    (
        "the peers' segments",
        "shape",
        lambda: {"dst_placement": (Segmented(-1, (4, 1)),), "dst_tensor": tensor(full(4, 2))},
    ),
    ("strided local shape", "shape", lambda: {"src_placement": (_StridedShard(0, split_factor=4),)}),
    ("shared elements", "aliasing", overlapping),
    ("half an element shared", "aliasing", misaligned),
    ("expanded destination", "aliasing", lambda: {"dst_tensor": tensor(full(1, 4).expand(2, 4))}),
)


@pytest.mark.parametrize(("kind", "change"), [pytest.param(k, c, id=name) for name, k, c in DEFECTS])
@pytest.mark.requirement("RS-ERROR-1", "RS-ERROR-2", "RS-ERROR-3", "RS-ERROR-4", "RS-ERROR-5", "RS-ERROR-6")
@pytest.mark.requirement("RS-ERROR-7", "RS-ERROR-8", "RS-ERROR-10", "RS-ERROR-12")
def test_a_bad_call_is_refused(kind: str, change: Callable[[], Mapping[str, Any]]) -> None:
    call = {**good(), **change()}
    destination = None if call["dst_tensor"] is None else call["dst_tensor"]._local_tensor
    before = None if destination is None else destination.clone()
    with pytest.raises(GoldenError, match=r"^rank 0, (source|destination): expected .*, got ") as caught:
        reshard(**call, process_group=Silent())
    assert caught.value.kind == kind
    if destination is not None and before is not None and before.device.type == "cpu":
        assert torch.equal(destination, before)


@pytest.mark.requirement("RS-ERROR-9")
def test_the_first_defect_of_the_table_wins() -> None:
    """Pairs of defects that touch different arguments: the kind is that of the earlier one, whichever side has it."""
    order = ("placement", "layout", "missing", "device", "dtype", "shape", "aliasing")
    seen = 0
    for name, first, change in DEFECTS:
        for rival, second, other in DEFECTS:
            changes = (change(), other())
            if rival == "no shape" and name.startswith("dim "):
                continue  # without a shape nobody knows the tensor's dims
            if order.index(first) < order.index(second) and not changes[0].keys() & changes[1].keys():
                seen += 1
                with pytest.raises(GoldenError) as caught:
                    reshard(**{**good(), **changes[0], **changes[1]}, process_group=Silent())
                assert caught.value.kind == first
    assert seen > 50


@pytest.mark.requirement("RS-ERROR-8")
def test_an_expanded_source_is_no_aliasing() -> None:
    call = {**good(), "src_tensor": tensor(full(1, 4).expand(2, 4))}
    with pytest.raises(AssertionError, match="sent something"):
        reshard(**call, process_group=Silent())
