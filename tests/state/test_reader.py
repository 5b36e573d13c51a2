"""Readers: what they select, and that they work however the log's owner left it."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.errors import HomeUnreadable, NoLog, ReadModelsStale, StreamUnknown
from state.events import RunPaused, RunResumed
from state.fold import apply_event
from state.log import EventLog
from state.model import SYSTEM_STREAM
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from tests.support.scripted_runs import ScriptedRun, append_run
from tests.support.sweeps import scale_examples

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def reader(home: Path, stored: list[RecordedEvent]) -> Iterator[LogReader]:
    with LogReader.open(home) as opened:
        yield opened


# --- selecting ---


def test_the_log_is_read_in_pages_without_gap_or_repeat(
    reader: LogReader, stored: list[RecordedEvent]
) -> None:
    seen: list[RecordedEvent] = []
    while page := reader.read(after=seen[-1].seq if seen else 0, limit=7):
        seen += page
    assert seen == stored


SELECTIONS = st.fixed_dictionaries(
    {
        "after": st.integers(0, 400),
        "limit": st.integers(1, 50),
        "newest": st.booleans(),
        "stream": st.sampled_from([None, "first", "second"]),
        "types": st.sampled_from([None, ("KernelKept",), ("PlanStarted", "RoundStarted"), ()]),
    }
)


@given(how=SELECTIONS)
@settings(max_examples=scale_examples(150))
def test_every_selection_is_what_a_scan_would_give(two_runs, how) -> None:
    home, stored = two_runs
    wanted = [
        item
        for item in stored
        if item.seq > how["after"]
        and how["stream"] in (None, item.stream)
        and (how["types"] is None or item.type in how["types"])
    ]
    with LogReader.open(home) as reader:
        found = reader.read(**how)
    assert found == (wanted[-how["limit"] :] if how["newest"] else wanted[: how["limit"]])


def test_single_events_and_the_head(reader: LogReader, stored: list[RecordedEvent]) -> None:
    assert reader.event_by_seq(17) == stored[16]
    assert reader.event_by_seq(10**9) is None
    assert (reader.head.seq, reader.head.hash) == (stored[-1].seq, stored[-1].hash)
    assert reader.run_seq("first") == sum(item.stream == "first" for item in stored)
    assert reader.run_seq("none") == 0


def test_an_event_of_a_run_is_found_by_its_number(reader: LogReader, stored: list[RecordedEvent]) -> None:
    assert [reader.run_event(item.stream, item.run_seq) for item in stored] == stored
    assert reader.run_event("first", 0) is reader.run_event("first", 10**30) is None
    with pytest.raises(StreamUnknown, match="no run none"):
        reader.run_event("none", 1)


def test_runs_are_listed_newest_first_or_one_alone(reader: LogReader, stored: list[RecordedEvent]) -> None:
    second, first = reader.run_rows()
    assert (first["run"], second["run"]) == ("first", "second")
    assert (reader.run_rows("first"), reader.run_rows("none")) == ([first], [])
    assert [{name: row[name] for name in first} for row in reader.run_summaries()] == [second, first]


def test_a_state_at_any_event_is_the_fold_up_to_it(reader: LogReader, stored: list[RecordedEvent]) -> None:
    state = None
    for item in stored:
        if item.stream != "second":
            continue
        state = apply_event(state, item.event)
        if item.run_seq % 13 == 0:
            assert reader.run_state("second", to=item.run_seq) == state
    assert reader.run_state("second") == state


def test_what_is_not_there_is_named(reader: LogReader) -> None:
    for call in (lambda: reader.run_state("none"), lambda: reader.read(stream="none")):
        with pytest.raises(StreamUnknown, match="no run none"):
            call()
    with pytest.raises(StreamUnknown, match="no event first@9999"):
        reader.run_state("first", to=9999)
    with pytest.raises(StreamUnknown, match=SYSTEM_STREAM):
        reader.run_state(SYSTEM_STREAM)
    assert reader.system_state().pending == {}


def test_a_verdict_is_found_by_its_cache_key(reader: LogReader, stored: list[RecordedEvent]) -> None:
    first = next(item for item in stored if item.type == "EvaluationCompleted")
    assert reader.known_evaluations(first.event.cache_key) == [first]
    assert reader.known_evaluations("0" * 64) == []


def test_following_sees_what_is_appended_and_waits_for_it(log: EventLog, home: Path) -> None:
    step = next(ScriptedRun().steps())
    with LogReader.open(home) as reader:
        assert not reader.wait_for_events(after=0, timeout_s=0)
        later = threading.Timer(0.1, log.append_now, args=([NewEvent("r", step.event)],))
        later.start()
        assert reader.wait_for_events(after=0, timeout_s=60)
        assert [item.event for item in reader.read(after=0)] == [step.event]
        later.join()


def test_a_reader_does_not_keep_the_writer_from_checkpointing(log: EventLog, home: Path) -> None:
    begin = next(ScriptedRun().steps())
    log.append_now([NewEvent("r", begin.event)])
    with LogReader.open(home) as reader:
        for n in range(30):
            reader.read(limit=1)
            pauses = [NewEvent("r", RunPaused(reason="x" * 400)), NewEvent("r", RunResumed())] * 100
            log.append_now(pauses)
            assert reader.head.seq == log.head.seq, n
        log.close()  # its last checkpoint empties the -wal, unless a reader is in the way
        assert (home / "events.db-wal").stat().st_size == 0


def test_a_reader_cannot_write(reader: LogReader) -> None:
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader._handle.connection().execute("DELETE FROM runs")


@pytest.mark.parametrize("statement", ["DELETE FROM meta", "UPDATE meta SET value = '99'"])
def test_read_models_of_another_version_are_not_read(
    home: Path, stored: list[RecordedEvent], damage, statement: str
) -> None:
    damage(statement)
    with LogReader.open(home) as reader:
        for call in (reader.run_summaries, reader.active_runs, lambda: reader.spend_rows("first")):
            with pytest.raises(ReadModelsStale, match="start the daemon"):
                call()
        with pytest.raises(ReadModelsStale):
            reader.known_evaluations("0" * 64)
        assert len(reader.read(limit=9999)) == len(stored)
    EventLog.open(home).close()
    with LogReader.open(home) as reader:
        assert len(reader.run_summaries()) == 2


# --- however the owner left it ---

READ = """
import importlib.metadata, os, sys  # which pydantic imports when it builds its first model
from pathlib import Path
import sqlite_utils
from state.reader import LogReader
if os.geteuid() == 0:  # root may write anything: become nobody, with everything imported
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
with LogReader.open(Path(sys.argv[1])) as reader:
    print(reader.head.seq, len(reader.read(limit=9999)), reader.run_summaries()[0]["run"])
