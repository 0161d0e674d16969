"""The two names of nemo_rl.weight_sync.xferdtensor_python, with their signatures, over restripe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.tensor.placement_types import Placement

from restripe.api import clear_caches
from restripe.group.single_tensor import reshard_one

__all__ = ["clear_xferdtensor_python_caches", "xferdtensor_python_impl"]


def xferdtensor_python_impl(
    src_tensor: Any,
    src_mesh: Any,
    src_placement: Sequence[Placement],
    dst_tensor: Any,
    dst_mesh: Any,
    dst_placement: Sequence[Placement],
    process_group: Any,
    stream: Any = None,
) -> None:
    """Reshard `src_tensor` into `dst_tensor` exactly; every rank of the group calls in the same order.

    Args:
        src_tensor, dst_tensor: a reference with the global `.shape`, `.dtype`, `.device` and this rank's `._local_tensor`; None
            on a rank without that side. An idle rank passes a reference whose `_local_tensor` is None.
        src_mesh, dst_mesh: a mesh of group ranks with `.mesh` or `._mesh`.
        src_placement, dst_placement: Shard, Replicate, torch's _StridedShard or restripe.Segmented, one a mesh dim.
        process_group: an object with nccl4py's `.nccl_communicator` or with a `.communicator`, or a torch process group.
        stream: the stream to enqueue on; None on the CPU.

    Raises:
        ReshardError: see `restripe.errors`.
    """
    layouts = src_mesh, src_placement, dst_mesh, dst_placement
    reshard_one(src_tensor, dst_tensor, layouts, process_group, stream=stream)


def clear_xferdtensor_python_caches(process_group: Any = None) -> None:
    """Clear the caches of the group, or of every group; see `restripe.clear_caches`."""
    clear_caches(process_group)
