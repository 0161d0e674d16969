"""Inputs: tensors and layouts of several kinds read by duck type, and the errors of faulty ones in the table's order."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from restripe import Item, Layout, Mesh, TensorRef
from restripe.errors import (
    DtypeError,
    InvalidPlacementError,
    LayoutError,
    MissingTensorError,
    ReshardError,
    ShapeError,
    UnsupportedPlacementError,
)
from restripe.group.inputs import (
    OF_LAYOUT,
    LayoutInputs,
    ResolvedItem,
    layout_of,
    read_layouts,
    read_tensor,
    read_tensors,
    resolve_item,
)

from ..helpers.views import pending

CPU = torch.device("cpu")
ROWS, COLUMNS = Layout(Mesh((2,), (0, 1)), (Shard(0),)), Layout(Mesh((2,), (0, 2)), (Shard(1),))
ITEM = ResolvedItem("layer.weight", (4, 6), torch.float32, ROWS, COLUMNS)


@pytest.mark.requirement("RS-UPSTREAM-2")
def test_tensors_are_read_by_duck_type() -> None:
    local = torch.zeros(2, 3)
    light = SimpleNamespace(shape=torch.Size((4, 3)), dtype=torch.float32, device=CPU, _local_tensor=local)
    late = SimpleNamespace(shape=(4, 3), dtype=torch.float32, device=CPU, to_local=lambda: local)
    idle = SimpleNamespace(shape=torch.Size((4, 3)), dtype=torch.float32, device=CPU, _local_tensor=None)
    for reference in (light, late, TensorRef(torch.Size((4, 3)), torch.float32, CPU, local)):
        assert read_tensor(reference) == (local, ((4, 3), torch.float32))
    assert read_tensor(idle) == (None, ((4, 3), torch.float32))
    assert read_tensor(local) == (local, (None, torch.float32))
    assert read_tensor(None) == (None, (None, None))


@pytest.mark.requirement("RS-EXACT-10")
def test_pending_collectives_are_waited_for_in_tensors_and_in_references() -> None:
    local = torch.zeros(2, 3)
    reference = TensorRef(torch.Size((4, 3)), torch.float32, CPU, pending(local))
    for tensor in (pending(local), reference):
        read_local, _ = read_tensor(tensor)
        assert type(read_local) is torch.Tensor
        assert read_local.data_ptr() == local.data_ptr()


@pytest.mark.parametrize("value", [[1.0, 2.0], "weights", 7])
def test_a_value_that_is_no_tensor_is_refused_as_missing(value: Any) -> None:
    with pytest.raises(MissingTensorError, match=r"expected a tensor.*got .*(list|str|int)"):
        read_tensor(value)


def test_an_error_in_several_tensors_names_the_item() -> None:
    assert read_tensors([None, None], ["a"]) == ((None, None), ((None, None), (None, None)))
    with pytest.raises(MissingTensorError, match=r"^item 'b': expected a tensor"):
        read_tensors([None, None, None, "weights"], ["a", "b"])


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


def read_sides(
    meshes: Sequence[Any], placements: Sequence[Any], shape: tuple[int, ...], size: int
) -> tuple[Layout, Layout]:
    """Read the layouts of source and destination, in a group of so many ranks."""
    return read_layouts(LayoutInputs(meshes[0], placements[0], meshes[1], placements[1]), shape, None, size)


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
        read_sides([[[0, 1], [2, 3]]] * 2, both, (4, 6), 4)


@pytest.mark.requirement("RS-ERROR-3", "RS-LAYOUT-1")
@pytest.mark.parametrize("mesh", [[0, 4], [1, 1], [-1, 0], [0.5, 1.0], "ranks"])
def test_a_bad_mesh_names_its_side(mesh: Any) -> None:
    with pytest.raises(LayoutError, match="destination"):
        read_sides([[0, 1], mesh], [(Shard(0),)] * 2, (4,), 4)


def test_placements_outside_a_tuple_are_a_layout_error() -> None:
    with pytest.raises(LayoutError, match=r"source.*one placement a mesh dim.*Shard"):
        read_sides([[0, 1], [0, 1]], [Shard(0), (Shard(0),)], (4,), 4)


@pytest.mark.requirement("RS-ERROR-9")
def test_placements_are_refused_before_meshes_on_either_side() -> None:
    with pytest.raises(UnsupportedPlacementError):
        read_sides([[0, 9], [0, 1]], [(Shard(5),), (Partial(),)], (4,), 4)
    with pytest.raises(InvalidPlacementError):
        read_sides([[0, 9], [0, 1]], [(Shard(0),), (Shard(5),)], (4,), 4)


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
def test_items_are_equal_where_all_their_fields_are(change: dict[str, Any]) -> None:
    same = ResolvedItem(ITEM.name, ITEM.shape, ITEM.dtype, Layout(Mesh((2,), (0, 1)), (Shard(0),)), COLUMNS)
    assert same == ITEM
    assert hash(same) == hash(ITEM)
    assert replace(same, **change) != ITEM


def test_a_copy_of_an_item_has_its_fields_and_nothing_computed() -> None:
    copied = copy.copy(ITEM)  # by the same protocol as pickle
    assert set(vars(copied)) == {"name", "shape", "dtype", "src", "dst"}
    assert copied == ITEM


def test_a_layout_is_the_one_passed_or_a_dtensor_s_and_else_missing() -> None:
    assert layout_of(None, ROWS) == (ROWS, OF_LAYOUT)
    assert layout_of(torch.zeros(2), None) == (None, None)
    with pytest.raises(MissingTensorError, match=r"no layout of dst is known: pass dst_layout="):
        read_layouts(LayoutInputs(ROWS, OF_LAYOUT, None, None), (4, 6), None, 4)
    with pytest.raises(LayoutError, match=r"expected src_layout to be a restripe\.Layout, got 'rows'"):
        read_layouts(LayoutInputs("rows", OF_LAYOUT, None, None), (4, 6), None, 4)
    both = LayoutInputs(ROWS, OF_LAYOUT, COLUMNS.mesh, list(COLUMNS.placements))
    assert read_layouts(both, (4, 6), None, 4) == (ROWS, COLUMNS)


def test_the_item_of_a_call_has_its_shape_and_dtype_and_counts_shard_dims_from_0() -> None:
    inputs = LayoutInputs([0, 1], (Shard(-2),), [0, 2], (Shard(-1),))
    assert resolve_item(inputs, (4, 6), torch.float32, None, 3) == replace(ITEM, name="tensor")
    for shape, dtype, kind, text in (
        (None, torch.float32, MissingTensorError, "must pass shape="),
        ((4, 6), None, MissingTensorError, "must pass dtype="),
        ((4, 6), "float32", DtypeError, "a torch.dtype, got 'float32'"),
    ):
        with pytest.raises(kind, match=text):
            resolve_item(inputs, shape, dtype, None, 3)  # type: ignore[arg-type]
