"""The log under SIGKILL: what was acknowledged is stored, what was not is whole or absent."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from state import crash
from state.crash import ENVIRONMENT, crash_point, parse_trigger
from state.log import EventLog
from state.reader import LogReader
from state.verify import verify_log
from tests.state import killed_writer
from tests.support.scripted_runs import ScriptedRun
from tests.support.sweeps import parametrize_sweep

ROOT = Path(__file__).resolve().parents[2]
EVENTS = 30
STEPS = [step.event for step in ScriptedRun(seed=7, rounds=2).steps()][:EVENTS]


class Ended(NamedTuple):
    """What a killed process said: the seqs it printed (what it found, then what was acknowledged)."""

    said: list[int]
    returncode: int

    def possible(self, before: int) -> set[int]:
        """What may be stored: the append under way, whose line was not printed yet, is whole or absent."""
        if not self.said:
            return {before}
        last = self.said[-1]
        return {last, min(last + killed_writer.size_of_append(len(self.said) - 1), EVENTS)}


Kill = Callable[..., Ended]


@pytest.fixture(scope="module")
def kill() -> Iterator[Kill]:
    """Run `tests.state.killed_writer` in a fork of a warm interpreter, armed at a crash point."""
    command = [sys.executable, "-m", "tests.state.killed_writer"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:

        def run(home: Path, at: str = "-") -> Ended:
            server.stdin.write(f"{at} {EVENTS} {home}\n")
            server.stdin.flush()
            said = []
            while not (line := server.stdout.readline()).startswith("exit"):
                said.append(int(line))
            return Ended(said, int(line.split()[1]))

        yield run
        server.stdin.close()


def start(home: Path, at: str | None = None) -> subprocess.Popen[str]:
    """Start it as a process of its own, armed by the environment."""
    environment = os.environ | ({ENVIRONMENT: at} if at else {})
    command = [sys.executable, "-m", "tests.state.killed_writer", str(home), str(EVENTS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)


def check(home: Path, ended: Ended, *, before: int = 0) -> int:
    """The log is sound and holds all that was acknowledged, and an append more at most; return its length."""
    assert ended.said[:1] in ([], [before]), "the owner found another length than its readers"
    if not (home / "events.db").exists():
        assert ended.said == []
        return 0
    report = verify_log(home)
    assert report.is_ok, report.first_finding
    assert report.events in ended.possible(before), ended
    with LogReader.open(home) as reader:
        stored = [item.event for item in reader.read(limit=10_000)]
    assert stored == STEPS[: report.events]
    return report.events


def finish(home: Path) -> str:
    """Write the rest undisturbed; return the run's last state."""
    killed_writer.main(home, EVENTS)
    with EventLog.open(home) as log:
        assert log.run_seq(killed_writer.RUN) == EVENTS
        return log.run_state(killed_writer.RUN).model_dump_json()


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
    "head.before_sync:1",
    "head.after_write:1",
    "head.after_write:2",
    "snapshot.before_commit:1",
    "snapshot.before_commit:2",
    "snapshot.after_commit:1",
    "snapshot.after_commit:2",
)


@parametrize_sweep("at", POINTS, quick=8)
def test_killed_at_a_point_it_loses_nothing_and_ends_like_its_twin(
    home: Path, kill: Kill, twin: str, at: str
) -> None:
    ended = kill(home, at)
    assert ended.returncode == -signal.SIGKILL, f"{at} was never reached"
    if ended.said:
        check(home, ended)
    assert finish(home) == twin
    assert verify_log(home).is_ok


@parametrize_sweep(
    "at", ["open.locked:1", "open.migrated:1", "open.checked:1", "log.before_commit:1"], quick=2
)
def test_killed_again_while_recovering_it_still_finishes(home: Path, kill: Kill, twin: str, at: str) -> None:
    stored = check(home, kill(home, "log.after_commit:5"))
    second = kill(home, at)
    assert second.returncode == -signal.SIGKILL
    assert check(home, second, before=stored) == stored
    assert finish(home) == twin


@parametrize_sweep("seed", range(4), quick=1)
def test_killed_at_random_many_times_it_finishes_like_its_twin(
    home: Path, kill: Kill, twin: str, seed: int
) -> None:
    draw = random.Random(seed)
    stored = 0
    for _ in range(6):
        ended = kill(home, f"{draw.randrange(7 if stored == 0 else 4, 14)}")
        assert ended.returncode in (0, -signal.SIGKILL)
        stored = check(home, ended, before=stored)
    assert finish(home) == twin


def test_killed_from_outside_it_loses_nothing(home: Path) -> None:
    with start(home) as process:
        said = [int(process.stdout.readline()) for _ in range(4)]
        process.kill()
        said += map(int, process.stdout)  # as lines to the end: what was buffered counts too
    check(home, Ended(said, process.returncode))


def test_an_owner_armed_by_its_environment_dies_and_leaves_its_home_free(home: Path) -> None:
    output, _ = start(home, "log.after_commit:3").communicate(timeout=120)
    assert output.split() == ["0", "1", "3"]
    with EventLog.open(home) as log:
        assert log.run_seq(killed_writer.RUN) == 6


# --- the points themselves ---


@pytest.mark.parametrize("text", ["x", "a:", "a:0", "0", "a:b", "-1", "1.5"])
def test_a_bad_setting_is_an_error_not_a_silent_pass(text: str) -> None:
    with pytest.raises(ValueError, match="expected NAME:N or N"):
        parse_trigger(text)


def test_points_are_inert_unless_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    kills: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, sig: kills.append(sig))
    assert parse_trigger(None) is None
    assert parse_trigger("") is None
    crash_point("log.before_commit")
    monkeypatch.setattr(crash, "_trigger", parse_trigger("b:2"))
    for name in ("a", "b", "a"):
        crash_point(name)
    assert kills == []
    crash_point("b")
    assert kills == [signal.SIGKILL]


def test_the_plain_form_counts_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    kills: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, sig: kills.append(sig))
    monkeypatch.setattr(crash, "_trigger", parse_trigger("3"))
    for name in ("a", "b"):
        crash_point(name)
    assert kills == []
    crash_point("c")
    assert kills == [signal.SIGKILL]
