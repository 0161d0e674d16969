"""The versions that a run depends on, for its report."""

from __future__ import annotations

import os
import platform
from collections import Counter
from importlib.metadata import PackageNotFoundError, version

import torch

from reshard_conformance import SPECIFICATION, __version__
from reshard_conformance.worlds.nccl import nccl_release

__all__ = ["environment"]

PACKAGES = ("reshard-golden", "hypothesis", "numpy")
MISSING = "not installed"


def environment() -> dict[str, str]:
    """Return the versions of this process and its machine; with GPUs, also their names and the versions below nccl."""
    return machine_versions() | (device_versions() if torch.cuda.is_available() else {})


def device_versions() -> dict[str, str]:
    """Return the GPUs with their number, and the versions that world nccl runs on."""
    names = Counter(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    return {
        "gpus": ", ".join(f"{count} x {name}" for name, count in names.items()),
        "cuda": str(torch.version.cuda),
        "nccl4py": installed_version("nccl4py"),
        "nccl": ".".join(map(str, nccl_release())) if installed_version("nccl4py") != MISSING else MISSING,
    }


def machine_versions() -> dict[str, str]:
    return {
        "reshard-conformance": __version__,
        "specification": SPECIFICATION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: installed_version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(os.cpu_count()),
    }


def installed_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return MISSING
