"""A real checkpoint goes from four trainer ranks to four generator ranks, by the example that docs/ prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "refit_checkpoint.py"


def refit(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.requirement("RS-EXACT-1", "RS-BATCH-1", "RS-UPSTREAM-3")
def test_every_byte_of_a_sentence_model_arrives() -> None:
    done = refit()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "104 tensors, 90.9 MB: every byte of every shard as in the file\n"


@pytest.mark.requirement("RS-EXACT-3", "RS-LAYOUT-7", "RS-LAYOUT-8")
def test_scalars_odd_sizes_and_nan_payloads_arrive(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(5)
    noise = torch.randint(-(2**15), 2**15, (7, 5), dtype=torch.int16, generator=draw)
    model = {
        "bits": noise.view(torch.bfloat16),
        "empty": torch.zeros(0, 4),
        "one row": torch.arange(3).reshape(1, 3),
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "vector": torch.arange(9, dtype=torch.uint8),
    }
    file = tmp_path / "odd.safetensors"
    save_file(model, file)
    done = refit(str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5 tensors, 0.0 MB: every byte of every shard as in the file\n"


def test_a_wrong_byte_ends_the_example_with_an_error(tmp_path: Path) -> None:
    file = tmp_path / "one.safetensors"
    save_file({"weight": torch.arange(12.0).reshape(3, 4)}, file)
    broken = tmp_path / "broken.py"
    lie = "weights = {name: shard(tensor + 1, layouts[name], rank) for name"
    text = EXAMPLE.read_text()
    honest = lie.replace("tensor + 1", "tensor")
    assert text.count(honest) == 1
    broken.write_text(text.replace(honest, lie))
    command = [sys.executable, str(broken), str(file)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "1 tensors are not as in the file, weight among them" in done.stderr
    assert done.stdout == ""
