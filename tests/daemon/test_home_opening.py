"""How `agentd` starts where it cannot write: it is up, says what it waits for, and goes on by itself."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon import exits, home_opening
from daemon.home_opening import HomeOpener
from daemon.home_paths import INSTANCE_LOCK
from daemon.stop_signal import StopSignal
from daemon.systemd import ServiceNotifier
from state.errors import LogDamaged, StorageFailed
from state.log import EventLog
from state.reader import LogReader
from state.verify import verify_log
from tests.daemon.test_disk_full import fill_disk, small_disk  # noqa: F401 - a fixture
from tests.support import fakes
from tests.support.scripted_runs import append_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(home_opening, "LOOK_AGAIN_SECONDS", 0.02)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.setblocking(False)
        yield heard


async def hear(manager: socket.socket, *wanted: str) -> str:
    """Wait for messages that begin with each of `wanted`, in order; return the last one."""
    loop, found = asyncio.get_running_loop(), ""
    async with asyncio.timeout(60):
        for start in wanted:
            while not (found := (await loop.sock_recv(manager, 4096)).decode()).startswith(start):
                pass
    return found


def start(home: Path, manager: socket.socket, stop: StopSignal) -> asyncio.Task[EventLog | None]:
    opener = HomeOpener(home, stop, ServiceNotifier(manager.getsockname()), creates=False)

    async def open_log() -> EventLog | None:
        try:
            return await opener.open_log(INSTANCE_LOCK)
        finally:
            opener.close()

    return asyncio.create_task(open_log())


async def test_on_a_full_disk_without_reserve_it_is_ready_and_goes_on(small_disk: Path, manager) -> None:  # noqa: F811
    home = small_disk / "home"
    with EventLog.open(home) as log:
        append_run(log, "r", rounds=2)
    (home / "reserve").unlink(missing_ok=True)
    ballast = fill_disk(small_disk)
    opening = start(home, manager, StopSignal())
    said = await hear(manager, "READY=1", "WATCHDOG=1", "STATUS=read-only")
    assert "goes on by itself: disk full" in said
    assert not opening.done()
    with LogReader.open(home) as reader:  # what it says it can do: be read
        assert list(reader.run_ids()) == ["r"]
    ballast.unlink()
    (await opening).close()
    assert verify_log(home).is_ok


async def test_a_service_makes_no_home_where_one_was(home: Path, manager) -> None:
    stop = StopSignal()
    opening = start(home, manager, stop)
    assert "no such directory" in await hear(manager, "READY=1", "STATUS=read-only")
    assert not home.exists()  # noqa: ASYNC240 - a test
    home.mkdir()  # noqa: ASYNC240 - the empty folder on which a disk is to be mounted
    assert "holds no log" in await hear(manager, "STATUS=read-only")
    assert list(home.glob("events.db*")) == []  # noqa: ASYNC240
    with EventLog.open(home) as log:
        append_run(log, "r", rounds=1)
    (await opening).close()


async def test_a_stop_is_heeded_while_there_is_no_home(home: Path, manager) -> None:
    stop = StopSignal()
    opening = start(home, manager, stop)
    await hear(manager, "READY=1")
    stop.request()
    assert await opening is None


async def test_what_does_not_pass_ends_it(home: Path, manager) -> None:
    with EventLog.open(home) as log:
        append_run(log, "r", rounds=1)
    (home / "events.db").write_bytes(b"no database" * 1000)
    with pytest.raises(LogDamaged):
        await start(home, manager, StopSignal())


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (StorageFailed("EIO"), True),
        (OSError(24, "Too many open files"), True),
        (OSError(30, "Read-only file system"), True),
        (LogDamaged("a row"), False),
        (OSError(13, "Permission denied"), False),
    ],
)
def test_which_errors_pass(home: Path, error: Exception, passes: bool) -> None:
    home.mkdir()
    opener = HomeOpener(home, StopSignal(), ServiceNotifier(None), creates=False)
    assert opener.can_pass(error) is passes


def test_the_first_submission_makes_the_log_that_a_service_waits_for(home: Path) -> None:
    fakes.submit_run(home)
    assert (home / "events.db").exists()
    with LogReader.open(home) as reader:
        assert reader.head.seq == 0


@pytest.mark.slow
def test_a_daemon_whose_home_is_moved_ends_and_makes_none_in_its_place(home: Path) -> None:
    with EventLog.open(home) as log:
        append_run(log, "r", rounds=1)
    process = subprocess.Popen(
        [sys.executable, "-m", "daemon", "--home", home], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        for line in process.stderr:
            if '"started"' in line:
                break
        moved = home.with_name("moved")
        home.rename(moved)
        said = process.communicate(timeout=90)[1]
    finally:
        process.kill()
    assert process.returncode == exits.STORAGE, said
    assert "moved away" in said
    assert not home.exists()
    assert verify_log(moved).is_ok
