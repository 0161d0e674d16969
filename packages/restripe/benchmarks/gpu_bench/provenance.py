"""Where the numbers come from: versions, GPUs, links, date and command."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import restripe

PACKAGES = ("torch", "nccl4py", "nccl-extensions", "numpy", "cuda-bindings")


def provenance() -> dict[str, Any]:
    """Return all of it, as JSON's types."""
    return {
        "date_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "restripe": restripe.__version__,
        "commit": _output("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "nccl": _nccl(),
        "cuda": torch.version.cuda,
        "driver": _query("driver_version")[:1],
        "gpus": _query("name"),
        "topology": _output("nvidia-smi", "topo", "-m").splitlines(),
        "links": _output("nvidia-smi", "nvlink", "--status").splitlines(),
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")},
    }


def summary(origin: dict[str, Any]) -> str:
    """Return the most important of it in a line."""
    gpus, packages = origin["gpus"], origin["packages"]
    hardware = f"{len(gpus)} x {gpus[0] if gpus else 'no GPU'}"
    nccl = f"NCCL {origin['nccl']}, nccl4py {packages['nccl4py']}, torch {packages['torch']}"
    return f"{hardware}, {nccl}, restripe {origin['restripe']} ({origin['commit']}), {origin['date_utc']}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _nccl() -> str | None:
    """Return the version of the NCCL that is loaded, as nccl4py sees it."""
    try:
        from nccl.core import get_version  # noqa: PLC0415 - the tables can be drawn without it
    except ImportError:
        return None
    library = get_version().libnccl
    return None if library is None else str(library.version)


def _query(field: str) -> list[str]:
    """Return one answer a GPU; asked without starting CUDA in this process."""
    return _output("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader").splitlines()


def _output(*command: str) -> str:
    """Return what a command prints; empty where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)  # noqa: S603, RUF100
    return (
        re.sub(r"\x1b\[[0-9;]*m", "", process.stdout).strip() if process.returncode == 0 else ""
    )  # nvidia-smi underlines
