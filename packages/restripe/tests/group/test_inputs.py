"""What callers pass, read by duck type, and the checks that one rank makes alone, in the order of the table of errors."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Hashable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from restripe import Item, Layout, Mesh, TensorRef
from restripe.errors import (
    InvalidPlacementError,
    LayoutError,
    MissingTensorError,
    ReshardError,
    ShapeError,
    UnsupportedPlacementError,
)
from restripe.group import inputs as arguments
from restripe.group.inputs import Whole, guard, layouts, looks, read

from ..helpers.views import pending

CPU = torch.device("cpu")
ROWS, COLUMNS = Layout(Mesh((2,), (0, 1)), (Shard(0),)), Layout(Mesh((2,), (0, 2)), (Shard(1),))
ITEM = Whole("layer.weight", (4, 6), torch.float32, ROWS, COLUMNS)


@pytest.mark.requirement("RS-UPSTREAM-2")
def test_tensors_are_read_by_duck_type() -> None:
    local = torch.zeros(2, 3)
    light = SimpleNamespace(shape=torch.Size((4, 3)), dtype=torch.float32, device=CPU, _local_tensor=local)
    late = SimpleNamespace(shape=(4, 3), dtype=torch.float32, device=CPU, to_local=lambda: local)
    idle = SimpleNamespace(shape=torch.Size((4, 3)), dtype=torch.float32, device=CPU, _local_tensor=None)
    for reference in (light, late, TensorRef(torch.Size((4, 3)), torch.float32, CPU, local)):
        assert read(reference) == (local, ((4, 3), torch.float32))
    assert read(idle) == (None, ((4, 3), torch.float32))
    assert read(local) == (local, (None, torch.float32))
    assert read(None) == (None, (None, None))


@pytest.mark.requirement("RS-EXACT-10")
def test_pending_collectives_are_settled_wherever_they_stand() -> None:
    local = torch.zeros(2, 3)
    reference = TensorRef(torch.Size((4, 3)), torch.float32, CPU, pending(local))
    for tensor in (pending(local), reference):
        settled, _ = read(tensor)
        assert type(settled) is torch.Tensor
        assert settled.data_ptr() == local.data_ptr()


@pytest.mark.parametrize("stranger", [[1.0, 2.0], "weights", 7])
def test_what_is_no_tensor_is_refused_like_one_that_is_missing(stranger: Any) -> None:
    with pytest.raises(MissingTensorError, match=r"expected a tensor.*got .*(list|str|int)"):
        read(stranger)


def test_a_tensor_ref_takes_plain_sizes_and_device_names() -> None:
    reference = TensorRef((4, 3), torch.float32, "cpu")  # type: ignore[arg-type]
    assert reference.shape == torch.Size((4, 3))
    assert reference.device == CPU
    assert reference._local_tensor is None


def test_two_tensor_refs_are_compared_without_touching_elements() -> None:
    one, other = (TensorRef(torch.Size((2,)), torch.float32, CPU, torch.zeros(2)) for _ in range(2))
    assert one != other
    assert len({one, other}) == 2


@pytest.mark.requirement("RS-ERROR-7")
def test_an_item_refuses_negative_sizes() -> None:
    assert Item("w", torch.Size((4, 0)), torch.int8).shape == (4, 0)
    with pytest.raises(ShapeError, match=r"'w'.*0 or more, got \(4, -1\)"):
        Item("w", (4, -1), torch.int8)


BAD_LAYOUTS = [
    ((Partial(), Shard(9)), UnsupportedPlacementError, "Partial"),
    ((Shard(0), Shard(2)), InvalidPlacementError, r"tensor dim 2, but the tensor has 2 dims"),
    ((Shard(0), Shard(-3)), InvalidPlacementError, r"tensor dim -3, but the tensor has 2 dims"),
    ((Shard(0),), LayoutError, "2 for mesh shape"),
]


@pytest.mark.requirement("RS-ERROR-1", "RS-ERROR-2", "RS-ERROR-3", "RS-ERROR-12")
@pytest.mark.parametrize(("placements", "kind", "text"), BAD_LAYOUTS)
@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_bad_layout_names_its_side_and_what_is_wrong(
    placements: tuple[Placement, ...], kind: type[ReshardError], text: str, side: str
) -> None:
    good = (Replicate(), Shard(1))
    both = [placements, good] if side == "source" else [good, placements]
    with pytest.raises(kind, match=rf"{side}.*{text}"):
        layouts([[[0, 1], [2, 3]]] * 2, both, (4, 6), 4)


@pytest.mark.requirement("RS-ERROR-3", "RS-LAYOUT-1")
@pytest.mark.parametrize("mesh", [[0, 4], [1, 1], [-1, 0], [0.5, 1.0], "ranks"])
def test_a_bad_mesh_names_its_side(mesh: Any) -> None:
    with pytest.raises(LayoutError, match="destination"):
        layouts([[0, 1], mesh], [(Shard(0),)] * 2, (4,), 4)


def test_placements_outside_a_tuple_are_a_layout_error() -> None:
    with pytest.raises(LayoutError, match=r"source.*one placement a mesh dim.*Shard"):
        layouts([[0, 1], [0, 1]], [Shard(0), (Shard(0),)], (4,), 4)  # type: ignore[list-item]


@pytest.mark.requirement("RS-ERROR-9")
def test_placements_are_refused_before_meshes_on_either_side() -> None:
    with pytest.raises(UnsupportedPlacementError):
        layouts([[0, 9], [0, 1]], [(Shard(5),), (Partial(),)], (4,), 4)
    with pytest.raises(InvalidPlacementError):
        layouts([[0, 9], [0, 1]], [(Shard(0),), (Shard(5),)], (4,), 4)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"shape": (4, 7)},
        {"dtype": torch.half},
        {"src": COLUMNS},
        {"dst": ROWS},
    ],
)
def test_items_are_one_where_all_that_they_say_is(change: dict[str, Any]) -> None:
    same = Whole(ITEM.name, ITEM.shape, ITEM.dtype, Layout(Mesh((2,), (0, 1)), (Shard(0),)), COLUMNS)
    assert same == ITEM
    assert hash(same) == hash(ITEM)
    assert replace(same, **change) != ITEM


def test_an_item_takes_nothing_that_this_process_computed_to_another() -> None:
    there = copy.copy(ITEM)  # which makes what pickle would
    assert set(vars(there)) == {"name", "shape", "dtype", "src", "dst"}
    assert there == ITEM


WAVE = torch.zeros(4, 6, dtype=torch.complex64)
UNLIKE = [  # in sizes, strides, dtype, device, and what is put off
    torch.zeros(4, 6),
    torch.zeros(4, 7),
    torch.zeros(4),
    torch.zeros(6, 4).t(),
    torch.zeros(1, 6).expand(4, 6),
    torch.zeros(4, 6, dtype=torch.int32),
    torch.zeros(4, 6, device="meta"),
    torch._neg_view(torch.zeros(4, 6)),
    WAVE,
    WAVE.conj(),
]


def test_tensors_that_are_bound_alike_look_alike() -> None:
    assert looked(UNLIKE[0]) == looked(torch.ones(4, 6)) == looked(torch.zeros(9, 6)[5:])
    assert len({looked(one) for one in [None, *UNLIKE]}) == len(UNLIKE) + 1


@pytest.fixture(params=[True, False], ids=["torch's guards", "none"])
def guards(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what torch's compiler has, which it promises nobody, and without."""
    if not request.param:
        monkeypatch.setattr(arguments, "TensorGuards", None)


