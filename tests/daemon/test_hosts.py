"""Runs on hosts, as the process sees them: who waits for hosts, what waits not, and how it goes on."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from daemon import host_watch
from daemon.command_models import Pause
from daemon.home_owner import serve_runs
from daemon.stop_signal import StopSignal
from daemon.workers import Workers
from remote.errors import NoHostError, NotReadyError
from state.errors import StreamUnknown
from state.log import EventLog
from state.model import SYSTEM_STREAM, PauseCause, RunStatus
from tests.support import fakes
from tests.support.fakes import put_command


class Remote(fakes.FakeEvaluator):
    """Judges elsewhere: it must be reached first. `away`: nobody is there, after `lasts` kernels."""

    def __init__(self, lasts: int | None = None) -> None:
        super().__init__()
        self.lasts = lasts
        self.reached = False
        self.away = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.tried = 0

    def toolchain(self) -> str:
        if not self.reached:
            raise NotReadyError("no host was asked yet what it is")
        return super().toolchain()

    async def prepare(self) -> None:
        self.tried += 1
        await self.answers.wait()
        if self.away:
            raise NoHostError("no host can be used: ubuntu@trn: connection refused")
        self.reached = True

    async def evaluate(self, request, blobs, /):
        if self.lasts is not None and sum(self.calls.values()) >= self.lasts:
            self.away, self.lasts = True, None
        if self.away:
            raise NoHostError("no host is left for trn2: ubuntu@trn: connection refused")
        return await super().evaluate(request, blobs)


ON_HOSTS = fakes.CONFIG.model_copy(update={"evaluator": "ssh"})


@asynccontextmanager
async def hosting(home, *judges):
    """Own a home, with an evaluator on hosts, and one at home for runs that want that."""
    by_kind = {"ssh": judges[0], fakes.CONFIG.evaluator: fakes.FakeEvaluator()}
    workers = Workers(
        create_evaluator=lambda wanted: by_kind[wanted.kind], create_proposer=fakes.proposers.create_proposer
    )
    stop = StopSignal()
    with EventLog.open(home) as log:
        task = asyncio.create_task(serve_runs(log, fakes.daemon_config(), stop=stop, workers=workers))
        try:
            yield log
        finally:
            stop.request()
            await task


async def wait_until(task_or_condition) -> None:
    async with asyncio.timeout(60):
        while not task_or_condition():  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(host_watch, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(host_watch, "FIRST_PAUSE_SECONDS", 0.02)


def answers(log: EventLog) -> dict[str, str]:
    """Return the answer to each command, by id: its event's type, and why it was rejected."""
    try:
        found = log.read(stream=SYSTEM_STREAM, types=("CommandCompleted", "CommandRejected"))
    except StreamUnknown:  # nothing was taken in yet
        return {}
    return {
        item.event.id: item.event.error.message if item.type == "CommandRejected" else "done"
        for item in found
    }


async def test_a_submit_that_waits_for_a_host_holds_nobody_up(home):
    slow = Remote()
    slow.answers.clear()
    waiting = fakes.submit_run(home, ON_HOSTS, id_="0001-slow")
    async with hosting(home, slow) as log:
        await wait_until(lambda: slow.tried == 1)
        quick = fakes.submit_run(home, id_="0002-quick")
        await wait_until(lambda: fakes.has_ended(log, quick))
        pausing = put_command(home, Pause(run=quick), id_="0003-pause")
        await wait_until(lambda: pausing in answers(log))
        assert "0001-slow" not in answers(log)
        assert slow.tried == 1
        slow.answers.set()
        await wait_until(lambda: fakes.has_ended(log, waiting))
        assert answers(log)["0001-slow"] == "done"


async def test_a_submit_to_hosts_that_refuse_is_rejected_and_the_next_one_tries_anew(home):
    gone = Remote()
    gone.away = True
    fakes.submit_run(home, ON_HOSTS, id_="0001")
    async with hosting(home, gone) as log:
        await wait_until(lambda: "0001" in answers(log))
        assert answers(log)["0001"] == "no host can be used: ubuntu@trn: connection refused"
        assert not log.run_ids()
        gone.away = False
        run = fakes.submit_run(home, ON_HOSTS, id_="0002")
        await wait_until(lambda: fakes.has_ended(log, run))
        assert gone.tried == 2


async def test_a_run_without_hosts_pauses_loses_nothing_and_goes_on_when_one_answers(home, tmp_path):
    twin = fakes.submit_run(tmp_path / "twin")
    with EventLog.open(tmp_path / "twin") as log:
        await fakes.host_until_ended(log, twin)
        undisturbed = log.run_state(twin).best
    there = Remote(lasts=2)
    run = fakes.submit_run(home, ON_HOSTS, id_="0001")
    async with hosting(home, there) as log:
        await wait_until(lambda: there.away and log.run_state(run).status is RunStatus.PAUSED)
        state = log.run_state(run)
        assert state.pause_cause is PauseCause.HOSTS
        assert state.status_reason == (
            "no host is left for trn2: ubuntu@trn: connection refused; it goes on when a host answers"
        )
        assert state.open
        there.away = False
        await wait_until(lambda: fakes.has_ended(log, run))
        assert not list(log.read(stream=run, types=("EvaluationFailed",)))
        assert (log.run_state(run).best.source, log.run_state(run).best.latency_ms) == (
            undisturbed.source,
            undisturbed.latency_ms,
        )


async def test_a_run_that_waited_for_hosts_when_its_process_ended_goes_on_in_the_next(home):
    gone, back = Remote(lasts=2), Remote()
    run = fakes.submit_run(home, ON_HOSTS, id_="0001")
    async with hosting(home, gone) as log:
        await wait_until(lambda: gone.away and log.run_state(run).status is RunStatus.PAUSED)
    async with hosting(home, back) as log:
        await wait_until(lambda: fakes.has_ended(log, run))
        assert back.tried >= 1
