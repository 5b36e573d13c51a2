"""Full disks and failing disks: a typed error, nothing half stored, and the log usable afterwards."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from state import schema
from state.errors import LogDamaged, StorageFailed, StorageFull, to_state_error
from state.events import CommandReceived, PlanStarted, RunPaused
from state.log import EventLog
from state.model import digest_of
from state.records import NewEvent
from state.verify import verify_log
from tests.support.scripted_runs import ScriptedRun, append_run

ROOT = Path(__file__).resolve().parents[2]
NOISE = ScriptedRun(seed=1)._random.randbytes(300_000)


def begin(log: EventLog) -> None:
    step = next(ScriptedRun().steps())
    log.append_now([NewEvent("r", step.event)], blobs=step.blobs)


def limit_pages(log: EventLog, *, spare: int) -> None:
    """Let the database grow by `spare` pages only: SQLite then says what it says on a full disk."""
    connection = log._appender.connection
    connection.execute(f"PRAGMA max_page_count = {schema.read_pragma(connection, 'page_count') + spare}")


def test_a_full_disk_stores_nothing_and_frees_the_log_again(log: EventLog, home: Path) -> None:
    begin(log)
    state = log.run_state("r")
    limit_pages(log, spare=4)
    pause = [NewEvent("r", RunPaused(reason="full"))]
    with pytest.raises(StorageFull, match="no space left"):
        log.append_now(pause, blobs=[NOISE])
    assert (log.run_state("r"), log.head.seq) == (state, 1)
    limit_pages(log, spare=1000)
    assert log.append_now(pause, blobs=[NOISE])[0].run_seq == 2
    assert verify_log(home).is_ok


async def test_what_still_fits_is_stored_beside_what_does_not(log: EventLog, home: Path) -> None:
    begin(log)
    limit_pages(log, spare=30)
    requests = [PlanStarted(key=f"r1.b0.p{n}.k0.f0.planner", request=digest_of(NOISE)) for n in range(6)]
    batches = [
        log.append([NewEvent("r", event)], blobs=[NOISE] if n == 3 else [])
        for n, event in enumerate(requests)
    ]
    answers = await asyncio.gather(*batches, return_exceptions=True)
    assert [isinstance(answer, StorageFull) for answer in answers] == [n == 3 for n in range(6)]
    assert set(log.run_state("r").open) == {event.key for n, event in enumerate(requests) if n != 3}


def test_a_failed_commit_moves_neither_state_nor_chain(log: EventLog, home: Path, monkeypatch) -> None:
    begin(log)
    state = log.run_state("r")

    def fail(connection, changes) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr("state.projections.write_changes", fail)
        with pytest.raises(StorageFailed):
            log.append_now([NewEvent("r", RunPaused(reason="x"))])
    assert (log.run_state("r"), log.head.seq) == (state, 1)
    assert log.append_now([NewEvent("r", RunPaused(reason="x"))])[0].run_seq == 2
    assert verify_log(home).is_ok


def test_after_an_io_error_the_database_is_opened_anew(log: EventLog, monkeypatch) -> None:
    begin(log)
    broken = log._appender.connection
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_WRITE

    def fail(connection, changes) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("state.projections.write_changes", fail)
        with pytest.raises(StorageFailed, match="disk I/O error"):
            log.append_now([NewEvent("r", RunPaused(reason="x"))])
    assert log.append_now([NewEvent("r", RunPaused(reason="x"))])[0].run_seq == 2
    assert log._appender.connection is not broken


def test_an_event_that_is_stored_although_its_commit_failed_counts_at_once(
    log: EventLog, monkeypatch
) -> None:
    begin(log)
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC

    def fail(name: str) -> None:
        if name == "log.after_commit":
            raise error

    with monkeypatch.context() as patch:
        patch.setattr("state.appender.crash_point", fail)
        (stored,) = log.append_now(
            [NewEvent("system", CommandReceived(id="c", verb="pause", payload="0" * 64))]
        )
    assert stored.seq == log.head.seq == 2
    assert list(log.system_state().pending) == ["c"]


def test_acknowledged_events_missing_after_an_io_error_stop_the_log(log: EventLog, monkeypatch) -> None:
    begin(log)
    log._appender._suspect = True
    with monkeypatch.context() as patch:
        patch.setattr("state.queries.last_row", lambda connection, stream=None: None)
        for _ in range(2):
            with pytest.raises(StorageFailed, match="its tail was lost"):
                log.append_now([NewEvent("r", RunPaused(reason="x"))])
    assert log.append_now([NewEvent("r", RunPaused(reason="x"))])[0].run_seq == 2


FILL = """
import resource, signal, sys
from pathlib import Path
from tests.support.scripted_runs import ScriptedRun
from state.errors import AppendError
from state.log import EventLog
from state.records import NewEvent
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = EventLog.open(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
acked = 0
try:
    for step in ScriptedRun(rounds=8).steps():
        acked = log.append_now([NewEvent("r", step.event)], blobs=step.blobs)[0].seq
except AppendError as error:
    print(error.code, acked)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
steps = list(ScriptedRun(rounds=8).steps())
for step in steps[log.run_seq("r"):]:
    log.append_now([NewEvent("r", step.event)], blobs=step.blobs)
print(log.run_seq("r") == len(steps), log.run_seq("r") >= acked)
log.close()
"""


def test_a_file_that_may_not_grow_stops_appends_not_the_log(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(home)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.split()[0] in {"storage_full", "storage_failed"}
    assert second == "True True"
    assert verify_log(home).is_ok


def test_a_file_system_that_refuses_wal_is_refused(home: Path, monkeypatch) -> None:
    monkeypatch.setattr(schema, "_WRITER_PRAGMAS", (("journal_mode", "nonsense"),))
    with pytest.raises(StorageFailed, match="journal_mode=delete where the log needs nonsense"):
        EventLog.open(home)


def test_the_writer_s_pragmas_hold(log: EventLog) -> None:
    connection = log._appender.connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    found = {
        name: schema.read_pragma(connection, name) for name in ("synchronous", "foreign_keys", "mmap_size")
    }
    assert found == {"synchronous": 2, "foreign_keys": 1, "mmap_size": 0}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_CORRUPT, LogDamaged),
        (sqlite3.SQLITE_FULL, StorageFull),
        (sqlite3.SQLITE_IOERR_FSYNC, StorageFailed),
        (sqlite3.SQLITE_READONLY, StorageFailed),
        (None, StorageFailed),
    ],
)
def test_sqlite_s_errors_become_ours_by_code(code: int | None, kind: type[Exception]) -> None:
    error = sqlite3.OperationalError("message")
    if code is not None:
        error.sqlite_errorcode = code
    assert type(to_state_error(error)) is kind


def test_the_writer_outlives_a_failing_snapshot_and_head(log: EventLog, monkeypatch, caplog) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr("state.head.HeadFile.record", fail)
        patch.setattr("state.writer.HEAD_EVERY_S", 0.0)
        patch.setattr("state.snapshots.save_snapshot", fail)
        append_run(log, "r", rounds=1)
    assert "both are retried" in caplog.text
    append_run(log, "s", rounds=1)
