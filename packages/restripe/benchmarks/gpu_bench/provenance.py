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
    """All of it, for JSON."""
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


def summary(told: dict[str, Any]) -> str:
    """The most important of it in a line."""
    gpus = told["gpus"]
    nccl = f"NCCL {told['nccl']}, nccl4py {told['packages']['nccl4py']}, torch {told['packages']['torch']}"
    return f"{len(gpus)} x {gpus[0] if gpus else 'no GPU'}, {nccl}, restripe {told['restripe']} ({told['commit']}), {told['date_utc']}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _nccl() -> str | None:
    """The version of the NCCL that is loaded, as nccl4py sees it."""
    try:
        from nccl.core import get_version  # noqa: PLC0415 - the tables can be drawn without it
    except ImportError:
        return None
    library = get_version().libnccl
    return None if library is None else str(library.version)


def _query(what: str) -> list[str]:
    """One answer a GPU; asked without starting CUDA in this process."""
    return _output("nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader").splitlines()


def _output(*command: str) -> str:
    """What a command prints; empty where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)  # noqa: S603, RUF100
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).strip() if done.returncode == 0 else ""  # nvidia-smi underlines
