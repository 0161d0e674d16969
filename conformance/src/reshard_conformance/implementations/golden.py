"""reshard-golden as an implementation under test: it keeps nothing from call to call."""

from __future__ import annotations

import reshard_golden
from reshard_conformance.contract import (
    Claims,
    Group,
    Level,
    MeshReference,
    Placements,
    Profile,
    Stream,
    TensorReference,
)

__all__ = ["Golden", "implementation"]


class Golden:
    """The adapter."""

    name = "golden"
    version = reshard_golden.__version__
    claims = Claims(Level.L3, frozenset({Profile.CORE, Profile.STRIDED, Profile.SEGMENTED}))

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
        """Reshard over the group's communicator."""
        reshard_golden.reshard(
            src_tensor, src_mesh, src_placement, dst_tensor, dst_mesh, dst_placement, process_group, stream
        )

    def clear_caches(self, group: Group) -> None:
        """Golden caches nothing."""

    def error_kind(self, exception: BaseException) -> str | None:
        """Golden's errors bear the kind."""
        return exception.kind if isinstance(exception, reshard_golden.GoldenError) else None


implementation = Golden()