"""

HOLD = (
    "import os, signal, sys; from pathlib import Path; from state.log import EventLog\n"
    "from tests.support.scripted_runs import append_run\n"
    "log = EventLog.open(Path(sys.argv[1])); print(append_run(log, 'r', rounds=1)[-1].seq, flush=True)\n"
    "sys.stdin.readline(); os.kill(os.getpid(), signal.SIGKILL)"
)


@pytest.fixture
def public_home() -> Iterator[Path]:
    """A home that other users may read but not write, outside the private directory of this test run."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory) / "home"
        home.mkdir()
        yield home
        home.chmod(0o755)


def open_up(home: Path) -> None:
    """Let everyone read, and nobody but root write."""
    home.parent.chmod(0o755)
    for path in home.iterdir():
        path.chmod(0o444)
    home.chmod(0o555)


def read_as_another(home: Path) -> str:
    """What a reader prints who may not write the home."""
    command = [sys.executable, "-c", READ, str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def owner(public_home: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the home and holds a run of a round; a line on its input kills it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(public_home)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    process.seq = int(process.stdout.readline())
    with process:
        yield process
        process.kill()


def kill(owner: subprocess.Popen[str]) -> None:
    owner.communicate("\n")
    assert owner.returncode == -signal.SIGKILL


def test_a_running_log_is_read_by_another_user(owner, public_home: Path) -> None:
    open_up(public_home)
    assert read_as_another(public_home) == f"{owner.seq} {owner.seq} r"


def test_a_crashed_log_is_read_by_another_user(owner, public_home: Path) -> None:
    kill(owner)
    open_up(public_home)
    assert read_as_another(public_home) == f"{owner.seq} {owner.seq} r"


def test_a_crashed_log_without_shared_memory_is_read_by_another_user(owner, public_home: Path) -> None:
    kill(owner)
    (public_home / "events.db-shm").unlink()
    open_up(public_home)
    assert read_as_another(public_home) == f"{owner.seq} {owner.seq} r"


def test_a_cleanly_stopped_log_is_read_by_another_user(public_home: Path) -> None:
    with EventLog.open(public_home) as log:
        last = append_run(log, "r", rounds=1)[-1].seq
    assert not (public_home / "events.db-wal").exists()
    open_up(public_home)
    assert read_as_another(public_home) == f"{last} {last} r"


def test_a_crashed_log_is_opened_again_with_all_that_was_acknowledged(owner, public_home: Path) -> None:
    kill(owner)
    with EventLog.open(public_home) as log:
        assert log.head.seq == owner.seq
        assert log.run_state("r").has_ended


def test_a_frozen_view_is_renewed_when_the_files_change(
    home: Path, stored: list[RecordedEvent], monkeypatch
) -> None:
    real = sqlite3.connect

    def no_live_view(database, *args, **kwargs):
        if "mode=ro" in str(database):
            raise sqlite3.OperationalError("attempt to write a readonly database")
        return real(database, *args, **kwargs)

    monkeypatch.setattr("state.readonly.sqlite3.connect", no_live_view)
    with LogReader.open(home) as reader:
        assert reader.head.seq == len(stored)
        with EventLog.open(home) as log:
            last = append_run(log, "third", rounds=1)[-1].seq
            assert log.read(newest=True, limit=1)[0].seq == last
            assert reader.head.seq == last
        assert reader.head.seq == last


def test_a_home_without_a_log_is_named(home: Path) -> None:
    with pytest.raises(NoLog, match="no such directory"):
        LogReader.open(home)
    home.mkdir()
    with pytest.raises(NoLog, match="nothing was recorded"):
        LogReader.open(home)
    sqlite3.connect(home / "events.db").close()
    (home / "events.db").touch()
    with pytest.raises(NoLog):
        LogReader.open(home)


def test_an_unreadable_log_is_named(home: Path, stored: list[RecordedEvent], monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(HomeUnreadable, match="no permission to read"):
        LogReader.open(home)


def test_a_copy_of_a_home_is_a_home(home: Path, stored: list[RecordedEvent], tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "copy")
    with EventLog.open(tmp_path / "copy") as log:
        assert log.read(limit=9999) == stored
