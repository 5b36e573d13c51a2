"""The script is the command: what it does is tested where that lies (`tests/agentctl/bench`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentctl.bench.runs import BenchJob, JobBudget, run_job

ROOT = Path(__file__).parents[2]
DECISIONS = Path(__file__).parent / "golden" / "decisions.json"
"""What a run decided where the file was written: `UPDATE_DECISIONS=1` with the test writes it anew."""


def test_the_script_takes_the_options_of_the_command(tmp_path: Path):
    command = [sys.executable, str(ROOT / "benchmarks" / "search.py"), "--problems", "nothing"]
    done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown problem 'nothing' (known: adamw" in done.stderr


@pytest.mark.slow
def test_the_same_seed_decides_the_same_on_every_machine():
    """A whole run from a kernel in a file, looking ahead and judging included, ended by counts."""
    file = ROOT / "benchmarks" / "user_kernels" / "silu-two_passes.py"
    made = run_job(
        BenchJob("silu", "reduced", "trn2", 0, kernel=str(file)), JobBudget(candidates=7, minutes=30)
    )
    assert made["in_time"]
    assert made["speedup"] > 1.5
    assert "fuse_loops" in made["techniques"]
    decided = {name: made[name] for name in ("decision_digest", "best_ms", "looked_at", "evaluated")}
    if os.environ.get("UPDATE_DECISIONS"):
        DECISIONS.write_text(json.dumps(decided, indent=2) + "\n")
    assert decided == json.loads(DECISIONS.read_text()), "UPDATE_DECISIONS=1 writes the decisions anew"
