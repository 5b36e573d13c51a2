"""A run with measured kernels, killed at events of its log: it ends as its undisturbed twin does, and
measures nothing again.

The slow lane kills it at a few events, drawn by a seed. All of them:

    SWEEP=all pytest --all tests/targets/c/test_crash_sweep.py
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from remote.jail_backends import JailStrength, jail_strength
from remote.secret import SECRET_FILE
from state.events import EvaluationCompleted
from state.fold import state_hash
from state.model import Verdict
from state.reader import LogReader
from state.verify import verify_log
from targets.c.language import C
from tests.support.sweeps import sample_sweep
from tests.targets.c.measured_run import MeasurementJournal, kill_after, submit_measured_run

pytestmark = [pytest.mark.slow, pytest.mark.needs("gcc"), pytest.mark.needs("bwrap", package="bubblewrap")]

Work = tuple[str, str]
ROOT = Path(__file__).parents[3]
KILLED, SEED = 3, 37


@dataclass(frozen=True)
class MeasuredHome:
    """A home with one run, and the journal of what was measured for it."""

    folder: Path
    run: str

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def journal(self) -> MeasurementJournal:
        return MeasurementJournal(self.folder / "journal")

    def host(self, **how: Any) -> subprocess.CompletedProcess[str]:
        """Host the home in a process of its own until the run has ended, or the process is killed."""
        words = (str(self.home), self.run, str(self.folder / "journal"))
        command = [sys.executable, "-m", "tests.targets.c.measured_run", *words]
        return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, **how)

    def judged(self) -> list[EvaluationCompleted]:
        """Return the verdicts that the log holds."""
        with LogReader.open(self.home) as reader:
            events = [item.event for item in reader.read(stream=self.run, limit=100_000)]
        return [event for event in events if isinstance(event, EvaluationCompleted)]

    def codes_in_flight(self) -> set[str]:
        """Return the kernels whose evaluation has begun, by the log, and not ended."""
        with LogReader.open(self.home) as reader:
            if self.run not in reader.run_ids():
                return set()
            open_effects = reader.run_state(self.run).open.values()
            requests = [json.loads(reader.get_blob(effect.request)) for effect in open_effects]
            sources = [one["source"] for one in requests if "level" in one]  # plans have no level
            return {C.code_digest(reader.get_blob(source)) for source in sources}

    def fold(self) -> str:
        """Return the hash of what the log of the ended run says."""
        with LogReader.open(self.home) as reader:
            state = reader.run_state(self.run)
        assert state.has_ended
        return state_hash(state)


@dataclass(frozen=True)
class Twin:
    """The undisturbed run, and how many commits its log has."""

    at: MeasuredHome
    commits: int


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    if jail_strength() is JailStrength.WEAK:
        pytest.skip("needs bubblewrap")
    folder = tmp_path_factory.mktemp("twin")
    at = MeasuredHome(folder, submit_measured_run(folder / "home"))
    done = at.host()
    assert done.returncode == 0
    return Twin(at, int(done.stdout))


def _prepare_home(folder: Path, twin: Twin) -> MeasuredHome:
    """Make a home for the same run, on what is the same installation, whose measurements are told the same
    times."""
    shutil.copytree(twin.at.folder / "journal/times", folder / "journal/times")
    (folder / "home").mkdir()
    shutil.copy2(twin.at.home / SECRET_FILE, folder / "home" / SECRET_FILE)
    return MeasuredHome(folder, submit_measured_run(folder / "home"))


def test_the_twin_is_worth_disturbing(twin: Twin) -> None:
    judged = twin.at.judged()
    assert len(judged) >= 3  # the first kernel, and one of each round
    assert {event.evaluation.verdict for event in judged} == {Verdict.CORRECT}
    assert {work for work, _ in twin.at.journal.begun()} == {"compile", "measure"}


def test_a_killed_run_ends_like_its_twin_and_measures_nothing_again(twin: Twin, tmp_path: Path) -> None:
    for commits in sample_sweep(range(1, twin.commits), KILLED, seed=SEED):
        at = _prepare_home(tmp_path / str(commits), twin)
        assert at.host(env=kill_after(commits)).returncode == -signal.SIGKILL
        in_flight = at.codes_in_flight()
        assert at.host().returncode == 0
        assert at.fold() == twin.at.fold()
        assert at.journal.known_times() == twin.at.journal.known_times()
        _assert_nothing_is_repeated(at.journal.begun(), twin.at.journal.begun(), in_flight)
        report = verify_log(at.home)
        assert report.is_ok, report.findings


def _assert_nothing_is_repeated(begun: Counter[Work], wanted: Counter[Work], in_flight: set[str]) -> None:
    """Only the kernel whose evaluation the kill cut off may have been compiled or measured once more."""
    assert not wanted - begun
    again = {code for _, code in begun - wanted}
    assert len(again) <= 1
    assert again <= in_flight
