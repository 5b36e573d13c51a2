"""A full disk: runs pause with that as their reason, appends wait, and all go on when there is space."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from daemon import disk_full as module
from daemon.command_models import Pause
from daemon.commands import CommandHandler
from daemon.disk_full import DiskSpaceGuard
from daemon.stop_signal import StopSignal
from state.disk_reserve import DiskReserve
from state.errors import StaleAppend, StorageFull
from state.events import RunCancelled, RunPaused, RunResumed
from state.log import EventLog
from state.model import PauseCause, RunStatus
from state.reader import LogReader
from state.records import NewEvent
from state.verify import verify_log
from tests.support import fakes

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB of its own; what fills it is `fill_disk`."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs to mount a small file system: run as root")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"needs to mount a small file system: {made.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill_disk(disk: Path, *, leave: int = 0) -> Path:
    """Fill a disk but for `leave` bytes, while others may write to it."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        free = os.statvfs(disk)
        file.write(bytes(max(0, free.f_bavail * free.f_frsize - leave)))
    return ballast


def statuses(home: Path) -> dict[str, tuple[str, str]]:
    with LogReader.open(home) as reader:
        return {row["run"]: (row["status"], row["reason"]) for row in reader.run_summaries()}


async def wait_until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for is in the log
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(
        DiskSpaceGuard.__init__,
        "__kwdefaults__",
        {**DiskSpaceGuard.__init__.__kwdefaults__, "look_seconds": 0.02},
    )


async def test_a_run_meets_a_full_disk_and_ends_like_its_twin(small_disk: Path, home: Path) -> None:
    """The disk is filled while the run works; it pauses, goes on when there is space, and nothing is lost."""
    twin = fakes.submit_run(home, id_="same")
    with EventLog.open(home) as log:
        await fakes.host_until_ended(log, twin)
        wanted = log.run_state(twin)
    full = small_disk / "home"
    run = fakes.submit_run(full, id_="same")
    assert run == twin
    stop = StopSignal()
    with EventLog.open(full) as log:
        hosting = asyncio.create_task(
            fakes.serve_runs(log, fakes.daemon_config(), stop=stop, workers=fakes.fake_workers())
        )
        await wait_until(lambda: log.head.seq > 20)
        ballast = fill_disk(small_disk)
        await wait_until(lambda: statuses(full)[run][0] == "paused")
        assert statuses(full)[run][1].startswith("disk full: goes on when 16 MiB are free")
        assert not hosting.done()
        ballast.unlink()
        await wait_until(lambda: fakes.has_ended(log, run))
        state = log.run_state(run)
        stop.request()
        await hosting
    assert verify_log(full).is_ok
    assert (state.best, state.beam, state.tally) == (wanted.best, wanted.beam, wanted.tally)


async def test_a_daemon_started_on_a_full_disk_waits_instead_of_dying(small_disk: Path, waiting: str) -> None:
    home, run = small_disk / "home", waiting
    assert DiskReserve(home / "reserve").create()
    ballast = fill_disk(small_disk)
    stop = StopSignal()
    with EventLog.open(home) as log:  # what the reserve frees lets it open
        hosting = asyncio.create_task(
            fakes.serve_runs(log, fakes.daemon_config(), stop=stop, workers=fakes.fake_workers())
        )
        await wait_until(lambda: statuses(home)[run][0] == "paused")
        ballast.unlink()
        await wait_until(lambda: fakes.has_ended(log, run))
        stop.request()
        await hosting
    assert verify_log(home).is_ok
    assert (home / "reserve").stat().st_size == DiskReserve(home / "reserve").size


@pytest.fixture
def run(home: Path) -> str:
    """A run that has begun, and that nobody drives."""
    return begin_run(home)


def begin_run(home: Path) -> str:
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    return run


@pytest.fixture
def waiting(small_disk: Path) -> str:
    """A run that has begun, in a home on the small disk."""
    return begin_run(small_disk / "home")


class Disk:
    """A disk of which a test says how much is free."""

    def __init__(self, monkeypatch) -> None:
        self.free = 1 << 40
        for place in ("state.disk_reserve.free_bytes", "daemon.disk_full.free_bytes"):
            monkeypatch.setattr(place, lambda folder: self.free)


@pytest.fixture
def disk(monkeypatch) -> Disk:
    return Disk(monkeypatch)


async def test_little_space_pauses_before_there_is_none(home: Path, run: str, disk: Disk) -> None:
    told: list[str] = []
    with EventLog.open(home) as log:
        space = DiskSpaceGuard(log, DiskReserve(home / "reserve"), StopSignal(), touched=told.append)
        watching = asyncio.create_task(space.watch())
        await wait_until((home / "reserve").exists)
        disk.free = MIB
        await wait_until(lambda: log.run_state(run).status is RunStatus.PAUSED)
        assert space.full
        assert not (home / "reserve").exists()
        disk.free = 1 << 40
        await wait_until(lambda: log.run_state(run).status is RunStatus.RUNNING)
        assert (home / "reserve").exists()
        assert told == [run, run]
        watching.cancel()


