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
from restripe.group.registry import state_of
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


class GroupHandle:
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
        self._group_handles: weakref.WeakKeyDictionary[Group, GroupHandle] = weakref.WeakKeyDictionary()

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
        prepared, sources, destinations = [], {}, {}
        for name, src, src_mesh, src_placement, dst, dst_mesh, dst_placement in items:
            tensor = dst if src is None else src
            if tensor is None:
                continue
            src_layout = restripe.Layout(restripe.Mesh.of(src_mesh), src_placement)
            dst_layout = restripe.Layout(restripe.Mesh.of(dst_mesh), dst_placement)
            prepared.append(
                restripe.Item(
                    name,
                    tensor.shape,
                    tensor.dtype,
                    src=src_layout if group.rank in src_layout.mesh else None,
                    dst=dst_layout if group.rank in dst_layout.mesh else None,
                )
            )
            sources[name], destinations[name] = src, dst
        restripe.Resharder(self._group(group)).prepare(prepared).run(sources, destinations)

    def clear_caches(self, group: Group) -> None:
        """Clear the caches of the group under each handle that restripe was given for it."""
        for handle in self._handles(group):
            clear_xferdtensor_python_caches(handle)

    def set_check(self, group: Group, mode: str) -> None:
        """Set the check mode of the group's later calls."""
        self._group_handle(group).check = mode

    def live_communicators(self, group: Group) -> int:
        """Return the number of communicators that restripe has made for the group and not released."""
        return sum(state_of(handle).live for handle in self._handles(group))

    def error_kind(self, exception: BaseException) -> str | None:
        """Return the kind of a restripe error, as cases name it."""
        return KINDS.get(type(exception))

    def _group(self, group: Group) -> Any:
        plain = getattr(group, "process_group", None)
        if plain is not None and not group.traced and group not in self._group_handles:
            return plain
        return self._group_handle(group)

    def _group_handle(self, group: Group) -> GroupHandle:
        return self._group_handles.setdefault(group, GroupHandle(group))

    def _handles(self, group: Group) -> list[Any]:
        plain = getattr(group, "process_group", None)
        return [handle for handle in (plain, self._group_handles.get(group)) if handle is not None]


implementation = Restripe()
