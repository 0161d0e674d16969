"""The public names, exactly, and that importing them needs torch and the standard library alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import restripe
from restripe import errors, xferdtensor_python

IMPORT = """
import json, sys
import torch, torch.distributed.tensor, torch.distributed.device_mesh, torch.distributed._functional_collectives
before = set(sys.modules)
import restripe, restripe.xferdtensor_python
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)))
"""


def test_the_public_names() -> None:
    assert restripe.__all__ == [
        "Item",
        "Layout",
        "Mesh",
        "Refit",
        "Resharder",
        "Segmented",
        "TensorRef",
        "Work",
        "clear_caches",
        "join",
        "reshard",
    ]
    assert all(hasattr(restripe, name) for name in restripe.__all__)
    assert restripe.__version__


@pytest.mark.requirement("RS-UPSTREAM-1")
def test_the_drop_in_has_upstream_s_names_and_no_others() -> None:
    assert xferdtensor_python.__all__ == ["clear_xferdtensor_python_caches", "xferdtensor_python_impl"]


@pytest.mark.requirement("RS-ERROR-13")
def test_the_errors_are_public_in_their_module() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined == {kind.__name__ for kind in errors.PRECEDENCE} | {"ReshardError"}


def test_importing_restripe_pulls_in_torch_and_the_standard_library_alone() -> None:
    where = str(Path(restripe.__file__).parents[1])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {where!r})\n{IMPORT}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(json.loads(ran.stdout)) <= {"restripe", "torch"}
