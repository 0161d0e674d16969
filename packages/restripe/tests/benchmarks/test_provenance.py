"""Provenance can be had anywhere, also where there is no GPU and no NCCL."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from gpu_bench.provenance import provenance, summary


def test_it_names_versions_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    told = json.loads(json.dumps(provenance()))
    assert told["packages"]["torch"] == torch.__version__
    assert told["environment"]["NCCL_NVLS_ENABLE"] == "0"
    assert told["date_utc"].endswith("+00:00")
    assert set(told) >= {"command", "commit", "cuda", "driver", "gpus", "links", "nccl", "restripe", "topology"}


def test_without_nvidia_s_tools_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    told = provenance()
    assert told["gpus"] == told["driver"] == told["links"] == []
    assert "0 x no GPU" in summary(told)
