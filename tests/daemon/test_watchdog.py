"""The heartbeat: sent while everything gets on, held back by what is stuck, never by effects in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from daemon import watchdog
from daemon.home_owner import serve_runs
from daemon.stop_signal import StopSignal
from daemon.systemd import ServiceNotifier
from daemon.watchdog import Heartbeat, format_standings, keep_start_alive
from daemon.workers import Workers
from state.log import EventLog
from state.progress_counter import ProgressCounter
from state.reader import RunStanding
from tests.support import fakes


class Heard(ServiceNotifier):
    """A notifier that remembers what it was told to send."""

    def __init__(self, *, watchdog_seconds: float | None = 1.0) -> None:
        super().__init__("somewhere", watchdog_seconds=watchdog_seconds)
        self.messages: list[str] = []

    def _send_message(self, message: str) -> bool:
        self.messages.append(message)
        return True

    @property
    def beats(self) -> int:
        return self.messages.count("WATCHDOG=1")


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.01)


def test_parts_at_rest_and_parts_that_get_on_are_alive():
    turns, heard = ProgressCounter(), Heard()
    pulse = Heartbeat(heard, {"writer": turns})
    pulse.poll()
    with turns:
        pulse.poll()
        turns.step()
        pulse.poll()
    pulse.poll()
    assert heard.beats == 4


def test_a_turn_in_which_nothing_gets_done_holds_the_heartbeat_back_and_its_end_lets_it_go():
    turns, heard = ProgressCounter(), Heard(watchdog_seconds=0)
    pulse = Heartbeat(heard, {"writer": turns, "inbox": ProgressCounter()})
    with turns:
        pulse.poll()
        with capture_logs() as lines:
            pulse.poll()
            pulse.poll()
        assert heard.beats == 1  # the first look cannot tell a turn that lasts from one that just began
    pulse.poll()
    assert heard.beats == 2
    assert [(line["event"], line["parts"]) for line in lines] == [("stuck", ["writer"])]


def test_a_part_that_starves_less_than_half_the_watchdogs_time_is_not_told_of():
    turns = ProgressCounter()
    pulse = Heartbeat(Heard(watchdog_seconds=3600), {"writer": turns})
    with turns, capture_logs() as lines:
        pulse.poll()
        pulse.poll()
    assert lines == []


async def test_ready_comes_once_every_part_has_had_its_first_turn():
    parts, heard = {"supervisor": ProgressCounter(), "inbox": ProgressCounter()}, Heard()
    beating = asyncio.create_task(Heartbeat(heard, parts, lambda: "at rest").send_heartbeats())
    with parts["inbox"]:
        pass
    await asyncio.sleep(0.05)
    assert "READY=1" not in heard.messages
    with parts["supervisor"]:
        pass
    await wait_until(lambda: heard.beats > 0)
    beating.cancel()
    assert heard.messages[-3:] == ["READY=1", "WATCHDOG=1", "STATUS=at rest"]


@pytest.mark.parametrize("works", [True, False])
async def test_a_start_gets_more_time_while_it_works_and_none_while_it_hangs(works, monkeypatch):
    clock = iter(float(n) for n in range(1000))
    monkeypatch.setattr(watchdog, "START_SECONDS", 0.04)
    monkeypatch.setattr(watchdog.time, "process_time", lambda: next(clock) if works else 0.0)
    heard = Heard()
    async with keep_start_alive(heard, "opening the log"):
        await asyncio.sleep(0.1)
    assert heard.messages[0] == "STATUS=opening the log"
    assert bool(heard.messages[1:]) is works


class Slow(fakes.FakeEvaluator):
    """A judge that takes until it is told to answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def evaluate(self, request, blobs, /):
        self.asked.set()
        await self.answer.wait()
        return await super().evaluate(request, blobs)


async def test_an_evaluation_that_lasts_holds_no_heartbeat_back(home, monkeypatch):
    monkeypatch.setattr(watchdog, "BEAT_SECONDS", 0.01)
    run, slow, heard, stop = fakes.submit_run(home), Slow(), Heard(), StopSignal()
    workers: Workers = fakes.fake_workers(slow)
    with EventLog.open(home) as log:
        hosting = asyncio.create_task(
            serve_runs(log, fakes.daemon_config(), stop=stop, workers=workers, notifier=heard)
        )
        await slow.asked.wait()
        await wait_until(lambda: heard.beats > 0)
        before = heard.beats
        await wait_until(lambda: heard.beats > before + 10)
        slow.answer.set()
        await wait_until(lambda: fakes.has_ended(log, run))
        stop.request()
        await hosting
    texts = [message.removeprefix("STATUS=") for message in heard.messages if message.startswith("STATUS=")]
    assert any(text.startswith(f"{run}: round ") for text in texts)
    assert "STOPPING=1" in heard.messages
    grace = int((5 + watchdog.STOP_SECONDS) * 1e6)
    assert f"EXTEND_TIMEOUT_USEC={grace}" in heard.messages


def test_the_status_line_shows_running_runs_first_and_counts_the_rest():
    runs = [
        RunStanding("a", "paused", 1, None, None),
        RunStanding("b", "running", 3, 0.93254, predicted=True),
        *(RunStanding(f"c{n}", "running", 0, 2.0, predicted=False) for n in range(3)),
    ]
    assert format_standings(runs) == (
        "b: round 3, best 0.9325 ms predicted; c0: round 0, best 2 ms measured; "
        "c1: round 0, best 2 ms measured; and 2 more"
    )
    assert format_standings(runs[:1]) == "a: paused, round 1, no kernel yet"
    assert format_standings([]) == "idle: no active runs"
