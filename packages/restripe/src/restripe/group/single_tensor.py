"""Moving one tensor: from what a caller passes to a call on its group. `reshard` and the drop-in share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from restripe.errors import ReshardError
from restripe.execution.streams import Work
from restripe.group.cache import Layouts
from restripe.group.call import Check
from restripe.group.inputs import PLAIN_TYPES, Declared, global_shape, read_tensor
from restripe.group.registry import state_of


def reshard_one(
    src: Any,
    dst: Any,
    layouts: Layouts,
    group: Any,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    check: Check | None = None,
    stream: Any = None,
) -> Work:
    """Move a tensor between two layouts; everything passed may be faulty, and a faulty call counts as a call.

    Args:
        layouts: the fields of `LayoutInputs`. `reshard` explains the others.
    """
    state = state_of(group)
    config = state.config(group, check)
    tensors: tuple[torch.Tensor | None, torch.Tensor | None] = src, dst
    declared: tuple[Declared, ...] = ()
    try:
        if type(src) not in PLAIN_TYPES or type(dst) not in PLAIN_TYPES:
            (src_local, src_declared), (dst_local, dst_declared) = read_tensor(src), read_tensor(dst)
            tensors, declared = (src_local, dst_local), (src_declared, dst_declared)
            if shape is None:
                shape = dst_declared[0] if src_declared[0] is None else src_declared[0]
            dtype = dtype or src_declared[1] or dst_declared[1]
        if dtype is None:
            dtype = next((tensor.dtype for tensor in tensors if tensor is not None), None)
        if shape is not None and type(shape) is not torch.Size:
            shape = global_shape("tensor", shape)
        if declared and _adds_nothing(declared[0], shape, dtype) and _adds_nothing(declared[1], shape, dtype):
            declared = ()
        submission = state.cache.submission(layouts, shape, dtype, group, config.communicators.base.size)
    except ReshardError as error:
        state.raise_on_all_ranks(config, None, error)
    return state.run(config, submission, tensors, declared, state.calls % submission.holders, stream)


def _adds_nothing(declared: Declared, shape: tuple[int, ...] | None, dtype: torch.dtype | None) -> bool:
    """Return whether a reference declares no other shape and dtype than the call's."""
    declared_shape, declared_dtype = declared
    return (declared_shape is None or declared_shape == shape) and (declared_dtype is None or declared_dtype is dtype)
