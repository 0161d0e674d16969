"""Coalescing of strided copies: the same bytes in fewer copies, and each copy in as few dims as it can have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from restripe.execution.program import StridedCopy


def coalesce_copies(copies: Iterable[StridedCopy]) -> list[StridedCopy]:
    """Merge neighbours: copies that adjoin on both sides become one, and equal copies at a constant stride one with a dim more.

    Only copies that follow one another are merged, so give them in the order of their offsets.
    """
    coalesced, before = list(copies), -1
    while len(coalesced) != before:  # what was merged may in turn have neighbours at a constant stride
        before = len(coalesced)
        coalesced = _stack_runs(_join_adjoining(coalesced))
    return coalesced


def collapse_dims(copy: StridedCopy) -> StridedCopy:
    """Return the copy without dims of size 1, with dims that adjoin as one, the destination's largest strides first."""
    *outer, innermost = zip(copy.sizes, copy.into_strides, copy.out_strides, strict=True)
    dims = [innermost]
    for size, into, out in sorted(outer, key=itemgetter(1, 2)):
        inner, into_step, out_step = dims[-1]
        if into == inner * into_step and out == inner * out_step:
            dims[-1] = size * inner, into_step, out_step
        elif size != 1:
            dims.append((size, into, out))
    sizes, into_strides, out_strides = zip(*dims[::-1], strict=True)
    return copy._replace(sizes=sizes, into_strides=into_strides, out_strides=out_strides)


def _join_adjoining(copies: Sequence[StridedCopy]) -> list[StridedCopy]:
    """Return the copies, those that go on where the one before ends joined to it."""
    joined: list[StridedCopy] = []
    for copy in copies:
        longer = _adjoin(joined[-1], copy) if joined else None
        if longer is None:
            joined.append(copy)
        else:
            joined[-1] = longer
    return joined


def _stack_runs(copies: Sequence[StridedCopy]) -> list[StridedCopy]:
    """Return the copies, each run of equal ones at a constant stride as one."""
    stacked: list[StridedCopy] = []
    run: list[StridedCopy] = []
    for copy in copies:
        if run and not _continues(run, copy):
            stacked.append(_stack(run))
            run = []
        run.append(copy)
    return [*stacked, _stack(run)] if run else stacked


def _adjoin(copy: StridedCopy, after: StridedCopy) -> StridedCopy | None:
    """Return both as one copy where the second goes on where the first ends along some dim, on both sides."""
    if not _alike(copy, after):
        return None
    for dim, size in enumerate(copy.sizes):
        if (
            after.into_offset - copy.into_offset == size * copy.into_strides[dim]
            and after.out_offset - copy.out_offset == size * copy.out_strides[dim]
            and copy.sizes[:dim] == after.sizes[:dim]
            and copy.sizes[dim + 1 :] == after.sizes[dim + 1 :]
        ):
            return copy._replace(sizes=(*copy.sizes[:dim], size + after.sizes[dim], *copy.sizes[dim + 1 :]))
    return None


def _alike(copy: StridedCopy, other: StridedCopy) -> bool:
    """Return whether two copies go between the same memories with the same strides."""
    return (copy.into, copy.out_of, copy.into_strides, copy.out_strides) == (
        other.into,
        other.out_of,
        other.into_strides,
        other.out_strides,
    )


def _continues(run: Sequence[StridedCopy], copy: StridedCopy) -> bool:
    """Return whether a copy is the next of a run of equal copies at constant, ascending distances."""
    start, last = run[0], run[-1]
    if copy.sizes != start.sizes or not _alike(start, copy):
        return False
    into_step, out_step = copy.into_offset - last.into_offset, copy.out_offset - last.out_offset
    if into_step <= 0 or out_step <= 0:
        return False
    steps = len(run) - 1
    return last.into_offset - start.into_offset == into_step * steps and (
        last.out_offset - start.out_offset == out_step * steps
    )


def _stack(run: Sequence[StridedCopy]) -> StridedCopy:
    """Return a run of equal copies as one copy with a dim more."""
    start = run[0]
    if len(run) == 1:
        return start
    into_step, out_step = run[1].into_offset - start.into_offset, run[1].out_offset - start.out_offset
    return start._replace(
        sizes=(len(run), *start.sizes),
        into_strides=(into_step, *start.into_strides),
        out_strides=(out_step, *start.out_strides),
    )
