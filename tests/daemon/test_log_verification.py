"""The proof beside the work: what it says of a log, and that it ends with the work."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon.log_verification import verify_alongside, verify_log
from daemon.stop_signal import StopSignal, run_alongside
from state.errors import LogDamaged
from state.home import HomeLayout


def stand_in(tmp_path: Path, monkeypatch, script: str) -> None:
    """Have another program run in place of the one that proves."""
    program = tmp_path / "stand-in"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr("daemon.log_verification.sys.executable", str(program))


async def test_a_sound_log_is_said_to_be(home, finished):
    with capture_logs() as lines:
        await verify_log(home)
    (line,) = lines
    assert line["event"] == "log_verified"
    assert line["events"] > 20


async def test_damage_is_an_error_that_names_it(home, finished):
    with sqlite3.connect(HomeLayout(home).database) as connection:
        connection.execute("UPDATE runs SET best_ms = 0.001")
    connection.close()
    with pytest.raises(LogDamaged, match="read_model"):
        await verify_log(home)


async def test_a_proof_that_could_not_be_made_says_nothing_of_the_log(home, tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, "echo out of memory >&2; kill -9 $$")
    with capture_logs() as lines:
        await verify_log(home)
    (line,) = lines
    assert (line["event"], line["status"], line["reason"]) == ("log_not_verified", -9, "out of memory")


@pytest.mark.parametrize("end", ["exit 1", "kill -SEGV $$", "kill -BUS $$"])
async def test_a_proof_that_crashes_has_failed(home, tmp_path, monkeypatch, end):
    stand_in(tmp_path, monkeypatch, f"echo Traceback >&2; echo 'TypeError: no row' >&2; {end}")
    with pytest.raises(LogDamaged, match=r"proving it failed with status .*: TypeError: no row"):
        await verify_alongside(home, asyncio.sleep(0), StopSignal(), patience_seconds=lambda: 1000)


def test_a_proof_dies_with_the_process_that_is_killed_over_it(tmp_path):
    told = tmp_path / "pid"
    work = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    script = (
        "import asyncio, pathlib, daemon.log_verification as proof\n"
        f"proof._VERIFIER = proof._VERIFIER.replace('from agentctl import main\\nmain()', {work!r})\n"
        "asyncio.run(proof.verify_log(pathlib.Path('/nowhere')))\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script])
    while not told.exists() or not told.read_text():
        assert owner.poll() is None
        time.sleep(0.01)
    owner.kill()
    owner.wait()
    prover = Path(f"/proc/{told.read_text()}/stat")

    def is_alive() -> bool:
        try:
            return prover.read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    until = time.monotonic() + 60
    while is_alive() and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_alive()


async def test_cancelling_ends_the_process(home, tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    proving = asyncio.create_task(verify_log(home))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(0.01)
    proving.cancel()
    await asyncio.gather(proving, return_exceptions=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize("patience", [0.0, 0.05])
async def test_a_proof_that_outlasts_the_work_is_waited_for_so_long(home, tmp_path, monkeypatch, patience):
    stand_in(tmp_path, monkeypatch, "exec sleep 1000")
    with capture_logs() as lines:
        await verify_alongside(home, asyncio.sleep(0), StopSignal(), patience_seconds=lambda: patience)
    assert [line["event"] for line in lines] == ["log_not_verified"] * (patience > 0)


async def test_a_second_signal_ends_the_wait_for_a_proof(home, tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 1000")
    stop = StopSignal()

    async def work() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
        stop.request()
        stop.request()

    with capture_logs() as lines:
        await verify_alongside(home, work(), stop, patience_seconds=lambda: 1000)
    assert [line["event"] for line in lines] == ["log_not_verified"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_damage_found_when_the_work_is_done_is_raised(home, tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, "echo agentctl: row 7 is bad >&2; exit 4")
    with pytest.raises(LogDamaged, match="row 7 is bad"):
        await verify_alongside(home, asyncio.sleep(0), StopSignal(), patience_seconds=lambda: 1000)


async def test_a_side_that_fails_asks_to_stop_and_is_heard():
    stop = StopSignal()

    async def fails():
        raise LogDamaged("it is")

    with pytest.raises(LogDamaged):
        await run_alongside(stop.requested.wait(), fails(), stop=stop)


async def test_a_side_that_ends_well_leaves_the_work_alone():
    stop, gone = StopSignal(), asyncio.Event()

    async def ends():
        gone.set()

    async def works():
        await gone.wait()
        await asyncio.sleep(0)
        assert not stop.requested.is_set()

    await run_alongside(works(), ends(), stop=stop)


async def test_the_end_of_the_work_ends_the_side_whatever_the_end():
    cancelled = []

    async def lasts():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def breaks():
        await asyncio.sleep(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_alongside(breaks(), lasts(), stop=StopSignal())
    assert cancelled == [True]
