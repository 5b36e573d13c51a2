"""A run whose kernels a model writes, in real processes: over a socket, judged in the jail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from state.events import CallCompleted, Event, ExecutionFailed, ExperienceRecorded, KernelKept, KernelProposed
from state.model import EffectKey
from state.reader import LogReader
from tests.support.llm_server import Asked, LlmServer, Reply
from tests.support.simulated_model import FILES, Habits, Model, values_of

ROOT = Path(__file__).parents[2]
MODEL = "local/simulated"
KEY = "local-key-" + "k" * 30
SETTINGS = (
    'run.planner=["local"]',
    f'run.llm.models=["{MODEL}"]',
    "run.cap_usd=1",
    f'daemon.prices=["{MODEL}=0.1/0.1/0.1"]',
    "run.search.beam=1",
    "run.search.plans=3",
    "run.llm.form=question",  # the simulated model answers questions; it calls no tools
    "run.search.explorers=0",
    "run.starts=kernel",  # which the simulated model knows how to better
)


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    folder = tmp_path / "gates"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    return folder


def optimise(
    home: Path, problem: Path, address: str, rounds: int, *more: str
) -> subprocess.CompletedProcess[str]:
    settings = [*SETTINGS, f"daemon.local.base_url={address}", *more]
    return subprocess.run(
        [
            *(sys.executable, "-m", "agentctl", "--home", str(home), "run", "--problem", str(problem)),
            *("--rounds", str(rounds), "--json", *(part for one in settings for part in ("--set", one))),
        ],
        cwd=ROOT,
        env={**os.environ, "LOCAL_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def events(home: Path) -> Sequence[Event]:
    with LogReader.open(home) as reader:
        return [one.event for one in reader.read(limit=100_000)]


@pytest.mark.slow
@pytest.mark.needs("bwrap", package="bubblewrap")  # a weak jail takes no kernels of models
def test_a_model_s_kernels_are_judged_repaired_kept_and_learnt_from(home, problem):
    model = Model(Habits(broken=0.4, hostile=0.1))

    def script(asked: Asked) -> Reply:
        return Reply(model.answer(*values_of(asked.guide, asked.case)))

    with LlmServer(script) as server:
        done = optimise(home, problem, server.openai, rounds=3)
    assert done.returncode == 0, done.stderr
    told = events(home)
    written = {one.key: one for one in told if isinstance(one, KernelProposed)}
    assert {one.author for one in written.values() if EffectKey.parse(one.key).round} == {MODEL}
    kept = [one for one in told if isinstance(one, KernelKept) and one.candidate.round]
    assert kept
    assert all(one.candidate.technique == "hoist" for one in kept if one.speedup and one.speedup > 1.04)
    assert any(EffectKey.parse(key).repair for key in written)
    assert any(one.experience for one in told if isinstance(one, ExperienceRecorded))
    codes = {one.error.code for one in told if isinstance(one, ExecutionFailed)}
    assert codes <= {"no_block", "not_python", "no_kernel", "bad_edits", "nothing_simpler"}
    bought = [one for one in told if isinstance(one, CallCompleted)]
    assert len(bought) == sum(model.asked.values())
    assert KEY not in done.stdout + done.stderr
    assert not any(KEY in json.dumps(one.model_dump(mode="json")) for one in told)


def test_a_run_of_which_no_question_was_answered_fails_and_says_why(home, problem):
    with LlmServer(lambda _: Reply()) as server:
        pass  # nobody is there any more
    done = optimise(home, problem, server.openai, 1, "daemon.local.patience_seconds=0.001")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert (told["state"], told["reason"], told["best"]) == ("completed", "no_proposals", "r0.b0.p0.k0.f0")
    assert told["failure"] in done.stderr
    assert "no question to a model was answered: llm_transport: local/simulated could not be" in done.stderr
    assert f"http://127.0.0.1:{server.port} cannot be reached" in done.stderr
