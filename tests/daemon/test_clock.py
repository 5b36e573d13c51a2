"""A wall clock that jumps by months, back and forth, also over a restart: only the times shown change."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from daemon.home_owner import serve_runs
from daemon.stop_signal import StopSignal
from state.fold import state_hash
from state.log import EventLog
from state.reader import LogReader
from state.verify import verify_log
from tests.support import fakes

DAY = 86_400.0


@pytest.fixture
def jumping(monkeypatch):
    """Let the wall clock be off by up to a year, another amount at each look; the monotonic clock goes on."""
    chosen = random.Random(6)
    real, real_ns = time.time, time.time_ns

    def off() -> float:
        return chosen.uniform(-365, 365) * DAY

    monkeypatch.setattr(time, "time", lambda: real() + off())
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + int(off() * 1e9))


def run_undisturbed(home) -> str:
    run = fakes.submit_run(home)
    fakes.finish_runs(home, run)
    return read_end(home, run)


def read_end(home, run: str) -> str:
    with LogReader.open(home) as reader:
        return state_hash(reader.run_state(run))


def test_jumps_change_neither_order_nor_result(tmp_path, request):
    wanted = run_undisturbed(tmp_path / "quiet")
    request.getfixturevalue("jumping")
    run = fakes.submit_run(tmp_path / "home")
    fakes.finish_runs(tmp_path / "home", run, at_a_time=4)
    assert read_end(tmp_path / "home", run) == wanted
    with LogReader.open(tmp_path / "home") as reader:
        items = reader.read(limit=10_000)
    assert [item.seq for item in items] == list(range(1, len(items) + 1))
    times = [item.ts_us for item in items]
    assert times != sorted(times)  # the clock did jump
    assert list(verify_log(tmp_path / "home").findings) == []


async def test_a_stop_keeps_its_grace_and_a_restart_carries_on(home, jumping):
    run, stop = fakes.submit_run(home), StopSignal()
    with EventLog.open(home) as log:
        work = serve_runs(log, fakes.daemon_config(), stop=stop, workers=fakes.fake_workers())
        hosting = asyncio.create_task(work)
        while log.run_seq(run) < 5:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.001)
        stop.request()
        await hosting
    with EventLog.open(home) as log:
        await fakes.host_until_ended(log, run)
        assert log.run_state(run).has_ended


@pytest.mark.parametrize("seed", range(3))
def test_what_took_negative_time_is_shown_to_have_taken_none(ctl, home, monkeypatch, seed):
    chosen = random.Random(seed)
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - int(chosen.uniform(0, DAY) * 1e9))
    run = fakes.submit_run(home)
    fakes.finish_runs(home, run)
    assert ctl("--json", "resume", run).json["elapsed_seconds"] >= 0
