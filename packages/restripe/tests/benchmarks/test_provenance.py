"""Provenance can be had anywhere, also where there is no GPU and no NCCL."""

from __future__ import annotations

import json
import os
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from gpu_bench.provenance import provenance, summary


def test_it_names_versions_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    origin = json.loads(json.dumps(provenance()))
    assert origin["packages"]["torch"] == version("torch")  # which may lack the build that torch.__version__ tells
    assert origin["environment"]["NCCL_NVLS_ENABLE"] == "0"
    assert origin["date_utc"].endswith("+00:00")
    assert set(origin) >= {"command", "commit", "cuda", "driver", "gpus", "links", "nccl", "restripe", "topology"}


def test_without_nvidia_s_tools_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    origin = provenance()
    assert origin["gpus"] == origin["driver"] == origin["links"] == []
    assert "0 x no GPU" in summary(origin)


def test_the_topology_is_origin_without_what_a_terminal_underlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '\\033[4mGPU0\\tGPU1\\033[0m\\n'\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert provenance()["topology"] == ["GPU0\tGPU1"]
