"""The versions that a run depends on, for its report."""

from __future__ import annotations

import os
import platform
from collections import Counter
from importlib.metadata import PackageNotFoundError, version

import torch

from reshard_conformance import SPECIFICATION, __version__
from reshard_conformance.worlds.nccl import release

__all__ = ["environment"]

PACKAGES = ("reshard-golden", "hypothesis", "numpy")
MISSING = "not installed"


def environment() -> dict[str, str]:
    """Versions, machine and number of processors of this process; with GPUs, what they are and what drives them."""
    return machine() | (devices() if torch.cuda.is_available() else {})


def devices() -> dict[str, str]:
    """The GPUs by name with their number, and the versions of what is under world nccl."""
    names = Counter(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    return {
        "gpus": ", ".join(f"{count} x {name}" for name, count in names.items()),
        "cuda": str(torch.version.cuda),
        "nccl4py": installed("nccl4py"),
        "nccl": ".".join(map(str, release())) if installed("nccl4py") != MISSING else MISSING,
    }


def machine() -> dict[str, str]:
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
        return MISSING