@pytest.mark.usefixtures("guards")
def test_a_guard_lets_tensors_pass_that_look_alike_and_no_others() -> None:
    for one in UNLIKE:
        passes = guard([None, one, torch.zeros(3)])
        assert [passes(other, torch.ones(3)) for other in UNLIKE] == [other is one for other in UNLIKE]
        assert not passes(one, torch.zeros(4))
    assert guard([UNLIKE[0]])(torch.zeros(9, 6)[5:])
    assert guard([None, None])()
    (one, other), proxy = (torch.zeros(3), torch.zeros(3)), weakref.proxy(UNLIKE[0])
    for given in ([one, one], [one, other], [proxy]):
        assert guard(given)(*given)
    assert not guard([one, one])(one, UNLIKE[0])


@pytest.mark.usefixtures("guards")
def test_a_guard_keeps_no_tensor() -> None:
    tensor = torch.zeros(3)
    passes, gone = guard([tensor]), weakref.ref(tensor)
    del tensor
    assert gone() is None
    assert passes(torch.zeros(3))


def looked(tensor: torch.Tensor | None) -> tuple[Hashable, ...] | None:
    """How a tensor looks, but for where it lies."""
    (look,) = looks([tensor])
    return None if look is None else look[1:]


def test_only_so_many_kinds_of_references_are_kept() -> None:
    for number in range(3 * arguments.KINDS):
        kind = type(f"Reference{number}", (SimpleNamespace,), {})
        local, told = read(kind(_local_tensor=torch.zeros(2), shape=(2,), dtype=torch.float32))
        assert local is not None
        assert told == ((2,), torch.float32)
    assert len(arguments._references) <= arguments.KINDS
