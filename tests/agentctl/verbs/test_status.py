"""The screen of a home in which things go on: spending, calls that fail, hosts, the day's budget."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click import unstyle

from agentctl.run_details import format_run_details, format_shared_state
from agentctl.verbs.status import _name_some_runs
from agentctl.views.hosts import HostView
from agentctl.views.overview import DayView, HomeOverview, home_overview
from agentctl.views.owner_process import OwnerProcess, find_owner_process
from state import host_status
from state.events import BreakerOpened, DayReserved, DaySettled
from state.host_status import HostStatus
from state.log import EventLog
from state.model import SYSTEM_STREAM, Amount, ErrorInfo
from state.reader import LogReader
from state.records import NewEvent
from tests.agentctl.stats.history import BIG, History
from tests.support import fakes

KEY = "r1.b0.p0.k0.f0"
HOUR_US = 3600e6


@pytest.fixture
def asking(home) -> Path:
    """A home with a run in whose first round a model was asked, and stumbled."""
    with EventLog.open(home) as log:
        told = History(log, "first").begin()
        told.round(1, BIG)
        told.plan(KEY, "hoist", calls=("ok", "server", "ok"))
        log.append_now(
            [NewEvent(SYSTEM_STREAM, DayReserved(day="2030-01-02", call="c", amount=Amount(usd=2)))]
        )
    return home


def seen(home: Path) -> HomeOverview:
    """Look at a home that somebody owns."""
    owned = OwnerProcess("running", "agentd", 1, "2030-01-01T00:00:00+00:00", str(home), 0)
    with LogReader.open(home) as reader:
        return home_overview(reader, owned, now_us=datetime.now(UTC).timestamp() * 1e6 + HOUR_US)


def shared(home: Path) -> str:
    """Return what is told of what all runs share."""
    return unstyle("\n".join(format_shared_state(seen(home))))


def test_spending_and_errors_of_a_live_run_are_told(asking):
    found = seen(asking)
    (run,) = found.runs
    assert run.errors is not None
    assert (run.errors.count, run.spent_calls) == (1, 3)
    text = unstyle("\n".join(format_run_details(run)))
    assert "  spent     $0.50 of $0.00; 3 calls; 220 tokens" in text
    assert "an hour" in text
    assert f"1 lately, the last {run.errors.place}: " in text


def test_providers_are_judged_by_their_last_calls(asking):
    (one,) = seen(asking).providers
    assert (one.name, one.state, one.calls, one.failed) == ("x", "up", 3, 1)
    assert "x up: 1 of the last 3 calls failed, 2.0 s in the median" in shared(asking)


def test_an_endpoint_that_is_left_alone_says_why(asking):
    with EventLog.open(asking) as log:
        opened = BreakerOpened(name="y", error=ErrorInfo(code="key", message="the key was refused"))
        log.append_now([NewEvent(SYSTEM_STREAM, opened)])
    assert "y resting: the key was refused" in shared(asking)


def test_the_days_budget_is_told(asking):
    assert seen(asking).day == DayView(
        date="2030-01-02",
        spent_usd=0.0,
        spent_tokens=0,
        spent_calls=0,
        spent_seconds=0.0,
        spent_device_seconds=0.0,
        reserved_usd=2.0,
    )
    assert "2030-01-02 (UTC): $0.00, $2.00 more reserved; 0 calls, 0 tokens" in "\n".join(
        format_shared_state(seen(asking))
    )


def test_the_days_time_is_told_once_there_was_some(asking):
    with EventLog.open(asking) as log:
        took = Amount(seconds=3725.0, device_seconds=61.0)
        log.append_now([NewEvent(SYSTEM_STREAM, DaySettled(call="c", amount=took))])
    told = "\n".join(format_shared_state(seen(asking)))
    assert "0 calls, 0 tokens, runs under way for 1:02:05, 1:01 on devices" in told


def test_hosts_are_told_while_somebody_uses_them(asking, monkeypatch):
    monkeypatch.setattr("agentctl.views.hosts.hosts_of_runs", lambda _: {"a", "b"})
    now = datetime(2030, 1, 1, tzinfo=UTC)
    host_status.publish_host_status(
        asking,
        [
            HostStatus(address="a", state="up", since=now, slots=8, running=3, done=40, device="trn2"),
            HostStatus(address="b", state="resting", since=now, until=now, why="no answer", remedy="look"),
            HostStatus(address="c", state="resting", since=now, until=now, why="no run names it now"),
        ],
    )
    text = shared(asking)
    assert "a up, trn2, 3 of 8 busy, 40 done" in text
    assert "b resting until 2030-01-01 00:00:00Z, no answer; look" in text
    assert "no run names it now" not in text
    with LogReader.open(asking) as reader:
        assert home_overview(reader, find_owner_process(asking), now_us=0).hosts == ()


def test_a_host_that_is_told_little_of_is_told_in_a_word():
    found = HomeOverview(
        OwnerProcess("running", None, None, None, "h", 0), (), 0, (), (HostView("c", "up"),), None
    )
    assert [unstyle(line) for line in format_shared_state(found)] == ["hosts       c up"]


def test_many_names_are_counted():
    assert _name_some_runs(["a", "b", "c", "d"], all_=False) == "4 runs, such as a, b, c"


def test_watching_in_a_pipe_writes_each_screen_once_and_ends_with_the_run(home):
    run = fakes.submit_run(home)
    fakes.take_commands(home)
    program = Path(sys.executable).with_name("agentctl")
    with subprocess.Popen(
        [program, "--home", str(home), "status", run, "--watch"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "100"},
    ) as watching:  # fmt: skip
        assert watching.stdout is not None
        assert watching.stderr is not None
        first = watching.stdout.readline()
        assert first.startswith("stopped (nobody owns ")
        fakes.finish_runs(home, run)
        rest = watching.stdout.read()
        assert watching.stderr.read() == ""
        assert watching.wait(timeout=120) == 0
    assert "interrupted" in rest
    assert rest.count(" completed ") == 1
