"""Simulation of a model's move on all ranks: the checked plans of every tensor, and the bytes that cross in all.

Like tensors repeat from layer to layer and from stage to stage, so each distinct combination of two layouts, a shape and a
rotation is planned once. A plan depends on the order of the ranks and on which ranks both meshes share, not on their numbers,
and on which ranks share a host. So pairs of layouts whose ranks differ by an order-preserving renumbering count as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from restripe.analysis.mapping import Move
from restripe.analysis.totals import Totals
from restripe.analysis.traffic import PlanFaultError, Traffic, checked_traffic, plan_all_ranks, rename_ranks
from restripe.layout.mesh import Host, Layout, Mesh
from restripe.planning.balance import rotations

Key = tuple[Layout, Layout, tuple[int, ...], int]


class Simulation:
    """The traffic of many tensors; each distinct tensor is planned once."""

    def __init__(self) -> None:
        self._traffic: dict[Key, Traffic] = {}
        self._renumbered: dict[tuple[Layout, Layout], tuple[Layout, Layout, dict[int, int]]] = {}

    @property
    def distinct(self) -> int:
        """The number of distinct tensors that were planned, each on all ranks of its meshes."""
        return len(self._traffic)

    def traffic(self, move: Move, rotation: int) -> Traffic:
        """Return the checked traffic of a tensor; `rotation` is the round-robin offset of its holders."""
        pair = move.src, move.dst
        if pair not in self._renumbered:
            self._renumbered[pair] = renumber_ranks(*pair)
        src, dst, original_ranks = self._renumbered[pair]
        key = src, dst, move.shape, rotation
        if key not in self._traffic:
            try:
                self._traffic[key] = checked_traffic(plan_all_ranks(*key))
            except PlanFaultError as error:
                raise PlanFaultError(f"tensor {move.name!r}, ranks by their order in both meshes: {error}") from error
        return rename_ranks(self._traffic[key], original_ranks)


def renumber_ranks(src: Layout, dst: Layout) -> tuple[Layout, Layout, dict[int, int]]:
    """Return both layouts with their ranks numbered from 0 in rising order, and the original ranks by number.

    Hosts are numbered from 0 in the order in which the meshes name them.
    """
    ranks = sorted({*src.mesh.ranks, *dst.mesh.ranks})
    numbers = {rank: number for number, rank in enumerate(ranks)}
    hosts: dict[Host, int] = {}

    def renumber(layout: Layout) -> Layout:
        mesh = layout.mesh
        host_numbers = None if mesh.hosts is None else tuple(hosts.setdefault(host, len(hosts)) for host in mesh.hosts)
        return Layout(Mesh(mesh.shape, tuple(numbers[rank] for rank in mesh.ranks), host_numbers), layout.placements)

    return renumber(src), renumber(dst), dict(enumerate(ranks))


def simulate(moves: Iterable[Move]) -> dict[str, Totals]:
    """Return the totals of one submission by class of parameters, and of the whole submission under the name `all`.

    Raises:
        PlanFaultError: plans do not fit together; the text names the tensor.
    """
    simulation = Simulation()
    whole = Totals()
    kinds: dict[str, Totals] = {}
    submission = list(moves)
    for rotation, move in zip(rotations(submission), submission, strict=True):
        before = simulation.distinct
        traffic = simulation.traffic(move, rotation)
        for totals in (kinds.setdefault(move.kind, Totals()), whole):
            totals.add(move, traffic)
            totals.distinct += simulation.distinct - before
    return {**kinds, "all": whole}
