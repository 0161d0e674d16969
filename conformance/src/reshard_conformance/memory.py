"""How many bytes of tensors a call allocates at its peak, seen from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

__all__ = ["DeviceMeter", "Meter", "unmetered"]


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Follows the storages that torch operations of this thread make while it is entered; `peak` is in bytes.

    Memory that is not a tensor's (bytes objects, a transport's own buffers) is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.peak = 0
        self.known: dict[int, Known] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        given = {id_of(storage) for storage in storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        made = [storage for storage in storages(result) if id_of(storage) not in given]
        if made:
            self.count(made)
        return result

    def count(self, made: Sequence[torch.UntypedStorage]) -> None:
        """Forget what was freed, add what is new, and keep the highest sum."""
        self.known = {key: storage for key, storage in self.known.items() if not storage.freed()}
        for storage in made:
            self.known[id_of(storage)] = Known(storage)
        self.peak = max(self.peak, sum(storage.size for storage in self.known.values()))


class DeviceMeter:
    """Counts what the caching allocator of a CUDA device was asked for while it is entered; `peak` is in bytes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peak = 0

    def __enter__(self) -> Self:
        torch.cuda.synchronize(self.device)
        torch.empty(1, device=self.device)  # takes back what was freed while another stream still used it
        torch.cuda.reset_peak_memory_stats(self.device)
        self.before = self.asked("current")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.peak = self.asked("peak") - self.before

    def asked(self, moment: str) -> int:
        """Bytes before the allocator rounds them to blocks."""
        return int(torch.cuda.memory_stats(self.device)[f"requested_bytes.all.{moment}"])


def unmetered() -> AbstractContextManager[Any]:
    """Keep what is allocated inside from the count: a transport's own buffers are not the implementation's."""
    return _disable_current_modes()


class Known:
    """A storage that is followed without being kept alive; its id is not used again as long as it is known."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.size = storage.nbytes()
        self.freed: Callable[[], bool] = StorageWeakRef(storage).expired


def storages(tree: object) -> list[torch.UntypedStorage]:
    """The storages of all tensors in the tree, and those that are in it by themselves."""
    leaves = tree_leaves(tree)
    bare = [leaf for leaf in leaves if isinstance(leaf, torch.UntypedStorage)]
    return bare + [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def id_of(storage: torch.UntypedStorage) -> int:
    return int(storage._cdata)  # noqa: SLF001 - the only name of a storage apart from its memory, which may be none
