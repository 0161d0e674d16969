"""The first program of the README runs as it stands and prints what the README shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")


def test_the_first_program_prints_what_the_readme_shows(tmp_path: Path) -> None:
    program = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[0]
    shown = re.findall(r"^    (rank \d: .*)$", README, re.MULTILINE)
    script = tmp_path / "move.py"
    script.write_text(program)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(len(shown)), str(script)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(launcher, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == shown
    assert len(shown) == 2
