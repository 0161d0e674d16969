"""A real checkpoint goes from four trainer ranks to four generator ranks, by the example that docs/ prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

DOCS = Path(__file__).parents[3] / "docs"
EXAMPLE = DOCS / "examples" / "refit_checkpoint.py"


def refit(*arguments: str, example: Path = EXAMPLE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(example), *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.requirement("RS-EXACT-1", "RS-BATCH-1", "RS-UPSTREAM-3", "RS-LAYOUT-10")
@pytest.mark.parametrize("source", [[], ["--fsdp"]])
def test_every_byte_of_a_sentence_model_arrives(source: list[str]) -> None:
    done = refit(*source)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "104 tensors, 90.9 MB: every byte of every shard as in the file\n"
    assert f"    {done.stdout}" in (DOCS / "guides" / "refit.md").read_text()


@pytest.mark.requirement("RS-EXACT-3", "RS-LAYOUT-7", "RS-LAYOUT-8")
@pytest.mark.parametrize("source", [[], ["--fsdp"]])
def test_scalars_odd_sizes_and_nan_payloads_arrive(source: list[str], tmp_path: Path) -> None:
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
    done = refit(*source, str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5 tensors, 0.0 MB: every byte of every shard as in the file\n"


def test_a_wrong_byte_ends_the_example_with_an_error(tmp_path: Path) -> None:
    file = tmp_path / "one.safetensors"
    save_file({"weight": torch.arange(12.0).reshape(3, 4)}, file)
    broken = tmp_path / "broken.py"
    text, honest = EXAMPLE.read_text(), "weights = {name: shard(tensor, layouts[name], rank)"
    assert text.count(honest) == 1
    broken.write_text(text.replace(honest, honest.replace("tensor,", "tensor + 1,")))
    done = refit(str(file), example=broken)
    assert done.returncode != 0
    assert "1 tensors are not as in the file, weight among them" in done.stderr
    assert done.stdout == ""


@pytest.mark.requirement("RS-LAYOUT-10")
def test_what_fsdp_holds_over_tensor_parallelism_is_no_plain_shard(tmp_path: Path) -> None:
    file = tmp_path / "one.safetensors"
    save_file({"weight": torch.arange(24.0).reshape(8, 3)}, file)
    broken = tmp_path / "broken.py"
    text, honest = EXAMPLE.read_text(), "held.placements)"
    assert text.count(honest) == 1
    broken.write_text(text.replace(honest, "(Shard(0), Shard(0)))"))
    done = refit("--fsdp", str(file), example=broken)
    assert done.returncode != 0
    assert "1 tensors are not as in the file, weight among them" in done.stderr
