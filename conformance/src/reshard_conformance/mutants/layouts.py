"""Mutants that read strided and segmented shards wrongly: chapter LAYOUT, profiles strided and segmented."""

from __future__ import annotations

from typing import Any

from torch.distributed.tensor.placement_types import _StridedShard

from reshard_conformance.mutants.calls import Kind, Layout, Runs
from reshard_conformance.mutants.plain import Plain, breaks


@breaks("RS-LAYOUT-10")
class Unstrided(Plain):
    """A strided shard is taken for a plain one."""

    def read_kind(self, placement: Any) -> Kind:
        return 1 if isinstance(placement, _StridedShard) else super().read_kind(placement)


@breaks("RS-LAYOUT-10")
class Backward(Plain):
    """The parts of a strided shard are put together last one first."""

    def cut(self, runs: Runs, layout: Layout, mesh_dim: int, index: int) -> Runs:
        found = super().cut(runs, layout, mesh_dim, index)
        return found[::-1] if isinstance(layout.kinds[mesh_dim], int) else found


@breaks("RS-LAYOUT-10")
class Turned(Plain):
    """Split factor and mesh dim are mixed up: parts as many as there are ranks, each cut by the factor."""

    def cut(self, runs: Runs, layout: Layout, mesh_dim: int, index: int) -> Runs:
        kind, size = layout.kinds[mesh_dim], layout.grid[mesh_dim]
        if isinstance(kind, tuple) or kind < size:
            return super().cut(runs, layout, mesh_dim, index)
        turned = layout._replace(kinds=(size,), grid=(kind,))
        return super().cut(runs, turned, 0, index)


@breaks("RS-LAYOUT-12")
class Runwise(Plain):
    """A shard after a strided one cuts each of its runs by itself, and not the list of them."""

    def cut(self, runs: Runs, layout: Layout, mesh_dim: int, index: int) -> Runs:
        cuts = [super(Runwise, self).cut([run], layout, mesh_dim, index) for run in runs]
        strided = any(isinstance(kind, int) and kind > 1 for kind in layout.kinds[:mesh_dim])
        return [run for cut in cuts for run in cut] if strided else super().cut(runs, layout, mesh_dim, index)


@breaks("RS-LAYOUT-13")
class Modular(Plain):
    """A shard dim out of range is counted on from the first dim."""

    def shard_dim(self, dim: int, ndim: int | None) -> int:
        return dim % ndim if ndim else super().shard_dim(dim, ndim)


@breaks("RS-LAYOUT-11")
class Seamless(Plain):
    """A segmented shard is taken for a plain one: the boundaries of segments are ignored."""

    def read_kind(self, placement: Any) -> Kind:
        kind = super().read_kind(placement)
        return kind if isinstance(kind, int) else 1


@breaks("RS-LAYOUT-11")
class Alike(Plain):
    """All segments are taken to be as long as the first, and the last one to be the rest."""

    def parts(self, kind: Kind, size: int) -> Runs:
        if isinstance(kind, int):
            return super().parts(kind, size)
        ends = [min(kind[0] * place, size) for place in range(len(kind))]
        return list(zip(ends, [*ends[1:], size], strict=True))


@breaks("RS-LAYOUT-14")
class Segmentwise(Plain):
    """A shard after a segmented one cuts each segment by itself, as that one does."""

    def cut(self, runs: Runs, layout: Layout, mesh_dim: int, index: int) -> Runs:
        dim, before = layout.dims[mesh_dim], zip(layout.kinds[:mesh_dim], layout.dims, strict=False)
        if not any(isinstance(kind, tuple) and other == dim for kind, other in before):
            return super().cut(runs, layout, mesh_dim, index)
        cuts = [super(Segmentwise, self).cut([run], layout, mesh_dim, index) for run in runs]
        return [run for cut in cuts for run in cut]


@breaks("RS-LAYOUT-15")
class Credulous(Plain):
    """Segments that do not add up are taken as they are, the last one up to the end."""

    def check_segments(self, layout: Layout, shape: tuple[int, ...]) -> str:
        del layout, shape
        return ""
