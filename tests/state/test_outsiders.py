"""Other programs that use the database: they lock it, tidy it up, copy it or read for long."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from state import head, writer
from state.errors import LogDamaged, StorageBusy, StorageFull, TailLost
from state.events import RunPaused
from state.head import EMPTY_HEAD, Head, HeadFile, read_head
from state.lock import read_owner
from state.log import EventLog
from state.reader import LogReader
from state.records import NewEvent
from state.repair import repair_log
from state.verify import verify_log
from tests.support.scripted_runs import ScriptedRun, append_run

ROOT = Path(__file__).resolve().parents[2]

# Another program: it runs the statements that it is given, says so, and ends when its input does.
CLIENT = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    connection.execute(statement).fetchall()
print("done", flush=True)
sys.stdin.read()
connection.close()
"""


@contextmanager
def client(home: Path, *statements: str) -> Iterator[int]:
    """Let another process use the database; its pid. It stays connected until the block ends."""
    command = [sys.executable, "-c", CLIENT, str(home / "events.db"), *statements]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "done\n"
        yield process.pid
        process.stdin.close()
        assert process.wait() == 0


@pytest.fixture
def killed(home: Path) -> int:
    """Kill an owner with SIGKILL right after an acknowledgement; return the last seq that it acknowledged."""
    command = [sys.executable, "-m", "tests.state.killed_writer", str(home), "30"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        for line in process.stdout:
            if int(line) >= 20:
                break
        os.kill(process.pid, signal.SIGKILL)
        rest = [int(line) for line in process.stdout]
    return rest[-1] if rest else int(line)


# --- the end of a log, after a kill ---


def test_a_client_that_moved_a_killed_owner_s_wal_away_lost_nothing(home: Path, killed: int) -> None:
    with client(home, "SELECT count(*) FROM event"):
        pass
    assert not (home / "events.db-wal").exists()
    assert verify_log(home).is_ok
    with LogReader.open(home) as reader:
        reader.check_end()
    assert repair_log(home).rewritten is None
    with EventLog.open(home) as log:
        assert log.head.seq >= killed


def test_a_killed_owner_s_wal_that_was_deleted_is_a_lost_tail(home: Path, killed: int) -> None:
    (home / "events.db-wal").unlink()
    with pytest.raises(TailLost) as caught:
        EventLog.open(home)
    assert caught.value.anchor_seq >= killed > caught.value.head_seq
    assert not verify_log(home).is_ok


def test_an_event_is_anchored_before_it_is_acknowledged(home: Path, log: EventLog) -> None:
    for step in list(ScriptedRun().steps())[:20]:
        (item,) = log.append_now([NewEvent("r", step.event)], blobs=step.blobs)
        assert read_head(home / "HEAD") == Head(item.seq, "r", item.run_seq, item.hash)


def test_a_copy_that_took_head_first_is_whole_as_of_then(home: Path, tmp_path: Path) -> None:
    """A backup tool copies file by file, and leaves out what it takes for temporary files."""
    copy = tmp_path / "copy"
    copy.mkdir()
    with EventLog.open(home) as log:
        with client(home, "PRAGMA wal_checkpoint(PASSIVE)"):
            shutil.copy(home / "HEAD", copy)
            append_run(log, "r", rounds=1)
        shutil.copy(home / "events.db", copy)
        shutil.copy(home / "events.db-wal", copy)
    assert verify_log(copy).is_ok
    (copy / "events.db-wal").unlink()
    shutil.copy(home / "HEAD", copy)
    with pytest.raises(TailLost):
        EventLog.open(copy)


# --- HEAD itself ---


@pytest.mark.parametrize("torn", [0, 1, 40, 200, head.SLOT_BYTES - 1])
def test_a_torn_write_of_head_leaves_the_anchor_before_it(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "HEAD"
    file = HeadFile(path)
    for seq in range(1, 5):
        file.record(Head(seq, "r", seq, f"{seq:064x}"), sync=seq % 2 == 0)
        assert read_head(path).seq == seq
        before = path.read_bytes()
    file.record(Head(5, "r", 5, f"{5:064x}"), sync=False)
    after = path.read_bytes()
    start = next(at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)
    start -= start % head.SLOT_BYTES
    path.write_bytes(after[: start + torn] + before[start + torn : start + head.SLOT_BYTES]
                     + after[start + head.SLOT_BYTES :])  # fmt: skip
    assert read_head(path).seq in {4, 5}
    path.write_bytes(b"\0" * len(after))
    with pytest.raises(LogDamaged, match="not a HEAD anchor"):
        read_head(path)


def test_head_as_older_versions_wrote_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "HEAD"
    path.write_text('{"seq": 7, "stream": "r", "run_seq": 7, "hash": "' + "ab" * 32 + '"}\n')
    assert read_head(path) == Head(7, "r", 7, "ab" * 32)


def test_head_that_is_deleted_under_its_owner_is_written_anew(home: Path, log: EventLog) -> None:
    append_run(log, "r", rounds=1)
    (home / "HEAD").unlink()
    append_run(log, "s", rounds=1)
    assert read_head(home / "HEAD").seq == log.head.seq != EMPTY_HEAD.seq


# --- locks ---


def test_appends_wait_for_another_process_s_lock_and_say_so(home: Path, log: EventLog, caplog) -> None:
    caplog.set_level(logging.WARNING)
    first = next(ScriptedRun().steps())
    log.append_now([NewEvent("r", first.event)], blobs=first.blobs)
    with client(home, "BEGIN IMMEDIATE") as pid:
        other = _append_in_thread(log)
        while log.waits_for is None:
            time.sleep(0.05)
        said = log.waits_for
        assert re.fullmatch(rf"process {pid} \(.+\) holds a write lock on the log", said)
        assert read_owner(home / "agentd.lock").waits_for == said
        before = log.writer_progress.done
        time.sleep(2.5)  # longer than one try
        assert not other.done()
        assert log.writer_progress.done > before, "a watchdog would take the wait for a hang"
    assert other.result(timeout=30)[0].run_seq == 2
    assert log.waits_for is None
    assert read_owner(home / "agentd.lock").waits_for is None
    assert [record.message.split(":")[0].split(" after")[0] for record in caplog.records] == [
        "appends wait",
        "the log is free again",
    ]


def test_a_stop_ends_the_waiting_and_the_log_is_whole(home: Path, log: EventLog) -> None:
    first = next(ScriptedRun().steps())
    log.append_now([NewEvent("r", first.event)], blobs=first.blobs)
    with client(home, "BEGIN IMMEDIATE"):
        other = _append_in_thread(log)
        while log.waits_for is None:
            time.sleep(0.05)
        log.stop_waiting()
        with pytest.raises(StorageBusy, match="another process holds a lock"):
            other.result(timeout=30)
        log.close()
    assert verify_log(home).is_ok
    with EventLog.open(home) as again:
        assert again.run_seq("r") == 1


def test_a_locked_log_says_so_when_it_is_opened(home: Path) -> None:
    with EventLog.open(home) as log:
        append_run(log, "r", rounds=1)
    with client(home, "BEGIN IMMEDIATE"), pytest.raises(StorageBusy, match="another process holds a lock"):
        EventLog.open(home)
    EventLog.open(home).close()


def _append_in_thread(log: EventLog) -> Future:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(log.append_now, [NewEvent("r", RunPaused(reason="x"))])
    pool.shutdown(wait=False)
    return future


# --- long reads, full disks ---


def test_a_reader_that_keeps_the_wal_growing_is_named(home: Path, log: EventLog, monkeypatch, caplog) -> None:
    monkeypatch.setattr(writer, "LONG_WAL_BYTES", 8_000_000)
    monkeypatch.setattr(writer, "HEAD_EVERY_S", 0.05)
    append_run(log, "r", rounds=1)
    with client(home, "BEGIN", "SELECT * FROM event LIMIT 1") as pid:
        number = 0
        while "has grown" not in caplog.text:
            append_run(log, f"long{number}", rounds=10)
            number += 1
            assert number < 100
    assert re.search(rf"until .*process {pid} \(.+\).* ends its read", caplog.text)
    assert caplog.text.count("has grown") == 1


def test_a_log_whose_wal_finds_no_room_in_the_database_is_opened(home: Path, tmp_path: Path) -> None:
    """A killed owner left a WAL, and the disk has no room to move it into the database."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs to mount a small file system: run as root")
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], check=False)
    if made.returncode:
        pytest.skip("needs to mount a small file system")
    try:
        small = disk / "home"
        small.mkdir()
        with EventLog.open(home) as log:
            with closing(sqlite3.connect(home / "events.db", isolation_level=None)) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT * FROM event").fetchone()
                for number in range(4):
                    append_run(log, f"r{number}", rounds=20)
            for name in ("events.db", "events.db-wal", "HEAD"):
                shutil.copy(home / name, small)
            last = log.head.seq
        free = os.statvfs(disk)
        (disk / "ballast").write_bytes(bytes(free.f_bavail * free.f_frsize - (1 << 20)))
        assert (small / "events.db-wal").stat().st_size > 4 << 20
        with EventLog.open(small) as log:
            assert log.head.seq == last
            step = next(ScriptedRun().steps())
            with pytest.raises(StorageFull):
                log.append_now([NewEvent("new", step.event)], blobs=step.blobs)
            (disk / "ballast").unlink()
            log.append_now([NewEvent("new", step.event)], blobs=step.blobs)
            assert read_head(small / "HEAD").seq == last + 1
        assert verify_log(small).is_ok
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
