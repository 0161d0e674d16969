"""The communicators that restripe makes over one base communicator, and how they end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from restripe.execution.streams import Aside, streams_of
from restripe.layout.mesh import Layout, Mesh, replica_groups
from restripe.transport.protocol import Communicator, takes_addresses

#: Bytes: a GPU copies fewer in less time than the host needs to enqueue what a second stream takes.
ASIDE = 16 * 2**20


class Links:
    """A base communicator and what was made from it.

    Args:
        base: the communicator that messages go through.
        owned: whether restripe made it, and so releases it.
        aside: up to how many bytes that stay on this rank are copied on the call's own stream, and not on a second one.
    """

    def __init__(self, base: Communicator, *, owned: bool, aside: int = ASIDE) -> None:
        self.base = base
        self.posting = takes_addresses(base)
        self.streams = streams_of(base.device)
        self.aside = None if self.streams is None else Aside(self.streams, base.device, aside)
        self._made: list[Communicator] = [base] if owned else []
        self._replicas: dict[tuple[Mesh, tuple[int, ...]], Communicator | None] = {}

    @property
    def live(self) -> int:
        """How many communicators restripe made and has not released."""
        return len(self._made)

    def known(self, dst: Layout) -> bool:
        """Whether the layout's replica groups were split before."""
        return (dst.mesh, dst.replicating) in self._replicas

    def replicas(self, dst: Layout) -> Communicator | None:
        """The communicator of this rank's replica group; one collective split makes those of all groups.

        Ranks outside every group share one leftover color, since some releases of NCCL's Python binding hang on ranks
        without a color; it is kept to be released like the others.
        """
        key = (dst.mesh, dst.replicating)
        try:
            return self._replicas[key]  # hashing a mesh takes long
        except KeyError:
            color, place = _seat(replica_groups(dst), self.base.rank)
            made = self._replicas[key] = self._keep(self.base.split(color, place))
            return made

    def twin(self) -> Links:
        """The same ranks over communicators of its own, for a CUDA graph: there a second stream costs the host nothing. Collective."""
        base = self.base.split(0, self.base.rank)
        if base is None:
            raise RuntimeError("a rank with a color has to get a communicator")
        return Links(base, owned=True, aside=0)

    def give_up(self) -> list[Communicator]:
        """What was made, last first; it is the caller's from now on."""
        made, self._made = self._made, []
        self._replicas.clear()
        return made[::-1]

    def _keep(self, made: Communicator | None) -> Communicator | None:
        self._made += [made] if made is not None else []
        return made


def release(every: Iterable[Links], *, waiting: bool) -> None:
    """Release what these made, in their order; collective where it waits for the other ranks.

    A failure keeps nothing from being released, but nobody is waited for any more; the first is raised at the end.
    """
    failure: BaseException | None = None
    for communicator in [made for links in every for made in links.give_up()]:
        try:
            _end(communicator, waiting=waiting and failure is None)
        except BaseException as error:  # noqa: BLE001  (raised below)
            failure = failure or error
    if failure is not None:
        raise failure


def _end(communicator: Communicator, *, waiting: bool) -> None:
    if not waiting:
        communicator.abort()
        return
    try:
        communicator.finalize()
    except BaseException:
        with suppress(Exception):  # what came first is what is told
            communicator.abort()
        raise
    communicator.destroy()


def _seat(groups: Sequence[Sequence[int]], rank: int) -> tuple[int, int]:
    """The rank's color and place: its group's number and its number there; the leftover color where it is in none."""
    for color, members in enumerate(groups):
        if rank in members:
            return color, members.index(rank)
    return len(groups), 0
