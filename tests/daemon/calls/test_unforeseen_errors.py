"""Errors that nobody foresaw: no call is left without an outcome, and all ledgers say what it took."""

from __future__ import annotations

import pytest

from agent_core.providers.failures import CallError, FailureKind
from agent_core.providers.keys import Secret
from daemon.calls.durable_calls import DurableCalls
from daemon.calls.endpoints import EndpointPool
from daemon.calls.llm_roles import RoleFactory
from stability.breaker import BreakerPolicy
from state.events import (
    CallCompleted,
    CallFailed,
    CallLost,
    CallStarted,
    PlanFailed,
    RunPaused,
    RunResumed,
)
from state.log import EventLog
from state.model import PauseCause, RunStatus
from state.records import NewEvent
from tests.daemon.calls import fake_models
from tests.daemon.calls.fake_models import FakeProvider, answer_request
from tests.daemon.calls.test_durable_calls import events


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


def breaking_once(error: Exception):
    """Return the script of a model whose provider breaks at the first question and works from then on."""
    left = [error]

    def script(request, delivery):
        if left:
            raise left.pop()
        return answer_request(request, delivery)

    return script


def assert_ledgers_agree(event_log: EventLog, run: str) -> None:
    """Every call has one outcome; the run, its events and the day say the same of what they took."""
    state, day = event_log.run_state(run), event_log.system_state().day
    ends = events(event_log, run, CallCompleted, CallFailed, CallLost)
    started = [(one.key, one.call, one.attempt) for one in events(event_log, run, CallStarted)]
    assert sorted((one.key, one.call, one.attempt) for one in ends) == sorted(started)
    assert (day.spent, day.held) == (state.spent_amount, {})
    assert state.spent_amount.usd == pytest.approx(sum(one.cost_usd for one in ends))
    assert state.spent_amount.tokens == sum(one.charged_tokens for one in ends)


@pytest.mark.parametrize("error", [ValueError("of a secret kind"), UnicodeError("half of a pair")])
async def test_a_bug_on_the_way_is_a_failed_call_that_may_have_cost(event_log, error):
    run = await fake_models.finish_run(event_log, FakeProvider(script=breaking_once(error)))
    (failed,) = events(event_log, run, CallFailed)
    started = next(one for one in events(event_log, run, CallStarted) if one.key == failed.key)
    assert (failed.kind, failed.cost_usd) == (FailureKind.INVALID, started.reserved.usd)
    assert failed.charged_tokens == started.reserved.tokens
    assert failed.error.message == f"{type(error).__name__} here, see the daemon's log"
    assert "llm_invalid" in {one.error.code for one in events(event_log, run, PlanFailed)}
    assert_ledgers_agree(event_log, run)


async def test_an_answer_that_cannot_be_taken_in_is_a_failed_call(event_log):
    """Half of a surrogate pair has no bytes."""
    left = ["\ud83d"]

    def script(request, delivery):
        return left.pop() if left else answer_request(request, delivery)

    run = await fake_models.finish_run(event_log, FakeProvider(script=script))
    (failed,) = events(event_log, run, CallFailed)
    assert failed.error.message.startswith("UnicodeEncodeError here")
    assert_ledgers_agree(event_log, run)


async def test_an_effect_that_ends_with_a_call_under_way_takes_it_along(event_log, monkeypatch):
    """Whatever a bug leaves under way is lost, in the run as in the day."""
    sent = DurableCalls._send_request
    left = [LookupError("a bug in the asking itself")]

    async def broken(self, endpoint, request, started):
        if left:
            raise left.pop()
        await sent(self, endpoint, request, started)

    monkeypatch.setattr(DurableCalls, "_send_request", broken)
    run = await fake_models.finish_run(event_log, FakeProvider())
    (lost,) = events(event_log, run, CallLost)
    started = next(one for one in events(event_log, run, CallStarted) if one.key == lost.key)
    assert (lost.cost_usd, lost.charged_tokens) == (started.reserved.usd, started.reserved.tokens)
    assert lost.reason == "its effect ended before it had an outcome"
    assert [one.key for one in events(event_log, run, PlanFailed)] == [lost.key]
    assert_ledgers_agree(event_log, run)


async def test_an_endpoint_that_cannot_be_set_up_pauses_the_run_before_anything_is_held(event_log):
    provider, left = FakeProvider(), [ImportError("a package for socks:// is missing")]

    def create(name, settings):
        if left:
            raise left[0]
        return provider

    run = await fake_models.submit_run(event_log)
    roles = RoleFactory(
        event_log, fake_models.daemon_config(), env={}, create=create, retries=fake_models.QUICK
    )
    await fake_models.host_until(
        event_log, roles, until=lambda: event_log.run_state(run).status is not RunStatus.RUNNING
    )
    (paused,) = events(event_log, run, RunPaused)
    assert paused.cause is PauseCause.PROVIDER
    assert paused.reason == (
        "local: invalid: cannot be set up: ImportError: a package for socks:// is missing"
    )
    assert not events(event_log, run, CallStarted, PlanFailed)
    assert event_log.system_state().day is None

    left.clear()
    await event_log.append([NewEvent(run, RunResumed(reason="mended"))])
    await fake_models.host_until(event_log, roles, until=lambda: event_log.run_state(run).has_ended)
    assert len(events(event_log, run, CallCompleted)) == len(provider.asked) > 0
    assert_ledgers_agree(event_log, run)


async def test_what_keeps_an_endpoint_from_being_set_up_is_told_without_its_key(event_log):
    key = "a-key-of-no-known-form"

    def create(name, settings):
        assert settings.key == Secret(key)
        raise RuntimeError(f"not with {key}")

    found = EndpointPool(
        event_log,
        fake_models.daemon_config(),
        env={"LOCAL_API_KEY": key},
        create=create,
        policy=BreakerPolicy(failures=1),
    )
    with pytest.raises(CallError) as caught:
        await found.get("local").ensure_provider()
    assert "RuntimeError: not with" in caught.value.failure.message
    assert key not in caught.value.failure.message
    assert event_log.system_state().breakers == {}
