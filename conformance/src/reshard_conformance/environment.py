"""The versions that a run depends on, for its report."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from reshard_conformance import SPECIFICATION, __version__

__all__ = ["environment"]

PACKAGES = ("reshard-golden", "hypothesis", "numpy")


def environment() -> dict[str, str]:
    """Versions, machine and number of processors of this process."""
    return {
        "reshard-conformance": __version__,
        "specification": SPECIFICATION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: installed(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(os.cpu_count()),
    }


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
