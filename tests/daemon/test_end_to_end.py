"""Real processes: `agentctl run` killed, interrupted and resumed; `agentd` steered, stopped and refused.

The judge is the simulator in its jail, the proposer the scripted one, the problem small.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from agent_core.effects import LearningContext, PlanRequest
from daemon import exits
from state.errors import HomeError
from state.events import EffectEnded, PlanProposed
from state.log import EventLog
from state.model import EffectKey
from state.reader import LogReader
from state.verify import verify_log
from tests.support.sweeps import parametrize_sweep

ROOT = Path(__file__).parents[2]
RUN = (
    "run", "--problem", "silu", "--size", "reduced", "--rounds", "2", "--seed", "1", "--json",
    "--set", 'run.planner=["scripted"]', "--set", "run.search.plans=2", "--set", "run.search.beam=2",
    "--set", "run.starts=kernel",
)  # fmt: skip
TRANSLATING = (*(word.replace("starts=kernel", "starts=both") for word in RUN), "--rounds", "1")
AT_A_TIME = "NKI_AGENT_DAEMON__EVALUATIONS"
PATIENCE = 120
LOOK = 0.05


def command(program: str, home: Path, *arguments: object) -> list[str]:
    module = {"agentctl": "agentctl", "agentd": "daemon"}[program]
    return [sys.executable, "-m", module, "--home", str(home), *map(str, arguments)]


def call(home: Path, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("agentctl", home, *arguments),
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@contextmanager
def process(home: Path, program: str, *arguments: object):
    running = subprocess.Popen(
        command(program, home, *arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield running
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate(timeout=PATIENCE)


def wait_until(condition, patience: float = PATIENCE):
    """Return the first true value of `condition`, or fail."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(LOOK)
    raise AssertionError("it did not happen")


def line_with(stream, words: str) -> str:
    for line in stream:
        if words in line:
            return line
    raise AssertionError(f"no line with {words!r}")


def status(home: Path) -> dict:
    return json.loads(call(home, "status", "--json").stdout)


def only_run(home: Path) -> dict:
    (run,) = status(home)["runs"]
    return run


def drop_differences(report: dict) -> dict:
    """Return what twins share."""
    return {
        key: report[key] for key in ("state_hash", "decision_digest", "best", "best_ms", "round", "reason")
    }


def events(home: Path, **wanted) -> list:
    """Return the log's events; none while its owner is still making it."""
    try:
        with LogReader.open(home) as reader:
            return reader.read(limit=100_000, **wanted)
    except HomeError:
        return []


def count_ended(home: Path) -> int:
    """Return how many runs have ended, by the log: asking `agentctl` again and again takes a core."""
    return len(events(home, types=["RunCompleted", "RunCancelled"]))


def assert_sound(home: Path, run: str) -> None:
    ended = Counter(
        item.event.key for item in events(home, stream=run) if isinstance(item.event, EffectEnded)
    )
    assert set(ended.values()) == {1}
    assert verify_log(home).is_ok


def finish_run(home: Path, arguments: tuple[str, ...] = RUN) -> dict:
    called = call(home, *arguments)
    assert called.returncode == 0, called.stderr
    return json.loads(called.stdout)


