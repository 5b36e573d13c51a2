"""Opening a log for writing: who owns it, whether it is whole, whether this program may write it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from state import lock, projections, schema
from state.errors import (
    HomeLocked,
    HomeOnNetwork,
    HomeUnreadable,
    LogDamaged,
    LogTooNew,
    NoLog,
    StateError,
    TailLost,
    WalLost,
)
from state.head import EMPTY_HEAD, Head, read_head, write_head
from state.home import filesystem_type, prepare_home
from state.log import EventLog
from state.reader import LogReader
from state.records import NewEvent, RecordedEvent
from state.repair import repair_log
from state.verify import verify_log
from tests.support.scripted_runs import ScriptedRun, append_run

Damage = Callable[..., None]


# --- the owner ---


def test_a_second_owner_is_told_who_the_first_is(log: EventLog, home: Path) -> None:
    with pytest.raises(HomeLocked, match=f"process {os.getpid()}") as caught:
        EventLog.open(home)
    assert caught.value.owner_pid == os.getpid()


def test_another_process_is_kept_out_too(log: EventLog, home: Path) -> None:
    code = f"from pathlib import Path; from state.log import EventLog; EventLog.open(Path({str(home)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"HomeLocked: {home}: process {os.getpid()} owns this home" in done.stderr


def test_the_owner_can_be_asked_for_and_leaves_with_the_lock(home: Path) -> None:
    assert lock.read_owner(home / "agentd.lock") is None
    with EventLog.open(home):
        found = lock.read_owner(home / "agentd.lock")
        assert (found.pid, found.boot) == (os.getpid(), lock.read_boot_id())
    assert lock.read_owner(home / "agentd.lock") is None


def test_an_owner_whose_note_is_illegible_still_owns(log: EventLog, home: Path) -> None:
    (home / "agentd.lock").write_text("garbage")
    assert lock.read_owner(home / "agentd.lock").pid == 0
    with pytest.raises(HomeLocked, match="another process") as caught:
        EventLog.open(home)
    assert caught.value.owner_pid is None


def test_a_failed_opening_leaves_the_home_free(
    home: Path, stored: list[RecordedEvent], damage: Damage
) -> None:
    damage("DELETE FROM event WHERE seq > 100")
    for _ in range(2):
        with pytest.raises(TailLost):
            EventLog.open(home)


# --- the home ---


def test_a_home_is_made_only_if_asked_for(home: Path) -> None:
    with pytest.raises(NoLog, match="no such directory"):
        EventLog.open(home, create=False)
    home.mkdir()
    with pytest.raises(NoLog):
        EventLog.open(home, create=False)


def test_a_file_is_no_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeUnreadable, match=r"file"):
        EventLog.open(tmp_path / "file")
    with pytest.raises(HomeUnreadable):
        EventLog.open(tmp_path / "file" / "below")


def test_a_home_without_permission_is_refused(home: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(HomeUnreadable, match="no permission to write"):
        EventLog.open(home)


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/export /mnt/shared nfs4 rw 0 0
tmpfs /mnt/shared/local\\040disk tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "ext4"),
        ("/mnt/shared", "nfs4"),
        ("/mnt/shared/a/b", "nfs4"),
        ("/mnt/shared/local disk/x", "tmpfs"),
        ("/mnt/sharedx", "ext4"),
    ],
)
def test_the_nearest_mount_decides_the_file_system(path: str, kind: str) -> None:
    assert filesystem_type(Path(path), MOUNTS) == kind


def test_a_network_file_system_is_refused(home: Path, tmp_path: Path, monkeypatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr("state.home.MOUNTS", mounts)
    with pytest.raises(HomeOnNetwork, match="nfs4"):
        prepare_home(home, create=True)


# --- the anchor ---


def test_the_anchor_names_the_last_event_after_closing(home: Path, stored: list[RecordedEvent]) -> None:
    last = stored[-1]
    assert read_head(home / "HEAD") == Head(last.seq, last.stream, last.run_seq, last.hash)


def test_a_new_home_has_an_anchor_from_the_start(log: EventLog, home: Path) -> None:
    assert read_head(home / "HEAD") == EMPTY_HEAD


def test_a_log_that_ends_before_its_anchor_has_lost_its_tail(
    home: Path, stored: list[RecordedEvent], damage: Damage
) -> None:
    damage("DELETE FROM event WHERE seq > 100")
    with pytest.raises(
        TailLost, match=f"ends at event 100, but event {len(stored)} was acknowledged"
    ) as caught:
        EventLog.open(home)
    assert (caught.value.anchor_seq, caught.value.head_seq) == (len(stored), 100)


def test_a_deleted_database_is_a_lost_tail(home: Path, stored: list[RecordedEvent]) -> None:
    (home / "events.db").unlink()
    with pytest.raises(TailLost, match="ends at event 0"):
        EventLog.open(home)


def test_a_deleted_wal_is_a_lost_tail(home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with EventLog.open(home) as log:
        append_run(log, "r", rounds=1)
        copy.mkdir()
        for name in ("events.db", "HEAD"):
            (copy / name).write_bytes((home / name).read_bytes())
        write_head(copy / "HEAD", log.head)
    with pytest.raises(TailLost):
        EventLog.open(copy)
    assert any("ends at event 0" in finding.what for finding in verify_log(copy).findings)


def _remove(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("lose", [_remove, _empty])
def test_a_log_that_is_gone_is_not_one_that_never_was(
    home: Path, stored: list[RecordedEvent], lose: Callable[[Path], None]
) -> None:
    lose(home / "events.db")
    for look in (verify_log, LogReader.open, lambda home: EventLog.open(home, create=False)):
        with pytest.raises(TailLost, match=f"event {stored[-1].seq} was acknowledged"):
            look(home)
    (home / "HEAD").unlink()
    with pytest.raises(TailLost):
        LogReader.open(home)
    (home / "HEAD.second").unlink()
    with pytest.raises(NoLog):
        LogReader.open(home)


def test_a_reader_can_ask_whether_the_end_is_there(
    home: Path, stored: list[RecordedEvent], damage: Damage
) -> None:
    with LogReader.open(home) as reader:
        reader.check_end()
    last = stored[-1].seq
    damage("DELETE FROM event WHERE seq = ?", parameters=(last,))
    with (
        LogReader.open(home) as reader,
        pytest.raises(TailLost, match=f"ends at event {last - 1}, but event {last} "),
    ):
        reader.check_end()


def test_a_head_that_is_a_directory_is_no_anchor(home: Path, stored: list[RecordedEvent]) -> None:
    (home / "HEAD").unlink()
    (home / "HEAD").mkdir()
    with pytest.raises(LogDamaged, match="HEAD"):
        EventLog.open(home)
    assert "HEAD" in str(verify_log(home).first_finding)


def test_a_log_that_lacks_a_table_is_damaged(home: Path, stored: list[RecordedEvent]) -> None:
    with closing(sqlite3.connect(home / "events.db")) as connection:
        connection.execute("DROP TABLE event")
    assert any("no such table: event" in finding.what for finding in verify_log(home).findings)
    with pytest.raises(LogDamaged, match="no such table: event"):
        EventLog.open(home)


def test_a_log_ahead_of_its_anchor_is_normal(home: Path, stored: list[RecordedEvent]) -> None:
    write_head(home / "HEAD", Head(5, "first", 5, stored[4].hash))
    with EventLog.open(home) as log:
        assert log.head.seq == len(stored)
    assert read_head(home / "HEAD").seq == len(stored)


def test_a_log_without_anchor_is_opened_and_anchored(home: Path, stored: list[RecordedEvent]) -> None:
    (home / "HEAD").unlink()
    EventLog.open(home).close()
    assert read_head(home / "HEAD").seq == len(stored)


def test_an_anchor_of_another_history_is_refused(home: Path, stored: list[RecordedEvent]) -> None:
    write_head(home / "HEAD", Head(5, "first", 5, "ab" * 32))
    with pytest.raises(LogDamaged, match=r"event 5 \(first@5\): is not the event that HEAD names"):
        EventLog.open(home)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"seq":-1,"stream":"","run_seq":0,"hash":"00"}',
                                  '{"seq":1,"stream":"","run_seq":0,"hash":"xy"}'])  # fmt: skip
def test_an_illegible_anchor_is_refused(home: Path, stored: list[RecordedEvent], text: str) -> None:
    (home / "HEAD").write_text(text)
    with pytest.raises(LogDamaged, match="not a HEAD anchor"):
        EventLog.open(home)


# --- the rows ---


def test_an_edited_tail_is_found_at_opening(home: Path, stored: list[RecordedEvent], damage: Damage) -> None:
    damage(
        "DELETE FROM meta WHERE key = 'verified'",
        "UPDATE event SET payload = payload || ' ' WHERE seq = 42",
    )
    with pytest.raises(LogDamaged) as caught:
        EventLog.open(home)
    assert (caught.value.seq, caught.value.stream, caught.value.run_seq) == (42, "first", 42)


def test_what_was_verified_before_is_checked_again_on_request(
    home: Path, stored: list[RecordedEvent], damage: Damage
) -> None:
    damage("UPDATE event SET payload = payload || ' ' WHERE seq = 42")
    EventLog.open(home).close()
    with pytest.raises(LogDamaged, match="event 42"):
        EventLog.open(home, full_check=True)


def test_a_note_of_another_history_is_not_believed(
    home: Path, stored: list[RecordedEvent], damage: Damage
) -> None:
    damage(
        "UPDATE meta SET value = '200 ' || value WHERE key = 'verified'",
        "UPDATE event SET payload = payload || ' ' WHERE seq = 42",
    )
    with pytest.raises(LogDamaged, match="event 42"):
        EventLog.open(home)


# --- versions ---


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("PRAGMA user_version = 99", "schema 99"),
        ("INSERT INTO kind VALUES ('TimeTravelled', 1)", "TimeTravelled version 1"),
        ("INSERT INTO kind VALUES ('RunCreated', 99)", "RunCreated version 99"),
    ],
)
def test_a_newer_log_is_refused_by_everyone_in_one_line(
    home: Path, stored: list[RecordedEvent], damage: Damage, statement: str, words: str
) -> None:
    damage(statement)
    for opened in (EventLog.open, LogReader.open):
        with pytest.raises(LogTooNew, match=words) as caught:
            opened(home)
        assert "newer version" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_another_program_s_database_is_refused(
    home: Path, stored: list[RecordedEvent], damage: Damage
) -> None:
    damage("PRAGMA application_id = 1")
    with pytest.raises(LogDamaged, match="not an event log"):
        EventLog.open(home)


def test_no_database_at_all_is_refused(home: Path) -> None:
    home.mkdir()
    (home / "events.db").write_bytes(b"something else entirely\n" * 400)
    with pytest.raises(LogDamaged, match="not a database"):
        EventLog.open(home)


def test_the_migration_is_recorded_with_its_change(home: Path, stored: list[RecordedEvent]) -> None:
    from sqlite_utils import Database

    database = Database(home / "events.db")
    assert [row["name"] for row in database["_sqlite_migrations"].rows] == ["0001_event_log", "0002_gaps"]
    assert database.execute("PRAGMA user_version").fetchone() == (2,)
    database.close()


def test_a_failed_migration_leaves_nothing(home: Path, monkeypatch) -> None:
    def fail(database) -> None:
        database.conn.execute("CREATE TABLE half(x)")
        raise RuntimeError("no further")

    monkeypatch.setattr("state.schema.MIGRATIONS", (("0001_broken", fail),))
    with pytest.raises(RuntimeError, match="no further"):
        EventLog.open(home)
    with pytest.raises(NoLog):
        LogReader.open(home)
    monkeypatch.undo()
    EventLog.open(home).close()
    assert verify_log(home).is_ok


def test_read_models_of_another_version_are_rebuilt(
    home: Path, stored: list[RecordedEvent], damage: Damage
) -> None:
    with LogReader.open(home) as reader:
        before = [reader.run_summaries(), reader.attempt_rows("first"), reader.spend_rows("second")]
    damage("UPDATE meta SET value = '0' WHERE key = 'projections'", "DROP TABLE attempts", "DELETE FROM runs")
    EventLog.open(home).close()
    with LogReader.open(home) as reader:
        assert [reader.run_summaries(), reader.attempt_rows("first"), reader.spend_rows("second")] == before
    assert verify_log(home).is_ok


def test_every_error_has_a_code_of_its_own() -> None:
    def below(cls: type[StateError]) -> list[type[StateError]]:
        return [cls] + [found for sub in cls.__subclasses__() for found in below(sub)]

    codes = [cls.code for cls in below(StateError)]
    assert len(set(codes)) == len(codes) >= 20


def test_opening_needs_no_heavy_package(home: Path) -> None:
    with EventLog.open(home) as log:
        step = next(ScriptedRun().steps())
        log.append_now([NewEvent("r", step.event)], blobs=step.blobs)
    code = (
        "import json, sys; from pathlib import Path; from state.log import EventLog;"
        f"log = EventLog.open(Path({str(home)!r})); log.run_state('r'); log.close();"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {
        "sqlite_utils",
        "click",
        "numpy",
        "anthropic",
        "openai",
        "asyncssh",
        "structlog",
        "watchdog",
        "libcst",
    }
    assert heavy & set(json.loads(done.stdout)) == set()


# --- the write-ahead log ---


def copy_killed_home(home: Path, to: Path, *, names: tuple[str, ...]) -> Path:
    """What is left of a log whose owner was killed, or what was copied of it: the files of these names."""
    with EventLog.open(home) as log:
        append_run(log, "r", rounds=1)
        to.mkdir()
        for name in names:
            (to / name).write_bytes((home / name).read_bytes())
    return to


def test_only_the_main_file_of_a_log_in_use_is_told_from_a_log(home: Path, tmp_path: Path) -> None:
    copy = copy_killed_home(home, tmp_path / "copy", names=("events.db",))
    with LogReader.open(copy) as reader, pytest.raises(WalLost, match="its -wal file and HEAD are gone"):
        reader.check_end()
    (finding,) = verify_log(copy).findings
    assert (finding.part, "-wal file and HEAD are gone" in finding.what) == ("tail", True)
    for _ in range(2):  # whoever looked left an empty WAL
        with pytest.raises(WalLost):
            EventLog.open(copy)
    assert repair_log(copy).lost == ()
    EventLog.open(copy).close()
    assert verify_log(copy).is_ok


def test_what_a_killed_owner_leaves_is_a_log(home: Path, tmp_path: Path) -> None:
    copy = copy_killed_home(home, tmp_path / "copy", names=("events.db", "events.db-wal"))
    assert verify_log(copy).is_ok
    with EventLog.open(copy) as log:
        assert log.run_state("r").has_ended


def test_a_log_that_was_closed_needs_no_wal(home: Path, stored: list[RecordedEvent], tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "events.db").write_bytes((home / "events.db").read_bytes())
    assert verify_log(tmp_path / "copy").is_ok
    EventLog.open(tmp_path / "copy").close()


@pytest.mark.parametrize("fails", ["snapshots", "reader"])
def test_an_owner_that_cannot_settle_its_log_loses_nothing(
    home: Path, monkeypatch, caplog, fails: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        log = EventLog.open(home)
        append_run(log, "r", rounds=1)
        patch.setattr("state.appender.Appender.save_snapshots", fail)
        log.close()
        assert "was not moved into its one file" in caplog.text
    if fails == "reader":
        with monkeypatch.context() as patch:
            patch.setattr("state.reader.ReadOnlyConnection", fail)
            with pytest.raises(sqlite3.OperationalError):
                EventLog.open(home)
    assert verify_log(home).is_ok
    with EventLog.open(home) as log:
        assert log.run_state("r").has_ended
    assert not (home / "events.db-wal").exists()
    EventLog.open(home).close()


@pytest.mark.parametrize("made_before", range(4))
def test_a_log_that_is_made_while_it_is_looked_at_is_none_or_one(tmp_path: Path, made_before: int) -> None:
    """It is never another program's database."""
    asked = count()

    class LookedAt(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            if next(asked) == made_before:
                EventLog.open(tmp_path).close()
            return super().execute(*arguments)

    with closing(sqlite3.connect(tmp_path / "events.db", factory=LookedAt)) as connection:
        assert schema.check_version(connection) == (made_before < 3)


def test_a_log_without_read_models_yet_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that comes while its owner makes the log."""
    make = projections.rebuild_read_models
    seen = []

    def look_first(*arguments: Any) -> None:
        with LogReader.open(tmp_path) as reader, pytest.raises(NoLog, match="is being made"):
            seen.append(reader.run_ids())
        seen.append(None)
        make(*arguments)

    monkeypatch.setattr(projections, "rebuild_read_models", look_first)
    EventLog.open(tmp_path).close()
    assert seen == [None]
    with LogReader.open(tmp_path) as reader:
        assert reader.run_ids() == ()
