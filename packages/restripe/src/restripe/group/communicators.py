"""The communicators that restripe makes over one base communicator, and their release."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from restripe.execution.launch import Endpoints
from restripe.execution.streams import SideStream, streams_of
from restripe.layout.mesh import Layout, Mesh, replica_groups
from restripe.transport.address_adapter import AddressAdapter, addressed
from restripe.transport.protocol import AddressTransport, Communicator

#: Local copies of more bytes go to a second stream. Measured on an H200 (docs/performance.md): a GPU copies fewer in less
#: time than the host needs to enqueue what a second stream takes.
SIDE_STREAM_BYTES = 16 * 2**20


class Communicators:
    """A base communicator and those made from it by split.

    Args:
        base: the communicator that messages go through.
        owned: whether restripe made it, and so releases it.
        side_stream_bytes: local copies of more bytes go to a second stream.
    """

    def __init__(self, base: Communicator, *, owned: bool, side_stream_bytes: int = SIDE_STREAM_BYTES) -> None:
        self.base = base
        self.order = object()  # stands for these communicators in the order of a device's calls
        self.streams = streams_of(base.device)
        self._messages = addressed(base)
        self._side_stream = None
        if self.streams is not None and not isinstance(self._messages, AddressAdapter):
            self._side_stream = SideStream(self.streams, base.device, side_stream_bytes)
        self._owned: list[Communicator] = [base] if owned else []
        self._replicas: dict[tuple[Mesh, tuple[int, ...]], AddressTransport | None] = {}

    @property
    def live(self) -> int:
        """The number of communicators that restripe made and has not released."""
        return len(self._owned)

    def has_split(self, dst: Layout) -> bool:
        """Return whether the layout's replica groups have been split."""
        return (dst.mesh, dst.replicating) in self._replicas

    def endpoints(self, splits: Sequence[Layout]) -> Endpoints:
        """Return what a program goes over; splits the replica groups of these layouts. Collective, also for ranks that only send."""
        replicas = [self.replicas(layout) for layout in splits]
        return Endpoints(self._messages, self.base.device, replicas, self._side_stream)

    def replicas(self, dst: Layout) -> AddressTransport | None:
        """Return the communicator of this rank's replica group; one collective split makes those of all groups.

        Ranks outside every group share one leftover color, since some releases of NCCL's Python binding hang on ranks
        without a color; it is kept to be released like the others.
        """
        key = (dst.mesh, dst.replicating)
        if key not in self._replicas:
            color, index = _color_and_index(replica_groups(dst), self.base.rank)
            communicator = self.base.split(color, index)
            if communicator is not None:
                self._owned.append(communicator)
            self._replicas[key] = None if communicator is None else addressed(communicator)
        return self._replicas[key]

    def for_graph(self) -> Communicators:
        """Make communicators over the same ranks for a CUDA graph, where a second stream costs the host nothing. Collective."""
        base = self.base.split(0, self.base.rank)
        if base is None:
            raise RuntimeError(f"rank {self.base.rank}: the transport's split gave no communicator for color 0")
        return Communicators(base, owned=True, side_stream_bytes=0)

    def disown(self) -> list[Communicator]:
        """Hand over the communicators that restripe made, the last first, to be released by the caller."""
        owned, self._owned = self._owned, []
        self._replicas.clear()
        return owned[::-1]


def release_all(communicators: Iterable[Communicators], *, waiting: bool) -> None:
    """Release what these own, in their order; collective where it waits for the other ranks.

    After a failure the others are aborted without waiting; the first failure is raised at the end.
    """
    failure: BaseException | None = None
    for communicator in [owned for each in communicators for owned in each.disown()]:
        try:
            _release(communicator, waiting=waiting and failure is None)
        except BaseException as error:  # noqa: BLE001  (raised below)
            failure = failure or error
    if failure is not None:
        raise failure


def _release(communicator: Communicator, *, waiting: bool) -> None:
    if not waiting:
        communicator.abort()
        return
    try:
        communicator.finalize()
    except BaseException:
        with suppress(Exception):  # the failure of finalize is the one to raise
            communicator.abort()
        raise
    communicator.destroy()


def _color_and_index(groups: Sequence[Sequence[int]], rank: int) -> tuple[int, int]:
    """Return the number of the rank's group and its index there; the leftover color where it is in none."""
    for color, members in enumerate(groups):
        if rank in members:
            return color, members.index(rank)
    return len(groups), 0
