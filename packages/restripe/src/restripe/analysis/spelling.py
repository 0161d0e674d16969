"""The spelling of shapes, ranks and layouts on a command line, in the words of the case files."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from restripe.layout.mesh import Layout, Mesh
from restripe.layout.segmented import Segmented

_SHARD = re.compile(r"S(?:\((-?\d+)\)|(\d+))")
_STRIDED = re.compile(r"SS\((-?\d+),\s*(\d+)\)")
_SEGMENTED = re.compile(r"SG\((-?\d+),\s*\[([\d,\s]+)\]\)")
_BETWEEN = re.compile(r",(?![^(]*\))")  # the commas outside of brackets
_SIZES = re.compile(r"\d+(x\d+)*")
_RANKS = re.compile(r"(\d+)(?:-(\d+))?")


class SpellingError(ValueError):
    """A text that spells no shape, rank, layout or model; the message says what to write."""


def shape(text: str) -> tuple[int, ...]:
    """Return the shape of a text such as `4096x2560`; `scalar` is the shape of a tensor without dims."""
    if text == "scalar":
        return ()
    if not _SIZES.fullmatch(text):
        raise SpellingError(f"expected sizes joined by x, such as 4096x2560, or the word scalar, got {text!r}")
    return tuple(int(size) for size in text.split("x"))


def dtype(text: str) -> torch.dtype:
    """Return the dtype of a torch name such as `bfloat16`."""
    attribute = getattr(torch, text, None)
    if not isinstance(attribute, torch.dtype):
        raise SpellingError(f"expected torch's name of a dtype, such as bfloat16 or float8_e4m3fn, got {text!r}")
    return attribute


def ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a text such as `8-15` or `0,2,4-7`, in that order."""
    members: list[int] = []
    for part in text.split(","):
        match = _RANKS.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise SpellingError(f"expected ranks such as 8-15 or 0,2,4-7, got {text!r}")
        members += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(members)


def placements(text: str) -> tuple[Placement, ...]:
    """Return the placements of a text such as `R,S(0)`, one for each mesh dim."""
    return tuple(_placement(part.strip()) for part in _BETWEEN.split(text))


def _placement(text: str) -> Placement:
    """Return the placement of a text such as `S(0)`."""
    if text == "R":
        return Replicate()
    if match := _SHARD.fullmatch(text):
        return Shard(int(match[1] or match[2]))
    if match := _STRIDED.fullmatch(text):
        return _StridedShard(int(match[1]), split_factor=int(match[2]))
    if match := _SEGMENTED.fullmatch(text):
        return Segmented(int(match[1]), [int(size) for size in match[2].split(",") if size.strip()])
    raise SpellingError(
        "expected R (replicates), S(d) or Sd (shards tensor dim d), SS(d,k) (_StridedShard of split_factor k) or "
        f"SG(d,[a,b]) (segments of a and b elements), one a mesh dim and joined by commas, got {text!r}"
    )


def layout(
    text: str, mesh: str | None = None, on: str | None = None, *, first: int = 0, host: int | None = None
) -> Layout:
    """Return the layout of a text such as `2x4:R,S(0)`: a mesh of 2 x 4 ranks and a placement for each mesh dim.

    Args:
        mesh: the mesh's sizes, where `text` has placements alone.
        on: the mesh's ranks in row-major order; when None they count up from `first`.
        host: number of ranks on a host, for a mesh that knows its hosts.
    """
    before, colon, after = text.partition(":")
    if bool(colon) == bool(mesh):
        raise SpellingError(
            f"expected a mesh and its placements, such as 2x4:R,S(0), got {text!r}"
            + (f" and a mesh {mesh!r} besides" if mesh else "")
            + "; the mesh stands before the colon, or is given as a mesh option"
        )
    sizes = shape(mesh or before)
    members = tuple(range(first, first + math.prod(sizes))) if on is None else ranks(on)
    return Layout(mesh_of_ranks(sizes, members, host), placements(after if colon else text))


def mesh_of_ranks(sizes: tuple[int, ...], members: tuple[int, ...], host: int | None) -> Mesh:
    """Return the mesh of these ranks; with `host` ranks on a host, ranks fill hosts in order."""
    return Mesh(sizes, members, None if host is None else tuple(rank // host for rank in members))


def format_layout(layout: Layout) -> str:
    """Return the spelling of a layout without its ranks."""
    spelled = ",".join(format_placement(placement) for placement in layout.placements)
    return f"{'x'.join(map(str, layout.mesh.shape))}:{spelled}"


def format_placement(placement: Placement) -> str:
    """Return a placement in the words of the case files."""
    if isinstance(placement, _StridedShard):
        return f"SS({placement.dim},{placement.split_factor})"
    if isinstance(placement, Segmented):
        return f"SG({placement.dim},[{','.join(map(str, placement.sizes))}])"
    return f"S({placement.dim})" if isinstance(placement, Shard) else "R"


def format_ranks(members: Sequence[int]) -> str:
    """Return the spelling of ranks: consecutive ranks are written as a range."""
    runs: list[list[int]] = []
    for rank in members:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
