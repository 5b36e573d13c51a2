"""Backups: one sound file of a log in use; restored, it is the log, and the old one is kept."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from state.backup import backup_log, restore_log
from state.compact import compact_log
from state.errors import BadTarget, HomeLocked, LogDamaged, NoLog, TailLost
from state.events import LogRewritten
from state.head import read_head
from state.log import EventLog
from state.log_rebuild import migrate_log
from state.model import SYSTEM_STREAM
from state.reader import LogReader
from state.records import RecordedEvent
from state.verify import verify_file, verify_log
from tests.support.scripted_runs import append_run

Damage = Callable[..., None]


def events_of(path: Path) -> list[tuple[int, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT seq, hex(hash) FROM event ORDER BY seq").fetchall()


def test_a_log_in_use_is_backed_up_whole(log: EventLog, home: Path, tmp_path: Path) -> None:
    stored = append_run(log, "r")
    report = backup_log(home, tmp_path / "b.db")
    assert (report.is_ok, report.head.seq, report.head.hash) == (True, stored[-1].seq, stored[-1].hash)
    assert verify_file(tmp_path / "b.db").is_ok
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.db", "home"]
    assert (tmp_path / "b.db").stat().st_mode & 0o077 == 0


def test_a_backup_taken_while_events_are_appended_is_a_prefix(
    home: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("state.log_rebuild._PAGES", 2)
    with EventLog.open(home) as log:
        append_run(log, "first")
        more = threading.Thread(target=lambda: append_run(log, "second"))
        steps: list[tuple[int, int]] = []

        def progress(done: int, total: int) -> None:
            if not steps:
                more.start()
            steps.append((done, total))
            if len(steps) == 3:
                more.join()  # every event of the second run is committed while pages are still copied

        report = backup_log(home, tmp_path / "b.db", progress=progress)
        head = log.head.seq
    assert steps[-1][0] == steps[-1][1] > len(steps) > 3
    assert report.head.seq < head
    assert events_of(tmp_path / "b.db") == events_of(home / "events.db")[: report.head.seq]


def test_a_file_that_is_there_is_replaced_only_if_asked(
    home: Path, stored: list[RecordedEvent], tmp_path: Path
) -> None:
    target = tmp_path / "b.db"
    target.write_text("precious")
    with pytest.raises(BadTarget, match="is there already"):
        backup_log(home, target)
    assert target.read_text() == "precious"
    assert backup_log(home, target, replace=True).is_ok


@pytest.mark.parametrize("name", ["events.db", "HEAD", "events.db-wal"])
def test_the_log_s_own_files_are_no_target(home: Path, stored: list[RecordedEvent], name: str) -> None:
    with pytest.raises(BadTarget, match="belongs to the log itself"):
        backup_log(home, home / name, replace=True)
    assert verify_log(home).is_ok


def test_a_damaged_log_makes_no_backup(
    home: Path, stored: list[RecordedEvent], damage: Damage, tmp_path: Path
) -> None:
    damage("UPDATE event SET payload = payload || ' ' WHERE seq = 20")
    with pytest.raises(LogDamaged, match="event 20"):
        backup_log(home, tmp_path / "b.db")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_log_that_lost_its_tail_makes_no_backup(
    home: Path, stored: list[RecordedEvent], damage: Damage, tmp_path: Path
) -> None:
    damage("DELETE FROM event WHERE seq > 100")
    with pytest.raises(TailLost):
        backup_log(home, tmp_path / "b.db")


def test_there_is_nothing_to_back_up(home: Path, tmp_path: Path) -> None:
    with pytest.raises(NoLog):
        backup_log(home, tmp_path / "b.db")


# --- restoring ---


def test_a_restored_log_is_the_one_that_was_backed_up(home: Path, tmp_path: Path) -> None:
    with EventLog.open(home) as log:
        first = append_run(log, "first")
        backup_log(home, tmp_path / "b.db")
        append_run(log, "second")
    before = events_of(home / "events.db")
    done = restore_log(home, tmp_path / "b.db")
    assert events_of(home / "events.db")[: len(first)] == before[: len(first)]
    assert events_of(done.kept / "events.db") == before
    assert read_head(done.kept / "HEAD").seq == before[-1][0]
    assert (verify_log(home).is_ok, verify_log(home).anchored) == (True, True)
    with EventLog.open(home) as log:
        (said,) = log.read(stream=SYSTEM_STREAM)
        assert said.event == done.event == LogRewritten(verb="restore", detail=done.event.detail)
        append_run(log, "second")
    assert verify_log(home).is_ok


def test_restoring_makes_a_home(home: Path, stored: list[RecordedEvent], tmp_path: Path) -> None:
    backup_log(home, tmp_path / "b.db")
    other = tmp_path / "other"
    assert restore_log(other, tmp_path / "b.db").kept is None
    with LogReader.open(other) as here, LogReader.open(home) as there:
        assert here.run_state("first") == there.run_state("first")
    assert other.stat().st_mode & 0o777 == 0o700


def test_a_damaged_backup_changes_nothing(home: Path, stored: list[RecordedEvent], tmp_path: Path) -> None:
    backup_log(home, tmp_path / "b.db")
    content = (tmp_path / "b.db").read_bytes()
    (tmp_path / "b.db").write_bytes(content.replace(b"hoist", b"hoisT", 1))
    before = (home / "events.db").read_bytes()
    with pytest.raises(LogDamaged):
        restore_log(home, tmp_path / "b.db")
    assert (home / "events.db").read_bytes() == before
    assert verify_log(home).is_ok
    assert not (home / "events.db.new").exists()


@pytest.mark.parametrize("content", [None, b"", b"no database at all " * 300])
def test_what_is_no_backup_is_refused(
    home: Path, stored: list[RecordedEvent], tmp_path: Path, content
) -> None:
    if content is not None:
        (tmp_path / "b.db").write_bytes(content)
    with pytest.raises((NoLog, LogDamaged)):
        restore_log(home, tmp_path / "b.db")
    assert verify_log(home).is_ok


def test_a_home_in_use_is_not_restored(log: EventLog, home: Path, tmp_path: Path) -> None:
    append_run(log, "r", rounds=1)
    backup_log(home, tmp_path / "b.db")
    with pytest.raises(HomeLocked):
        restore_log(home, tmp_path / "b.db")


def test_a_damaged_log_is_restored_and_kept(
    home: Path, stored: list[RecordedEvent], damage: Damage, tmp_path: Path
) -> None:
    backup_log(home, tmp_path / "b.db")
    damage("DELETE FROM event WHERE seq > 100")
    (home / "HEAD").write_text("garbage")
    done = restore_log(home, tmp_path / "b.db")
    assert verify_log(home).is_ok
    assert len(events_of(done.kept / "events.db")) == 100


def test_a_reader_that_follows_sees_the_restored_log(
    home: Path, stored: list[RecordedEvent], tmp_path: Path
) -> None:
    backup_log(home, tmp_path / "b.db")
    with LogReader.open(home) as reader:
        assert reader.head.seq == len(stored)
        restore_log(home, tmp_path / "b.db")
        assert reader.head.seq == len(stored) + 1


@pytest.mark.parametrize("then", ["nothing", "migrate", "compact", "backup", "restore"])
def test_what_a_killed_owner_left_is_no_log_that_lost_its_wal(home: Path, tmp_path: Path, then: str) -> None:
    """Whoever opens it next brings its WAL into the file, and takes back the note that it is in use."""
    left = tmp_path / "left"
    with EventLog.open(home) as log:
        append_run(log, "r", rounds=1)
        backup_log(home, tmp_path / "b.db")
        left.mkdir()
        for name in ("events.db", "events.db-wal", "HEAD"):
            shutil.copyfile(home / name, left / name)
    {
        "nothing": lambda: None,
        "migrate": lambda: migrate_log(left),
        "compact": lambda: compact_log(left),
        "backup": lambda: backup_log(left, tmp_path / "c.db"),
        "restore": lambda: restore_log(left, tmp_path / "b.db"),
    }[then]()
    for _ in range(2):
        assert verify_log(left).is_ok
        with EventLog.open(left, full_check=True) as log:
            assert log.run_state("r").has_ended