@pytest.fixture(autouse=True)
def _one_evaluation_at_a_time(monkeypatch) -> None:
    """A second worker would take as long to start as it has to judge here."""
    monkeypatch.setenv(AT_A_TIME, "1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, dict]:
    """A home with one run that nothing disturbed, and what the run told."""
    home = tmp_path_factory.mktemp("twin") / "home"
    return home, finish_run(home)


@pytest.fixture
def twin(finished) -> dict:
    return finished[1]


@pytest.fixture
def ended_home(home, finished) -> Path:
    """A home of the test's own in which that run has ended."""
    return shutil.copytree(finished[0], home)


# --- a foreground run ------------------------------------------------------------------------------


def assert_killed_it_ends_like_its_twin(home: Path, run: tuple[str, ...], twin: dict, point: str) -> None:
    two = {AT_A_TIME: "2"}
    assert call(home, *run, NKI_AGENT_CRASH_AT=point, **two).returncode == -signal.SIGKILL
    call(home, "resume", "--last", NKI_AGENT_CRASH_AT="11", **two)
    resumed = call(home, "resume", "--last", "--json")
    assert resumed.returncode == 0, resumed.stderr
    report = json.loads(resumed.stdout)
    assert drop_differences(report) == drop_differences(twin)
    assert report["id"] != twin["id"]
    assert_sound(home, report["id"])


@parametrize_sweep(
    "point", ["30", "log.after_commit:9", "log.before_commit:25", "70"], quick=["log.after_commit:9"]
)
def test_killed_and_resumed_a_run_ends_like_its_twin(home, twin, point):
    assert_killed_it_ends_like_its_twin(home, RUN, twin, point)


@pytest.mark.slow
def test_killed_and_resumed_a_run_that_translates_ends_like_its_twin(home, tmp_path):
    twin = finish_run(tmp_path / "twin", TRANSLATING)
    assert twin["best_title"] == "the reference, translated"
    assert_killed_it_ends_like_its_twin(home, TRANSLATING, twin, "26")


@pytest.mark.slow
@pytest.mark.parametrize("point", ["1", "3", "12"])
def test_killed_while_its_home_is_made_a_run_is_started_again(home, twin, point):
    assert call(home, *RUN, NKI_AGENT_CRASH_AT=point).returncode == -signal.SIGKILL
    assert call(home, "resume", "--last").returncode == exits.NOT_THERE
    again = call(home, *RUN)
    assert again.returncode == 0, again.stderr
    assert drop_differences(json.loads(again.stdout)) == drop_differences(twin)


LOOKED_AT = 16
BUILT_IN = (
    *(word.replace("scripted", "builtin") for word in RUN), "--rounds", "1",
    "--set", f"run.search.lookahead_predictions={LOOKED_AT}",
)  # fmt: skip


@pytest.fixture(scope="module")
def built_in_twin(tmp_path_factory) -> dict:
    return finish_run(tmp_path_factory.mktemp("twin") / "home", BUILT_IN)


@pytest.mark.slow
def test_with_the_built_in_proposer_too_a_killed_run_ends_like_its_twin(home, built_in_twin):
    assert built_in_twin["best_ms"] < built_in_twin["initial_ms"]
    assert call(home, *BUILT_IN, NKI_AGENT_CRASH_AT="36").returncode == -signal.SIGKILL
    resumed = call(home, "resume", "--last", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert drop_differences(json.loads(resumed.stdout)) == drop_differences(built_in_twin)


@pytest.mark.slow
def test_killed_in_the_middle_of_looking_ahead_a_run_ends_like_its_twin(home, built_in_twin):
    """The search is made again from its request: some kernels were predicted, and none of that was logged."""
    with process(home, "agentd") as daemon:
        call(home, "submit", *BUILT_IN[1:])
        said = (json.loads(line_with(daemon.stderr, "kernels_predicted")) for _ in count())
        next(
            one for one in said if one["key"].startswith("r1.") and one["predicted"] > 1
        )  # not the parent alone
        daemon.kill()
    assert [item.event.delivery for item in events(home, types=["PredictionStarted"])] == [1]
    assert events(home, types=["PredictionBatch"]) == []
    resumed = call(home, "resume", "--last", "--json")
    assert resumed.returncode == 0, resumed.stderr
    report = json.loads(resumed.stdout)
    assert drop_differences(report) == drop_differences(built_in_twin)
    assert [item.event.delivery for item in events(home, types=["PredictionStarted"])] == [1, 2]
    (batch,) = events(home, types=["PredictionBatch"])
    assert batch.event.predicted + batch.event.failed <= LOOKED_AT
    assert_sound(home, report["id"])


@pytest.mark.slow
def test_two_planners_take_turns_and_learn_from_one_another(home):
    mixed = ('["scripted"]', '["builtin", "scripted"]')
    numbers = ("run.search.lookahead_predictions=12", "--set", "run.search.within_percent=0")
    called = call(home, *(word.replace(*mixed) for word in RUN), "--rounds", "3", "--set", *numbers)
    assert called.returncode == 0, called.stderr
    dealt = [item.event.slots for item in events(home, types=["RoundStarted"])]
    turns = ("builtin", "scripted")
    assert [[slot.planner for slot in slots] for slots in dealt] == [
        [turns[(round_ + number) % 2] for number in range(len(slots))] for round_, slots in enumerate(dealt)
    ]
    tried, told = {name: set() for name in turns}, {name: set() for name in turns}
    with LogReader.open(home) as reader:
        for item in reader.read(types=["PlanProposed", "PlanStarted"], limit=1000):
            key = EffectKey.parse(item.event.key)
            planner = dealt[key.round - 1][key.slot].planner
            if isinstance(item.event, PlanProposed):
                tried[planner].add(item.event.plan.technique)
            else:
                asked = PlanRequest.model_validate_json(reader.get_blob(item.event.request))
                told[planner] |= LearningContext.model_validate_json(
                    reader.get_blob(asked.context)
                ).credits.keys()
    assert tried["builtin"] & told["scripted"]
    assert tried["scripted"] & told["builtin"]
    assert not tried["builtin"] & tried["scripted"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_and_resumed_a_run_ends_like_its_twin(home, twin, number):
    with process(home, "agentctl", *RUN) as running:
        wait_until(lambda: events(home, types=["PlanProposed"]))
        running.send_signal(number)
        out, err = running.communicate(timeout=PATIENCE)
    run = only_run(home)["id"]
    assert running.returncode == 130
    assert f"agentctl resume --home {home} {run}" in err
    assert "Traceback" not in err
    assert json.loads(out)["state"] == "interrupted"
    resumed = call(home, "resume", run, "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert drop_differences(json.loads(resumed.stdout)) == drop_differences(twin)
    assert_sound(home, run)


@pytest.mark.slow
def test_two_foreground_runs_share_a_home(home, twin):
    with process(home, "agentctl", *RUN) as first:
        wait_until(lambda: events(home, types=["RunCreated"]))
        second = call(home, *RUN)
        first.communicate(timeout=PATIENCE)
    assert second.returncode == 0, second.stderr
    assert [drop_differences(run) for run in status(home)["runs"]] == [drop_differences(twin)] * 2


@pytest.mark.slow
def test_who_looks_on_takes_over_when_the_owner_dies(home, twin):
    with process(home, "agentctl", *RUN) as first:
        wait_until(lambda: events(home, types=["RunCreated"]))
        with process(home, "agentctl", *RUN) as second:
            line_with(second.stderr, f"process {first.pid} owns this home")
            first.kill()
            out, err = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, err
    assert drop_differences(json.loads(out)) == drop_differences(twin)
    assert call(home, "resume", "--last").returncode == 0
    assert [drop_differences(run) for run in status(home)["runs"]] == [drop_differences(twin)] * 2


# --- the daemon ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_daemon_works_on_what_is_submitted_and_stops_when_told(home, twin):
    with process(home, "agentd") as daemon:
        line_with(daemon.stderr, "started")
        shown = status(home)["daemon"]
        assert (shown["state"], shown["kind"], shown["pid"]) == ("running", "agentd", daemon.pid)
        submitted = call(home, "submit", *RUN[1:])
        run = json.loads(submitted.stdout)["run"]
        wait_until(lambda: count_ended(home) == 1)
        followed = call(home, *RUN)
        assert f"process {daemon.pid} owns this home" in followed.stderr
        assert drop_differences(json.loads(followed.stdout)) == drop_differences(twin)
        daemon.send_signal(signal.SIGSTOP)
        with process(home, "agentctl", *RUN) as onlooker:
            line_with(onlooker.stderr, "owns this home")
            onlooker.send_signal(signal.SIGINT)
            out, err = onlooker.communicate(timeout=PATIENCE)
        daemon.send_signal(signal.SIGCONT)
        assert onlooker.returncode == 130
        assert "detached" in err
        assert json.loads(out)["state"] == "detached"
        wait_until(lambda: count_ended(home) == 3)
        daemon.terminate()
        daemon.communicate(timeout=PATIENCE)
        assert daemon.returncode == 0
    assert status(home)["daemon"]["state"] == "stopped"
    assert [each["state"] for each in status(home)["runs"]] == ["completed"] * 3
    assert [drop_differences(each) for each in status(home)["runs"]] == [drop_differences(twin)] * 3
    assert_sound(home, run)


@pytest.mark.slow
def test_a_run_is_steered_through_the_daemon(home, tmp_path):
    kernel = tmp_path / "mine.py"
    kernel.write_text((ROOT / "seeds/problems/silu/kernel.py").read_text() + "# by hand\n")
    with process(home, "agentd") as daemon:
        line_with(daemon.stderr, "started")
        run = json.loads(call(home, "submit", *RUN[1:]).stdout)["run"]
        paused = call(home, "pause", run, "--reason", "lunch")
        assert (paused.returncode, paused.stdout.strip()) == (0, f"paused: {run}")
        assert only_run(home)["state"] == "paused"
        proposed = call(home, "propose", run, kernel, "--note", "mine", "--json")
        candidate = json.loads(proposed.stdout)["candidate"]
        again = call(home, "pause", run)
        assert again.returncode == 1
        assert again.stderr.strip() == f"agentctl: pause: run {run} is paused"
        assert call(home, "pause", "nobody").returncode == 3
        resumed = call(home, "resume", run, "--json")
        assert resumed.returncode == 0, resumed.stderr
        other = json.loads(call(home, "submit", *RUN[1:]).stdout)["run"]
        cancelled = call(home, "cancel", other)
        assert cancelled.returncode in (0, 1)  # it may have ended first
        wait_until(lambda: count_ended(home) == 2)
    with LogReader.open(home) as reader:
        (row,) = [row for row in reader.attempt_rows(run) if row["candidate"] == candidate]
    assert (row["author"], row["note"], row["verdict"]) == ("person", "mine", "correct")


@pytest.mark.slow
def test_the_daemon_carries_on_after_being_killed(home, twin):
    with process(home, "agentd") as daemon:
        line_with(daemon.stderr, "started")
        run = json.loads(call(home, "submit", *RUN[1:]).stdout)["run"]
        wait_until(lambda: events(home, types=["PlanStarted"]))
        daemon.kill()
    with process(home, "agentd") as daemon:
        wait_until(lambda: count_ended(home) == 1)
    assert only_run(home)["state"] == "completed"
    assert drop_differences(only_run(home)) == drop_differences(twin)
    assert_sound(home, run)


def test_a_second_daemon_is_refused(home):
    with process(home, "agentd") as daemon:
        line_with(daemon.stderr, "started")
        second = subprocess.run(
            command("agentd", home), cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    assert second.returncode == 75
    (line,) = second.stderr.splitlines()
    assert line.startswith("agentd: ")
    assert str(daemon.pid) in line


def test_the_daemon_waits_for_a_foreground_owner_and_says_so(home):
    with EventLog.open(home) as event_log, process(home, "agentd") as daemon:
        line = line_with(daemon.stderr, "waiting_for_home")
        assert json.loads(line)["owner_pid"] == os.getpid()
        event_log.close()
        line_with(daemon.stderr, "started")


LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA busy_timeout=60000")
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(home: Path):
    """Let a client of SQLite hold the log's write lock until the block ends; it takes it when it can."""
    started = subprocess.Popen(
        [sys.executable, "-c", LOCK, str(home / "events.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with started as client:
        try:
            assert client.stdout.readline() == "locked\n"
            yield client
        finally:
            client.communicate()


def test_a_run_whose_log_is_locked_waits_says_so_and_goes_on(home, twin):
    with process(home, "agentctl", *RUN) as running:
        wait_until(lambda: events(home, types=["EvaluationCompleted"]))
        with locked(home) as client:
            said = wait_until(lambda: status(home)["daemon"]["waits_for"])
            assert said.startswith(f"process {client.pid} (")
            shown = call(home, "status").stdout
            assert said.split(" holds")[0] in " ".join(shown.split())
            time.sleep(7)  # SQLite itself gave up after five seconds
            assert running.poll() is None
        output, told = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, told
    assert "appends wait" in told
    assert "the log is free again" in told
    assert drop_differences(json.loads(output)) == drop_differences(twin)
    assert status(home)["daemon"]["waits_for"] is None
    assert verify_log(home).is_ok


def test_a_daemon_that_finds_its_log_locked_waits_and_a_stop_is_heeded(home):
    EventLog.open(home).close()
    with locked(home), process(home, "agentd") as daemon:
        line = line_with(daemon.stderr, "waiting_for_home")
        assert "another process holds a lock on the log" in json.loads(line)["error"]
        daemon.terminate()
        assert daemon.wait(PATIENCE) == 0
    with process(home, "agentd") as daemon:
        line_with(daemon.stderr, "started")
        with locked(home), process(home, "agentctl", *RUN):  # which asks the daemon, that cannot store it
            wait_until(lambda: status(home)["daemon"]["waits_for"])
            daemon.terminate()
            assert daemon.wait(PATIENCE) == 0
    assert verify_log(home).is_ok


# --- tail ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tail_follows_across_restarts_without_gap_or_repeat(home):
    with process(home, "agentctl", "tail", "-f", "--json", "--after", 0) as tail:
        for _ in range(2):
            assert call(home, *RUN).returncode == 0
        last = events(home)[-1].seq
        seen = []
        for line in tail.stdout:
            seen.append(json.loads(line)["seq"])
            if seen[-1] == last:
                break
        tail.send_signal(signal.SIGINT)
        tail.communicate(timeout=PATIENCE)
    assert seen == list(range(1, last + 1))
    assert tail.returncode == 130


@pytest.mark.slow
def test_a_reader_that_leaves_is_no_error(ended_home):
    with process(ended_home, "agentctl", "tail", "-f", "--after", 0) as tail:
        tail.stdout.readline()
        tail.stdout.close()
        call(ended_home, *RUN)
        assert tail.wait(timeout=PATIENCE) == 0
        assert tail.stderr.read() == ""


@pytest.mark.slow
def test_damage_in_old_events_is_found_behind_the_daemons_back(ended_home):
    """Opening looks at what is new; the proof that runs beside the work looks at everything."""
    with EventLog.open(ended_home):
        """A clean stop: what is there now counts as looked at."""
    proposed = events(ended_home, types=["KernelProposed"])
    victim = next(item for item in proposed if item.event.author == "scripted")
    with sqlite3.connect(ended_home / "events.db") as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(
            "UPDATE event SET payload = replace(payload, 'scripted', 'somebody') WHERE seq = ?", (victim.seq,)
        )
    connection.close()
    with process(ended_home, "agentd") as daemon:
        _, err = daemon.communicate(timeout=PATIENCE)
    assert daemon.returncode == 4
    assert f"event {victim.seq} ({victim.stream}@{victim.run_seq})" in err.splitlines()[-1]


@pytest.mark.slow
def test_a_sound_log_is_proved_while_the_daemon_works(ended_home):
    with process(ended_home, "agentd") as daemon:
        proved = json.loads(line_with(daemon.stderr, "log_verified"))
        assert proved["events"] == events(ended_home)[-1].seq
        daemon.terminate()
        daemon.communicate(timeout=PATIENCE)
    assert daemon.returncode == 0


@pytest.mark.slow
def test_a_daemon_starts_again_when_an_edit_of_before_has_faults(ended_home, monkeypatch):
    monkeypatch.delenv(AT_A_TIME)  # which the file would not change
    (ended_home / "config.toml").write_text("[daemon]\nevaluations = 0\n")
    with process(ended_home, "agentd") as daemon:
        refused = json.loads(line_with(daemon.stderr, "config_refused"))
        assert "evaluations" in refused["faults"][0]
        daemon.terminate()
        daemon.communicate(timeout=PATIENCE)
    assert daemon.returncode == 0
    assert "evaluations" in call(ended_home, "status").stderr + call(ended_home, "status").stdout
