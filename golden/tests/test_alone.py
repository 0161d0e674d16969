"""golden stands alone and stays short."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import reshard_golden

SOURCE = Path(str(reshard_golden.__file__))


def test_imports_torch_and_nothing_else() -> None:
    modules = set()
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            modules.add(str(node.module).split(".")[0])
    assert "torch" in modules
    assert modules - set(sys.stdlib_module_names) == {"torch"}


def test_is_one_file_of_at_most_250_lines() -> None:
    assert [path.name for path in SOURCE.parent.rglob("*.py")] == ["__init__.py"]
    assert len(SOURCE.read_text(encoding="utf-8").splitlines()) <= 250


def test_importing_it_pulls_in_neither_restripe_nor_nccl() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import reshard_golden; "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in {'restripe', 'reshard_conformance', 'nccl'}))"
    )
    command = [sys.executable, "-c", code, str(SOURCE.parent.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
