"""Meshes as callers pass them: of a class of their own, as tensors, arrays and lists, and changed in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from restripe import Mesh

Ranks = Any  # nested lists of ranks


class OwnMesh:
    """A mesh of a caller's own class: its ranks under either name."""

    def __init__(self, ranks: Any, name: str = "mesh") -> None:
        setattr(self, name, ranks)


def inference_tensor(ranks: Ranks) -> torch.Tensor:
    with torch.inference_mode():
        return torch.tensor(ranks)


def strided_tensor(ranks: Ranks) -> torch.Tensor:
    """Return the ranks as every second element of a larger tensor."""
    return torch.stack([torch.tensor(ranks), torch.full_like(torch.tensor(ranks), 9)], -1)[..., 0]


def nested_tuples(ranks: Ranks) -> Any:
    return tuple(map(nested_tuples, ranks)) if isinstance(ranks, list) else ranks


#: Kinds of meshes whose contents make their key, each made anew of nested lists of ranks.
MESH_KINDS: dict[str, Callable[[Ranks], Any]] = {
    "Mesh": Mesh.of,
    ".mesh tensor": lambda ranks: OwnMesh(torch.tensor(ranks)),
    "._mesh tensor": lambda ranks: OwnMesh(torch.tensor(ranks), "_mesh"),
    ".mesh int32 tensor": lambda ranks: OwnMesh(torch.tensor(ranks, dtype=torch.int32)),
    ".mesh array": lambda ranks: OwnMesh(np.array(ranks)),
    "._mesh array": lambda ranks: OwnMesh(np.array(ranks), "_mesh"),
    ".mesh lists": lambda ranks: OwnMesh(torch.tensor(ranks).tolist()),
    "._mesh tuples": lambda ranks: OwnMesh(nested_tuples(ranks), "_mesh"),
    "tensor": torch.tensor,
    "strided tensor": strided_tensor,
    "inference tensor": inference_tensor,
    "array": np.array,
    "lists": lambda ranks: torch.tensor(ranks).tolist(),
    "tuples": nested_tuples,
}


@dataclass
class ChangingMesh:
    """A mesh that stays the same object while its ranks change."""

    mesh_object: Any
    change: Callable[[Ranks], None]  # takes the ranks to hold from now on


def _written(name: str | None, make: Callable[[Ranks], Any], write: Callable[[Any, Ranks], None]) -> Any:
    def changing_mesh(ranks: Ranks) -> ChangingMesh:
        held = make(ranks)
        mesh_object = held if name is None else OwnMesh(held, name)
        return ChangingMesh(mesh_object, lambda later: write(held, later))

    return changing_mesh


def _copy(tensor: torch.Tensor, ranks: Ranks) -> None:
    tensor.copy_(torch.tensor(ranks))


def _copy_data(tensor: torch.Tensor, ranks: Ranks) -> None:
    tensor.data.copy_(torch.tensor(ranks))


def _write_elements(tensor: torch.Tensor, ranks: Ranks) -> None:
    for number, rank in enumerate(torch.tensor(ranks).flatten().tolist()):
        tensor.view(-1)[number] = rank


def _copy_in_inference_mode(tensor: torch.Tensor, ranks: Ranks) -> None:
    with torch.inference_mode():
        tensor.copy_(torch.tensor(ranks))


def _resize(tensor: torch.Tensor, ranks: Ranks) -> None:
    values = torch.tensor(ranks)
    tensor.resize_(values.shape).copy_(values)


def _set(tensor: torch.Tensor, ranks: Ranks) -> None:
    tensor.set_(torch.tensor(ranks))  # type: ignore[call-overload]  # torch types one of its overloads


def _set_data(tensor: torch.Tensor, ranks: Ranks) -> None:
    tensor.data = torch.tensor(ranks)


def _write_lists(lists: Any, ranks: Ranks) -> None:
    lists[:] = ranks


def _write_list_elements(lists: Any, ranks: Ranks) -> None:
    for number, rank in enumerate(ranks):
        if isinstance(rank, list):
            _write_list_elements(lists[number], rank)
        else:
            lists[number] = rank


def _write_array(array: Any, ranks: Ranks) -> None:
    array[...] = ranks


def _array_behind_tensor(name: str | None) -> Any:
    def changing_mesh(ranks: Ranks) -> ChangingMesh:
        array = np.array(ranks)
        tensor = torch.from_numpy(array)
        mesh_object = tensor if name is None else OwnMesh(tensor, name)
        return ChangingMesh(mesh_object, lambda later: _write_array(array, later))

    return changing_mesh


def _replaced(ranks: Ranks) -> ChangingMesh:
    mesh_object = OwnMesh(torch.tensor(ranks))
    return ChangingMesh(mesh_object, lambda later: setattr(mesh_object, "mesh", torch.tensor(later)))


#: Ways to change the ranks of a mesh in place, from some nested lists of ranks to others of the same shape.
CHANGING_MESHES: dict[str, Callable[[Ranks], ChangingMesh]] = {
    ".mesh copy_": _written("mesh", torch.tensor, _copy),
    "._mesh elements": _written("_mesh", torch.tensor, _write_elements),
    ".mesh .data": _written("mesh", torch.tensor, _copy_data),
    "._mesh .data": _written("_mesh", torch.tensor, _copy_data),
    ".mesh array": _written("mesh", np.array, _write_array),
    ".mesh array behind a tensor": _array_behind_tensor("mesh"),
    "array behind a tensor": _array_behind_tensor(None),
    ".mesh inference tensor": _written("mesh", inference_tensor, _copy_in_inference_mode),
    ".mesh strided tensor": _written("mesh", strided_tensor, _copy),
    ".mesh set_": _written("mesh", torch.tensor, _set),
    ".mesh .data replaced": _written("mesh", torch.tensor, _set_data),
    ".mesh resize_": _written("mesh", torch.tensor, _resize),
    ".mesh list elements": _written("mesh", lambda ranks: torch.tensor(ranks).tolist(), _write_list_elements),
    "._mesh lists": _written("_mesh", lambda ranks: torch.tensor(ranks).tolist(), _write_lists),
    "list elements": _written(None, lambda ranks: torch.tensor(ranks).tolist(), _write_list_elements),
    "tensor": _written(None, torch.tensor, _copy),
    "array": _written(None, np.array, _write_array),
    ".mesh replaced": _replaced,
}
#: Those that may change the shape of the mesh too.
RESHAPING = (".mesh set_", ".mesh .data replaced", ".mesh resize_", "._mesh lists", ".mesh replaced")
