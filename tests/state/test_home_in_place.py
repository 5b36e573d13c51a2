"""A home that is moved, whose lock files are deleted, or whose locks are held by mere readers."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from state import opening
from state.errors import HomeLocked, HomeMoved, HomeUnreadable, StorageFailed
from state.head import read_head
from state.home import is_home_file, prepare_home
from state.lock import HomeLock, read_owner
from state.log import EventLog
from state.verify import verify_log
from tests.support.scripted_runs import append_run

ROOT = Path(__file__).resolve().parents[2]

OPEN = """
import sys
from pathlib import Path
from state.errors import HomeLocked
from state.log import EventLog
try:
    EventLog.open(Path(sys.argv[1])).close()
except HomeLocked as error:
    print(error.owner_pid)
else:
    print("opened")
"""

HOLD_READ_LOCK = """
import fcntl, os, sys
files = [os.open(path, os.O_RDONLY) for path in sys.argv[1:]]
for file in files:
    fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def open_elsewhere(home: Path) -> str:
    """What another process says that opens this home."""
    command = [sys.executable, "-c", OPEN, str(home)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


def delete_lock_files(home: Path) -> None:
    for path in home.glob("agentd.*"):
        path.unlink()


# --- deleted lock files ---


def test_without_lock_files_the_socket_still_names_the_owner(home: Path, log: EventLog) -> None:
    append_run(log, "r", rounds=1)
    delete_lock_files(home)
    assert open_elsewhere(home) == str(os.getpid())


def test_without_lock_files_and_socket_the_log_still_names_the_owner(home: Path, log: EventLog) -> None:
    append_run(log, "r", rounds=1)
    delete_lock_files(home)
    log._lock._witness.close()
    assert open_elsewhere(home) == str(os.getpid())


def test_a_copy_of_a_home_in_use_is_a_home_of_its_own(home: Path, log: EventLog, tmp_path: Path) -> None:
    append_run(log, "r", rounds=1)
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    delete_lock_files(copy)
    assert open_elsewhere(copy) == "opened"
    assert open_elsewhere(home) == str(os.getpid())


OPEN_AND_DIE = """
import os, sys
from pathlib import Path
from state.log import EventLog
log = EventLog.open(Path(sys.argv[1]))
os._exit(0)
"""


def test_a_note_of_a_process_that_was_killed_keeps_nobody_out(home: Path) -> None:
    subprocess.run([sys.executable, "-c", OPEN_AND_DIE, str(home)], check=True, cwd=ROOT)
    assert open_elsewhere(home) == "opened"


def test_a_process_that_ended_and_whose_parent_did_not_notice_keeps_nobody_out(home: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OPEN_AND_DIE, str(home)], cwd=ROOT) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert open_elsewhere(home) == "opened"


# --- locks of who may only read ---


@contextmanager
def reader_locks(*paths: Path) -> Iterator[None]:
    command = [sys.executable, "-c", HOLD_READ_LOCK, *map(str, paths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield
        process.stdin.close()


def test_a_reader_s_lock_does_not_keep_the_owner_out(home: Path, log: EventLog) -> None:
    log.close()
    readable = [path for path in home.glob("agentd.*") if path.stat().st_mode & 0o040]
    assert [path.name for path in readable] == ["agentd.lock"]
    with reader_locks(*readable), EventLog.open(home) as again:
        append_run(again, "r", rounds=1)
    assert verify_log(home).is_ok


def test_an_owner_of_an_older_version_is_respected(home: Path) -> None:
    """It holds the lock that readers see, and its note; it knows no other one."""
    home.mkdir()
    (home / "agentd.lock").write_text(f'{{"pid": {os.getppid()}, "boot": "", "since": 0}}')
    boot = opening.read_boot_id()
    note = f'{{"pid": {os.getppid()}, "boot": "{boot}", "since": 0}}'
    (home / "agentd.lock").write_text(note)
    with (home / "agentd.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(HomeLocked) as refused:
            EventLog.open(home)
    assert refused.value.owner_pid == os.getppid()


def test_a_lock_is_released_when_taking_the_rest_fails(home: Path) -> None:
    home.mkdir()
    with HomeLockHeld(home), pytest.raises(HomeLocked):
        HomeLock(home / "agentd.lock")
    HomeLock(home / "agentd.lock").release()
    assert read_owner(home / "agentd.lock") is None


class HomeLockHeld:
    """Another process's lock, which a process of its own holds."""

    def __init__(self, home: Path) -> None:
        script = "import sys; from pathlib import Path; from state.lock import HomeLock\n"
        script += "lock = HomeLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(home / "agentd.lock")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self.process.stdout.readline() == "held\n"

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


# --- a home that is elsewhere ---


def test_a_moved_home_is_noticed_and_another_one_in_its_place_is_left_alone(home: Path) -> None:
    log = EventLog.open(home)
    append_run(log, "r", rounds=1)
    log.require_in_place()
    moved = home.with_name("moved")
    home.rename(moved)
    with pytest.raises(HomeMoved, match="moved away"):
        log.require_in_place()
    home.mkdir()
    for name in ("HEAD", "events.db-wal", "events.db"):
        (home / name).write_text("another's")
    last = append_run(log, "r2", rounds=1)[-1].seq
    log.close()
    assert {path.name: path.read_text() for path in home.iterdir()} == dict.fromkeys(
        ("HEAD", "events.db-wal", "events.db"), "another's"
    )
    assert read_head(moved / "HEAD").seq == last
    assert verify_log(moved).head.seq == last


def test_a_read_only_file_system_is_named(home: Path, monkeypatch) -> None:
    home.mkdir()
    found = os.statvfs(home)
    values = (*found[:8], found.f_flag | os.ST_RDONLY, found.f_namemax)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
    with pytest.raises(StorageFailed, match="EROFS"):
        prepare_home(home, create=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("link", [False, True])
def test_root_makes_no_log_in_a_home_that_somebody_else_made_just_now(
    home: Path, tmp_path, link: bool
) -> None:
    if link:
        (tmp_path / "roots").mkdir()
        home.symlink_to(tmp_path / "roots")
    else:
        home.mkdir()
    os.chown(home, 1234, 1234, follow_symlinks=False)
    with pytest.raises(HomeUnreadable, match="user 1234"):
        EventLog.open(home)
    assert not [*home.iterdir()]


def test_a_pipe_in_a_home_blocks_nobody(home: Path, log: EventLog) -> None:
    log.close()
    (home / "HEAD").unlink()
    os.mkfifo(home / "HEAD")
    with pytest.raises(HomeUnreadable, match="not a regular file"):
        EventLog.open(home)


def test_outputs_overwrite_no_file_that_a_home_has(home: Path, log: EventLog) -> None:
    append_run(log, "r", rounds=1)
    (home / "inbox").mkdir()
    assert [path.name for path in home.iterdir() if not is_home_file(path.name)] == []
