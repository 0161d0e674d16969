"""All ranks of a mapping at once: every plan of every tensor, checked, and what crosses in all.

Equal tensors repeat from layer to layer and from stage to stage, so each distinct one is planned once: a pair of layouts, a
shape, and a turn. A plan knows ranks by their order and by who is the same alone, and hosts by which are the same, so pairs
of layouts that differ only in which ranks stand where, in the same order, count as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from restripe.analysis.mapping import Move
from restripe.analysis.totals import Totals
from restripe.analysis.traffic import PlanFaultError, Traffic, plans, relabelled, traffic
from restripe.layout.mesh import Host, Layout, Mesh
from restripe.planning.balance import turns

Key = tuple[Layout, Layout, tuple[int, ...], int]


class Simulation:
    """The traffic of many tensors; what was planned once is kept."""

    def __init__(self) -> None:
        self._known: dict[Key, Traffic] = {}
        self._orders: dict[tuple[Layout, Layout], tuple[Layout, Layout, dict[int, int]]] = {}

    @property
    def distinct(self) -> int:
        """How many tensors were planned, each by all ranks of its meshes."""
        return len(self._known)

    def traffic(self, move: Move, turn: int) -> Traffic:
        """The checked traffic of one tensor; `turn` is its place in the submission."""
        pair = move.src, move.dst
        if pair not in self._orders:
            self._orders[pair] = ordered(*pair)
        src, dst, names = self._orders[pair]
        key = src, dst, move.shape, turn
        if key not in self._known:
            try:
                self._known[key] = traffic(plans(*key))
            except PlanFaultError as error:
                raise PlanFaultError(f"tensor {move.name!r}, ranks by their order in both meshes: {error}") from error
        return relabelled(self._known[key], names)


def ordered(src: Layout, dst: Layout) -> tuple[Layout, Layout, dict[int, int]]:
    """The layouts with every rank replaced by its place among all of them in rising order, and the ranks by place.

    Hosts are replaced by their place among all of them, in the order in which the meshes name them.
    """
    ranks = sorted({*src.mesh.ranks, *dst.mesh.ranks})
    place = {rank: number for number, rank in enumerate(ranks)}
    hosts: dict[Host, int] = {}

    def renamed(layout: Layout) -> Layout:
        mesh = layout.mesh
        on = None if mesh.hosts is None else tuple(hosts.setdefault(host, len(hosts)) for host in mesh.hosts)
        return Layout(Mesh(mesh.shape, tuple(place[rank] for rank in mesh.ranks), on), layout.placements)

    return renamed(src), renamed(dst), dict(enumerate(ranks))


def simulate(moves: Iterable[Move]) -> dict[str, Totals]:
    """The totals of one submission by class of parameters, and of all of them under the name `all`.

    Raises:
        PlanFaultError: plans that do not fit together; names the tensor.
    """
    simulation = Simulation()
    whole = Totals()
    kinds: dict[str, Totals] = {}
    submission = list(moves)
    for turn, move in zip(turns(submission), submission, strict=True):
        before = simulation.distinct
        found = simulation.traffic(move, turn)
        for totals in (kinds.setdefault(move.kind, Totals()), whole):
            totals.add(move, found)
            totals.distinct += simulation.distinct - before
    return {**kinds, "all": whole}