@pytest.mark.parametrize("reason", ["lunch", "disk full soon: it moves to another machine"])
async def test_a_run_that_a_person_paused_stays_paused(home: Path, run: str, disk: Disk, reason: str) -> None:
    with EventLog.open(home) as log:
        await log.append([NewEvent(run, RunPaused(reason=reason))])
        disk.free = 0
        space = DiskSpaceGuard(log, DiskReserve(home / "reserve"), StopSignal(), touched=lambda _: None)
        watching = asyncio.create_task(space.watch())
        await wait_until(lambda: space.full)
        disk.free = 1 << 40
        await wait_until((home / "reserve").exists)
        await asyncio.sleep(0.1)
        assert (log.run_state(run).status, log.run_state(run).status_reason) == (RunStatus.PAUSED, reason)
        watching.cancel()


async def test_a_person_pauses_a_run_that_waits_for_space(home: Path, run: str, disk: Disk) -> None:
    with EventLog.open(home) as log:
        commands = CommandHandler(log, fakes.fake_workers(), touched=lambda *_: None)
        disk.free = 0
        space = DiskSpaceGuard(log, DiskReserve(home / "reserve"), StopSignal(), touched=lambda _: None)
        watching = asyncio.create_task(space.watch())
        await wait_until(lambda: log.run_state(run).pause_cause is PauseCause.SPACE)
        await commands.handle("p", Pause(run=run, reason="lunch").model_dump_json().encode())
        disk.free = 1 << 40
        await wait_until((home / "reserve").exists)
        await asyncio.sleep(0.1)
        state = log.run_state(run)
        assert (state.status, state.pause_cause, state.status_reason) == (
            RunStatus.PAUSED,
            PauseCause.PERSON,
            "lunch",
        )
        watching.cancel()


async def test_a_run_that_ends_as_it_would_be_paused_is_left_at_that(
    home: Path, run: str, disk: Disk
) -> None:
    """Its end is queued when the pause is decided, and stored before it."""
    with EventLog.open(home) as log:
        space = DiskSpaceGuard(log, DiskReserve(home / "reserve"), StopSignal(), touched=lambda _: None)
        disk.free = 0
        end = asyncio.create_task(log.append([NewEvent(run, RunCancelled(reason="enough"))]))
        await asyncio.sleep(0)
        watching = asyncio.create_task(space.watch())
        await wait_until(lambda: space.full)
        await end
        await asyncio.sleep(0.1)
        assert log.run_state(run).status is RunStatus.CANCELLED
        assert not watching.done()
        watching.cancel()


async def test_runs_that_waited_for_space_when_the_process_ended_go_on_in_the_next(
    home: Path, run: str, disk: Disk
) -> None:
    with EventLog.open(home) as log:
        await log.append([NewEvent(run, RunPaused(reason="yesterday", cause=PauseCause.SPACE))])
    with EventLog.open(home) as log:
        watching = asyncio.create_task(
            DiskSpaceGuard(log, DiskReserve(home / "reserve"), StopSignal(), touched=lambda _: None).watch()
        )
        await wait_until(lambda: log.run_state(run).status is RunStatus.RUNNING)
        watching.cancel()
        paused, resumed = [item.event for item in log.read(stream=run, limit=100)][-2:]
    assert isinstance(paused, RunPaused)
    assert (paused.reason, paused.cause) == ("yesterday", PauseCause.SPACE)
    assert isinstance(resumed, RunResumed)


async def test_a_run_goes_on_whose_resumption_is_heard_of_as_stale(
    home: Path, run: str, disk: Disk, monkeypatch
) -> None:
    """An I/O error after a commit: it is stored, and what tries it again finds that the run moved on."""
    told: list[str] = []
    with EventLog.open(home) as log:
        await log.append([NewEvent(run, RunPaused(reason="full", cause=PauseCause.SPACE))])

        async def stored_and_stale(events, **expectations) -> None:
            await append(events, **expectations)
            raise StaleAppend(run, 0, 0)

        append = log.append
        monkeypatch.setattr(log, "append", stored_and_stale)
        watching = asyncio.create_task(
            DiskSpaceGuard(log, DiskReserve(home / "reserve"), StopSignal(), touched=told.append).watch()
        )
        await wait_until(lambda: told == [run])
        assert log.run_state(run).status is RunStatus.RUNNING
        watching.cancel()


async def test_appends_wait_and_a_stop_ends_the_waiting(home: Path, run: str, disk: Disk) -> None:
    stop, steps = StopSignal(), []
    with EventLog.open(home) as log:
        space = DiskSpaceGuard(
            log, DiskReserve(home / "reserve"), stop, touched=lambda _: None, step=lambda: steps.append(1)
        )
        log.when_full = space.wait_for_space
        connection = log._appender.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        noise = [bytes(os.urandom(100_000))]
        first = asyncio.create_task(log.append([NewEvent(run, RunPaused(reason="x"))], blobs=noise))
        await wait_until(lambda: len(steps) > 3)
        assert not first.done()
        connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
        await wait_until(first.done)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        noise = [bytes(os.urandom(100_000))]
        late = asyncio.create_task(log.append([NewEvent(run, RunPaused(reason="y"))], blobs=noise))
        await wait_until(lambda: len(steps) > 8)
        stop.request()
        with pytest.raises(StorageFull):
            await late
        connection.execute("PRAGMA max_page_count = 1000000")


def test_a_disk_that_sets_nothing_aside_is_no_reason_to_stop(
    home: Path, disk: Disk, monkeypatch, caplog
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    home.mkdir()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert DiskReserve(home / "reserve").create()
    assert "no space can be set aside" in caplog.text
    assert not (home / "reserve").exists()
