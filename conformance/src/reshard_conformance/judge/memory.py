"""The peak of the bytes of tensors that a call allocates, measured from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

__all__ = ["AllocationMeter", "DeviceMeter", "unmetered"]


class AllocationMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Follows the storages that torch operations of this thread make while it is entered; `peak` is in bytes.

    Memory that is not a tensor's (bytes objects, a transport's own buffers) is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.peak = 0
        self.tracked: dict[int, TrackedStorage] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        old_ids = {storage_id(storage) for storage in storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        new_storages = [storage for storage in storages(result) if storage_id(storage) not in old_ids]
        if new_storages:
            self.count(new_storages)
        return result

    def count(self, new_storages: Sequence[torch.UntypedStorage]) -> None:
        """Forget freed storages, add the new ones, and update the peak."""
        self.tracked = {key: storage for key, storage in self.tracked.items() if not storage.is_freed()}
        for storage in new_storages:
            self.tracked[storage_id(storage)] = TrackedStorage(storage)
        self.peak = max(self.peak, sum(storage.size for storage in self.tracked.values()))


class DeviceMeter:
    """Measures the bytes requested from the caching allocator of a CUDA device while it is entered; `peak` is in bytes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peak = 0

    def __enter__(self) -> Self:
        torch.cuda.synchronize(self.device)
        torch.empty(1, device=self.device)  # takes back what was freed while another stream still used it
        torch.cuda.reset_peak_memory_stats(self.device)
        self.before = self.requested_bytes("current")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.peak = self.requested_bytes("peak") - self.before

    def requested_bytes(self, moment: str) -> int:
        """Return the bytes before the allocator rounds them to blocks."""
        return int(torch.cuda.memory_stats(self.device)[f"requested_bytes.all.{moment}"])


def unmetered() -> AbstractContextManager[Any]:
    """Suspend the meters: a transport's own buffers are not the implementation's."""
    return _disable_current_modes()


class TrackedStorage:
    """A storage that is followed without being kept alive; its id is not reused as long as it is tracked."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.size = storage.nbytes()
        self.is_freed: Callable[[], bool] = StorageWeakRef(storage).expired


def storages(tree: object) -> list[torch.UntypedStorage]:
    """Return the storages of all tensors in the tree, and those that are in it by themselves."""
    leaves = tree_leaves(tree)
    bare = [leaf for leaf in leaves if isinstance(leaf, torch.UntypedStorage)]
    return bare + [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def storage_id(storage: torch.UntypedStorage) -> int:
    return int(storage._cdata)  # noqa: SLF001 - a storage has no other id; its memory may be none
