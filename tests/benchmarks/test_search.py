"""The script is the command: what it does is tested where that lies (`tests/daemon/bench`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_script_takes_the_options_of_the_command(tmp_path: Path):
    command = [sys.executable, str(ROOT / "benchmarks" / "search.py"), "--problems", "nothing"]
    done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "'nothing' is unknown; there are" in done.stderr
