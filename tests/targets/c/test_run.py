"""A whole run on this machine: verdicts, events and protocol, never a time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remote.jail_backends import JailStrength, jail_strength
from state.events import EvaluationCompleted
from state.log import EventLog
from state.model import Verdict

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The home of a run that has ended, and the run."""
    if jail_strength() is JailStrength.WEAK or not (shutil.which("gcc") or shutil.which("clang")):
        pytest.skip("needs gcc and bubblewrap")
    home = tmp_path_factory.mktemp("measured")
    agentctl = [sys.executable, "-m", "agentctl"]
    wanted = ["--target", "x86", "--problem", "silu", "--size", "reduced", "--rounds", "1"]
    run = [*agentctl, "run", "--home", str(home), *wanted, "--set", "search.plans=2", "--json"]
    subprocess.run(run, capture_output=True, check=False, timeout=280)
    status = [*agentctl, "status", "--home", str(home), "--json"]
    told = subprocess.run(status, capture_output=True, text=True, check=True, timeout=60)
    return home, json.loads(told.stdout)["runs"][0]["id"]


def test_a_run_measures_what_it_judges(finished: tuple[Path, str]) -> None:
    home, run = finished
    with EventLog.open(home) as log:
        state, events = log.run_state(run), [item.event for item in log.read(stream=run)]
    judged = [event for event in events if isinstance(event, EvaluationCompleted)]
    assert state.has_ended
    assert len(judged) >= 2
    for event in judged:
        found = event.evaluation
        assert found.verdict in {Verdict.CORRECT, Verdict.UNSTABLE}, found.error
        if found.benchmark is not None:
            assert not found.benchmark.predicted
            assert found.benchmark.lo_ms <= found.benchmark.latency_ms <= found.benchmark.hi_ms
