"""restripe under test: the drop-in for one tensor, a prepared refit for many."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import restripe
from reshard_conformance.contract import (
    Claims,
    Communicator,
    Group,
    Item,
    Level,
    MeshReference,
    Placements,
    Profile,
    Stream,
    TensorReference,
    Work,
)
from restripe import errors
from restripe.group.registry import state
from restripe.xferdtensor_python import clear_xferdtensor_python_caches, xferdtensor_python_impl

KINDS: dict[type[BaseException], str] = {
    errors.UnsupportedPlacementError: "placement",
    errors.InvalidPlacementError: "placement",
    errors.LayoutError: "layout",
    errors.MissingTensorError: "missing",
    errors.DeviceError: "device",
    errors.DtypeError: "dtype",
    errors.ShapeError: "shape",
    errors.AliasingError: "aliasing",
    errors.AgreementError: "agreement",
    errors.PeerTimeoutError: "timeout",
}


class Carried:
    """A group known by its communicator alone (nccl4py's, if it has one), with the check mode that restripe reads from it."""

    def __init__(self, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        self.nccl_communicator = getattr(group, "nccl_communicator", None)
        self.communicator: Communicator | None = None if self.nccl_communicator is not None else group.communicator
        self.check: str | None = None


class Restripe:
    """The adapter. Where neither the trace nor a check mode asks for more, a torch process group is passed on as it is."""

    name = "restripe"
    version = restripe.__version__
    claims = Claims(Level.L3, frozenset(Profile) - {Profile.FAULTS})

    def __init__(self) -> None:
        self._carried: weakref.WeakKeyDictionary[Group, Carried] = weakref.WeakKeyDictionary()

    def reshard(
        self,
        src_tensor: TensorReference | None,
        src_mesh: MeshReference,
        src_placement: Placements,
        dst_tensor: TensorReference | None,
        dst_mesh: MeshReference,
        dst_placement: Placements,
        process_group: Group,
        stream: Stream | None = None,
    ) -> None:
        """Through the drop-in."""
        group = self._group(process_group)
        xferdtensor_python_impl(
            src_tensor, src_mesh, src_placement, dst_tensor, dst_mesh, dst_placement, group, stream=stream
        )

    def reshard_work(
        self,
        src_tensor: TensorReference | None,
        src_mesh: MeshReference,
        src_placement: Placements,
        dst_tensor: TensorReference | None,
        dst_mesh: MeshReference,
        dst_placement: Placements,
        process_group: Group,
        stream: Stream | None = None,
    ) -> Work:
        """Through `restripe.reshard`."""
        src_layout = restripe.Layout(restripe.Mesh.of(src_mesh), src_placement)
        dst_layout = restripe.Layout(restripe.Mesh.of(dst_mesh), dst_placement)
        group = self._group(process_group)
        return restripe.reshard(
            src_tensor, dst_tensor, group, src_layout=src_layout, dst_layout=dst_layout, stream=stream
        )

    def reshard_many(self, items: Sequence[Item], group: Group) -> None:
        """Through a prepared refit; each rank names only the sides that it has."""
        known, sources, destinations = [], {}, {}
        for name, src, src_mesh, src_placement, dst, dst_mesh, dst_placement in items:
            tensor = dst if src is None else src
            if tensor is None:
                continue
            src_layout = restripe.Layout(restripe.Mesh.of(src_mesh), src_placement)
            dst_layout = restripe.Layout(restripe.Mesh.of(dst_mesh), dst_placement)
            known.append(
                restripe.Item(
                    name,
                    tensor.shape,
                    tensor.dtype,
                    src=src_layout if group.rank in src_layout.mesh else None,
                    dst=dst_layout if group.rank in dst_layout.mesh else None,
                )
            )
            sources[name], destinations[name] = src, dst
        restripe.Resharder(self._group(group)).prepare(known).run(sources, destinations)

    def clear_caches(self, group: Group) -> None:
        """Clear what the group has, by either of its names."""
        for one in self._names(group):
            clear_xferdtensor_python_caches(one)

    def set_check(self, group: Group, mode: str) -> None:
        """From now on the group's calls carry the mode."""
        self._carry(group).check = mode

    def live_communicators(self, group: Group) -> int:
        """How many communicators restripe has made for the group and not released."""
        return sum(state(one).live for one in self._names(group))

    def error_kind(self, exception: BaseException) -> str | None:
        """The kind in cases of a restripe error."""
        return KINDS.get(type(exception))

    def _group(self, group: Group) -> Any:
        plain = getattr(group, "process_group", None)
        if plain is not None and not group.traced and group not in self._carried:
            return plain
        return self._carry(group)

    def _carry(self, group: Group) -> Carried:
        return self._carried.setdefault(group, Carried(group))

    def _names(self, group: Group) -> list[Any]:
        plain = getattr(group, "process_group", None)
        return [one for one in (plain, self._carried.get(group)) if one is not None]


implementation = Restripe()
