"""The log under SIGKILL: what was acknowledged is stored, what was not is whole or absent."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.workload import Script
from state import crash
from state.crash import ENVIRONMENT, crash_point, parse_fuse
from state.log import EventLog
from state.reader import LogReader
from state.verify import verify
from tests.state import killed

ROOT = Path(__file__).resolve().parents[2]
EVENTS = 30
LARGEST_APPEND = 3


def start(home: Path, at: str | None = None) -> subprocess.Popen[str]:
    environment = os.environ | ({ENVIRONMENT: at} if at else {})
    command = [sys.executable, "-m", "tests.state.killed", str(home), str(EVENTS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)


def acknowledged(process: subprocess.Popen[str]) -> int:
    output, _ = process.communicate(timeout=120)
    return int(output.split()[-1]) if output.split() else 0


def check(home: Path, acked: int) -> int:
    """The log is sound, holds all that was acknowledged and at most one append more; return its length."""
    report = verify(home)
    assert report.ok, report.first
    assert acked <= report.events <= acked + LARGEST_APPEND
    with LogReader.open(home) as reader:
        stored = [item.event for item in reader.read(limit=10_000)]
    assert stored == [step.event for step in Script(seed=7, rounds=2).steps()][: len(stored)]
    return report.events


def finish(home: Path) -> str:
    """Write the rest undisturbed; return the run's last state."""
    killed.main(home, EVENTS)
    with EventLog.open(home) as log:
        assert log.run_seq(killed.RUN) == EVENTS
        return log.state(killed.RUN).model_dump_json()


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The state of a run that was never killed."""
    return finish(tmp_path_factory.mktemp("twin") / "home")


POINTS = (
    *(f"log.before_commit:{n}" for n in (1, 2, 9, 15)),
    *(f"log.after_commit:{n}" for n in (1, 2, 9, 15)),
    "open.locked:1",
    "open.migrated:1",
    "open.checked:1",
    "head.before_write:1",
    "head.before_write:2",
    "head.before_rename:1",
    "head.before_rename:2",
    "head.after_write:1",
    "head.after_write:2",
    "snapshot.before_commit:1",
    "snapshot.before_commit:2",
    "snapshot.after_commit:1",
    "snapshot.after_commit:2",
)


@pytest.mark.parametrize("at", POINTS)
def test_killed_at_a_point_it_loses_nothing_and_ends_like_its_twin(home: Path, twin: str, at: str) -> None:
    process = start(home, at)
    acked = acknowledged(process)
    assert process.returncode == -signal.SIGKILL, f"{at} was never reached"
    if (home / "events.db").exists() and acked:
        check(home, acked)
    assert finish(home) == twin
    assert verify(home).ok


@pytest.mark.parametrize("at", ["open.locked:1", "open.migrated:1", "open.checked:1", "log.before_commit:1"])
def test_killed_again_while_recovering_it_still_finishes(home: Path, twin: str, at: str) -> None:
    acked = acknowledged(start(home, "log.after_commit:5"))
    second = start(home, at)
    assert acknowledged(second) in (0, acked)
    assert second.returncode == -signal.SIGKILL
    check(home, acked)
    assert finish(home) == twin


def test_killed_at_random_many_times_it_finishes_like_its_twin(home: Path, twin: str) -> None:
    draw = random.Random(11)
    stored = 0
    for _ in range(8):
        process = start(home, f"{draw.randrange(4, 14)}")
        acked = max(stored, acknowledged(process))
        assert process.returncode in (0, -signal.SIGKILL)
        if acked:
            stored = check(home, acked)
    assert finish(home) == twin


def test_killed_from_outside_it_loses_nothing(home: Path) -> None:
    process = start(home)
    for _ in range(3):
        process.stdout.readline()
    process.kill()
    check(home, max(acknowledged(process), 3))


def test_an_owner_that_was_killed_leaves_its_home_free(home: Path) -> None:
    process = start(home, "log.after_commit:3")
    acknowledged(process)
    with EventLog.open(home) as log:
        assert log.run_seq(killed.RUN) > 0


# --- the points themselves ---


@pytest.mark.parametrize("text", ["x", "a:", "a:0", "0", "a:b", "-1", "1.5"])
def test_a_bad_setting_is_an_error_not_a_silent_pass(text: str) -> None:
    with pytest.raises(ValueError, match="expected NAME:N or N"):
        parse_fuse(text)


def test_points_are_inert_unless_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    kills: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, sig: kills.append(sig))
    assert parse_fuse(None) is None
    assert parse_fuse("") is None
    crash_point("log.before_commit")
    monkeypatch.setattr(crash, "_fuse", parse_fuse("b:2"))
    for name in ("a", "b", "a"):
        crash_point(name)
    assert kills == []
    crash_point("b")
    assert kills == [signal.SIGKILL]


def test_the_plain_form_counts_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    kills: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, sig: kills.append(sig))
    monkeypatch.setattr(crash, "_fuse", parse_fuse("3"))
    for name in ("a", "b"):
        crash_point(name)
    assert kills == []
    crash_point("c")
    assert kills == [signal.SIGKILL]
