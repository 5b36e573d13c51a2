"""Runs that cannot go on: a refused key, a cap without a price, work that others handed over."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import pytest
import structlog

from agentctl import follow
from agentctl.command_answers import SentCommand, wait_for_answer
from agentctl.screen import PlainScreen, status_lines
from agentctl.verbs.run import LOG_FILE, log_beside_display
from agentctl.views.owner_process import is_service_waiting
from daemon import exits, home_owner
from daemon.command_models import Resume
from daemon.commands import CommandHandler
from daemon.evaluation_retries import EvaluationRetryPolicy
from daemon.home_paths import INSTANCE_LOCK
from daemon.inbox import Inbox, put_command
from remote.errors import InfrastructureError
from state.errors import NoLog
from state.log import EventLog
from state.model import PauseCause, RunStatus
from state.reader import LogReader
from tests.agentctl.test_screen import tracked
from tests.daemon.calls.fake_models import MODEL, daemon_config
from tests.support import fakes
from tests.support.llm_server import LlmServer, Refuse, Reply

FLAGS = (
    "run", "--problem", "silu", "--size", "reduced", "--rounds", 1, "--json", "--set", "evaluator=fake",
    "--set", 'planner=["local"]', "--set", f'llm.models=["{MODEL}"]', "--set", "search.beam=1",
    "--set", "search.explorers=0", "--set", "cap_usd=1",
)  # fmt: skip


@pytest.fixture
def refusing(monkeypatch):
    monkeypatch.setenv("LOCAL_API_KEY", "wrong-key-" + "k" * 30)
    with LlmServer(lambda asked: Refuse(401, "authentication_error", "no such key")) as server:
        yield server


def test_a_run_whose_key_is_refused_ends_and_says_what_to_do(ctl, refusing, fake_kernel):
    address = f"daemon.local.base_url={refusing.openai}"
    called = ctl(*FLAGS, "--kernel", fake_kernel, "--allow-unknown-prices", "--set", address)
    assert called.status == exits.BLOCKED
    assert called.lines[-1]["state"] == "paused"
    assert "it cannot go on: local: auth: " in called.err
    assert "correct the key or the account, then: " in called.err


def test_a_run_on_a_machine_that_cannot_judge_ends_and_says_why(ctl, home, fake_kernel, monkeypatch):
    async def fail(*_: object) -> None:
        raise InfrastructureError("jail_start", "the jail did not start: no such module")

    monkeypatch.setattr(fakes.FakeEvaluator, "evaluate", fail)
    monkeypatch.setattr(home_owner, "_retry_policy", lambda _: EvaluationRetryPolicy(first_pause=0.0))
    flags = ("run", "--problem", "silu", "--size", "reduced", "--json", "--set", "evaluator=fake")
    called = ctl(*flags, "--set", 'planner=["scripted"]', "--kernel", fake_kernel)
    assert called.status == exits.BLOCKED
    assert called.lines[-1]["state"] == "paused"
    assert "was not judged in 3 tries: jail_start: the jail did not start: no such module" in called.err
    assert "mend the machine (agentctl doctor tries it), then: " in called.err


def test_a_run_that_waits_for_keys_stays_until_it_is_resumed(ctl, refusing, home, fake_kernel):
    """The account is corrected, and another process resumes the run."""
    statuses: list[RunStatus] = []

    def correct() -> None:
        end = time.monotonic() + 60
        while (not statuses or statuses[-1] is not RunStatus.PAUSED) and time.monotonic() < end:
            time.sleep(0.05)
            try:
                with LogReader.open(home) as reader:
                    runs = reader.run_ids()
                    statuses.extend(reader.run_state(run).status for run in runs)
            except NoLog:
                continue
        refusing.script = lambda _: Reply(text="no plan")
        put_command(home, Resume(run=runs[0]))

    helper = threading.Thread(target=correct)
    helper.start()
    address = f"daemon.local.base_url={refusing.openai}"
    flags = ("--allow-unknown-prices", "--wait-for-keys", "--set", address)
    called = ctl(*FLAGS, "--kernel", fake_kernel, *flags)
    helper.join()
    assert statuses[-1] is RunStatus.PAUSED
    assert called.status == exits.FAILURE, "it went on, and found nothing"
    assert called.lines[-1]["state"] == "completed"


def test_a_cap_without_a_price_is_refused_before_anything_starts(ctl, refusing, home):
    called = ctl(*FLAGS, "--set", f"daemon.local.base_url={refusing.openai}")
    assert called.status == exits.USAGE
    assert f"run.cap_usd = 1 cannot be kept, as the price of {MODEL} is unknown" in called.err
    assert "daemon.prices" in called.err
    assert "--allow-unknown-prices" in called.err
    assert refusing.asked == []
    with LogReader.open(home) as reader:
        assert reader.run_ids() == ()


def test_a_paused_run_says_so_on_its_status_line(home, finished):
    with LogReader.open(home) as reader:
        tracker = tracked(finished, reader.read(stream=finished, limit=10_000), upto=20)
    assert tracker.state is not None
    paused = {"status": RunStatus.PAUSED, "status_reason": "local: auth: no such key"}
    tracker.state = tracker.state.model_copy(update={**paused, "pause_cause": PauseCause.PROVIDER})
    first = status_lines(tracker, 5.0).split("\n")[0]
    assert first.startswith("paused: local: auth: no such key; correct the key")
    assert "in flight" not in first


@pytest.mark.parametrize(
    ("cause", "reason", "key_file", "blocked"),
    [
        (PauseCause.PROVIDER, "local: auth: no", None, True),
        (PauseCause.PROVIDER, "local: auth: no", "a-file", False),
        (PauseCause.PROVIDER, "local: spend_limit: no", None, False),
        (PauseCause.PERSON, "local: auth: no", None, False),
        (PauseCause.MACHINE, "r0.b0.p0.k0.f0.evaluator was not judged in 3 tries", None, True),
    ],
)
def test_only_what_nobody_can_correct_from_outside_blocks(
    home, finished, *, cause, reason, key_file, blocked
):
    with LogReader.open(home) as reader:
        state = reader.run_state(finished)
    found = {"status": RunStatus.PAUSED, "status_reason": reason, "pause_cause": cause}
    config = daemon_config(local={"key_file": key_file})
    assert follow.is_blocked(state.model_copy(update=found), config) is blocked
    assert follow.is_blocked(state.model_copy(update=found), config, wait_for_keys=True) is (
        cause is PauseCause.MACHINE
    )
    assert not follow.is_blocked(state, config)


def test_log_lines_stay_out_of_a_live_display(tmp_path, capsys):
    with log_beside_display(tmp_path, live=True):
        structlog.get_logger("calls").warning("call_failed", error="no such key")
        inside = capsys.readouterr()
    assert (inside.out, inside.err) == ("", "")
    assert "no such key" in (tmp_path / LOG_FILE).read_text()
    assert str(tmp_path / LOG_FILE) in capsys.readouterr().err
    with log_beside_display(tmp_path, live=False):
        structlog.get_logger("calls").warning("call_failed", error="seen")
    assert "seen" in capsys.readouterr().err
    structlog.reset_defaults()


async def test_a_foreground_owner_stays_for_what_was_submitted(home):
    """The other run goes on in this process until it ends, and the screen names it."""
    other = fakes.submit_run(home)
    out = io.StringIO()
    with EventLog.open(home) as log:
        hosting = asyncio.create_task(fakes.host_until_ended(log, other))
        async with asyncio.timeout(30):
            while not log.run_ids():  # noqa: ASYNC110 - the log tells nobody
                await asyncio.sleep(0.01)
        await follow._stay_for_others(
            log, "own-000000", {"own-000000", other}, PlainScreen(out), follow.StopSignal()
        )
        assert log.run_state(other).has_ended
        await hosting
    assert f"staying for {other}, submitted meanwhile" in out.getvalue()


SERVICE = """
import sys
from pathlib import Path
from state.lock import HomeLock
lock = HomeLock(Path(sys.argv[1]))
print("waits", flush=True)
sys.stdin.read()
"""


def test_a_foreground_owner_hands_over_to_a_service_that_waits(home):
    """What an `agentd` of this home would drive next is not waited for."""
    other = fakes.submit_run(home)
    fakes.take_commands(home)
    out = io.StringIO()

    async def stay(log: EventLog) -> None:
        async with asyncio.timeout(30):
            await follow._stay_for_others(
                log, "own-000000", {"own-000000", other}, PlainScreen(out), follow.StopSignal()
            )

    command = [sys.executable, "-c", SERVICE, str(home / INSTANCE_LOCK)]
    with EventLog.open(home) as log:
        assert not is_service_waiting(home)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
            assert service.stdout.readline() == "waits\n"
            assert is_service_waiting(home)
            asyncio.run(stay(log))
            service.stdin.close()
        assert log.run_state(other).status is RunStatus.RUNNING
    assert out.getvalue() == ""


def test_who_submits_to_a_foreground_run_is_told_that_it_stays(ctl, home, fake_kernel, monkeypatch):
    with ExitStack() as owned:

        def answer(home, sent: SentCommand):
            log = owned.enter_context(EventLog.open(home))
            handler = CommandHandler(log, fakes.fake_workers(), touched=lambda *_: None)
            asyncio.run(Inbox(home, handler.handle).take_all())
            return wait_for_answer(home, sent)

        monkeypatch.setattr("agentctl.verbs.steer.wait_for_answer", answer)
        called = ctl("submit", *fakes.FAKE, "--kernel", fake_kernel)
    assert called.status == exits.OK
    assert called.out.splitlines()[-1] == (
        f"process {os.getpid()} drives it: a foreground agentctl, which stays until it has ended"
    )


def test_a_stop_is_acknowledged_before_anything_ends():
    async def ask() -> list[str]:
        told: list[str] = []
        stop = follow.StopSignal(lambda: told.append("stopping"))
        stop.request()
        stop.request()
        return told

    assert asyncio.run(ask()) == ["stopping"]
