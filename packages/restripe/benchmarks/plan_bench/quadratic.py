"""The tests' quadratic planner, which looks at every pair of ranks: a plan's cost is held against it."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.distributed.tensor import Shard

from restripe import Layout

JUDGE = Path(__file__).parents[2] / "tests" / "helpers" / "judge.py"


def load(path: Path = JUDGE) -> ModuleType:
    """Return the planner's module, which is among the tests and imports nothing of ours."""
    spec = spec_from_file_location("quadratic_judge", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"expected the tests' quadratic planner at {path}; run this from a checkout")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def world_plan(judge: ModuleType, src: Layout, dst: Layout, shape: tuple[int, ...]) -> Any:
    """Return the plan of all ranks: a rank that plans so makes all of it to find its own part."""
    return judge.judge(_side(judge, src), _side(judge, dst), shape)


def _side(judge: ModuleType, layout: Layout) -> Any:
    dims = tuple(placement.dim if isinstance(placement, Shard) else None for placement in layout.placements)
    return judge.Side(layout.mesh.shape, layout.mesh.ranks, dims)
