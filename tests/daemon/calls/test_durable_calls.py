"""Questions of effects: bought once, sent again as logged, settled by what their failure calls for."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from agent_core.decide import decide
from agent_core.effects import Effect, Record
from agent_core.providers.completion import Tokens
from agent_core.providers.failures import Failure, FailureKind
from agent_core.roles import RoleError
from daemon.calls.errors import EffectDeferred
from daemon.calls.request_rendering import load_request
from daemon.stop_signal import StopSignal
from stability.breaker import BreakerPolicy
from state.events import (
    BudgetShort,
    BudgetWarned,
    CallCompleted,
    CallFailed,
    CallLost,
    CallStarted,
    ExecutionFailed,
    KernelProposed,
    PlanFailed,
    PlanStarted,
    RunCancelled,
    RunCompleted,
    RunPaused,
    RunResumed,
)
from state.fold import state_hash
from state.log import EventLog
from state.model import PauseCause, RunStatus, StopReason
from state.records import NewEvent
from tests.daemon.calls import fake_models
from tests.daemon.calls.fake_models import CONFIG, MODEL, FakeProvider, answer_request
from tests.support.sweeps import parametrize_sweep


@pytest.fixture
def event_log(home):
    with EventLog.open(home) as log:
        yield log


def events(event_log: EventLog, run: str, *kinds: type) -> list:
    return [item.event for item in event_log.read(stream=run, limit=10_000) if isinstance(item.event, kinds)]


def failing(kind: FailureKind, times: int = 1, **said):
    """Return the script of a model that fails so often at every question before it answers."""

    def script(request, delivery):
        failure = Failure(kind=kind, message=f"as the script says: {delivery}", **said)
        return failure if delivery <= times else answer_request(request, delivery)

    return script


@pytest.fixture
def calm(tmp_path):
    """What a run without any trouble comes to: its state's hash and how many calls it made."""

    async def run() -> tuple[str, int]:
        with EventLog.open(tmp_path / "calm") as log:
            provider = FakeProvider()
            name = await fake_models.finish_run(log, provider)
            return state_hash(log.run_state(name)), len(provider.asked)

    return asyncio.run(run())


# --- a run ------------------------------------------------------------------------------------------


async def test_a_run_is_carried_by_a_model(event_log):
    provider = FakeProvider()
    run = await fake_models.finish_run(event_log, provider)
    state = event_log.run_state(run)
    started, done = events(event_log, run, CallStarted), events(event_log, run, CallCompleted)
    assert (state.stop, len(started), len(done)) == (
        StopReason.ROUNDS,
        len(provider.asked),
        len(provider.asked),
    )
    assert state.tally.proposed > 0
    assert {event.role for event in done} >= {"planner", "executor", "reflector"}
    assert {event.author for event in events(event_log, run, KernelProposed)} == {MODEL}
    assert state.reserved_amount.usd == state.reserved_usd == 0.0
    assert state.spent_usd == pytest.approx(sum(event.cost_usd for event in done))
    assert state.spent_usd < sum(event.reserved.usd for event in started)
    day = event_log.system_state().day
    assert (day.spent, day.held) == (state.spent_amount, {})
    assert {event.usage.cost_usd for event in events(event_log, run, KernelProposed)} == {0.0}
    assert provider.closed


async def test_a_request_is_logged_whole_and_what_prompts_share_once(event_log):
    provider = FakeProvider()
    run = await fake_models.finish_run(event_log, provider)
    logged = [
        load_request(event_log.get_blob(event.request), event_log.get_blob)
        for event in events(event_log, run, CallStarted)
    ]
    assert sorted(map(repr, logged)) == sorted(map(repr, provider.asked))
    guides = {part.text for request in logged for part in request.guide}
    assert len(guides) < len([part for request in logged for part in request.guide]) / 3
    assert all(any(part.cached for part in request.guide) for request in logged)


# --- recovery -----------------------------------------------------------------------------------------


async def in_flight(event_log: EventLog, config=CONFIG) -> tuple[str, Effect, str]:
    """Bring a run to its first plan and admit that; return it with the digest of its request."""
    run = await fake_models.submit_run(event_log, config)
    roles = fake_models.create_role_factory(event_log, FakeProvider(script=failing(FailureKind.AUTH, 100)))
    await fake_models.host_until(
        event_log, roles, until=lambda: event_log.run_state(run).status is RunStatus.PAUSED
    )
    await event_log.append([NewEvent(run, RunResumed(reason="test"))])
    state = event_log.run_state(run)
    key = next(key for key in state.open if key.endswith("planner"))
    return run, key, state.open[key].request


async def test_an_answer_in_the_log_is_never_bought_again(event_log, calm):
    """The outcome of the effect is lost each time, the answers to its questions are not."""
    run = await fake_models.submit_run(event_log)
    provider = FakeProvider()
    lives = 0

    def answers() -> int:
        return len(events(event_log, run, CallCompleted))

    while not event_log.run_state(run).has_ended:
        before, lives = answers(), lives + 1
        roles = fake_models.create_role_factory(event_log, provider)
        await fake_models.host_until(
            event_log,
            roles,
            until=lambda n=before: answers() > n or event_log.run_state(run).has_ended,
        )
        assert lives < 100
    assert lives > 3
    assert state_hash(event_log.run_state(run)) == calm[0]
    bought = Counter((event.key, event.call) for event in events(event_log, run, CallStarted))
    assert (set(bought.values()), bought.total()) == ({1}, len(provider.asked))
    assert len(provider.asked) == calm[1]


async def test_an_attempt_without_an_outcome_is_charged_and_sent_again_as_it_was_logged(event_log, calm):
    stop = StopSignal()

    def script(request, delivery):
        stop.requested.set()
        raise asyncio.CancelledError  # as when the process is stopped in the middle of a call

    run = await fake_models.submit_run(event_log)
    roles = fake_models.create_role_factory(event_log, FakeProvider(script=script))
    await fake_models.host_until(event_log, roles, until=stop.requested.is_set, stop=stop)
    state = event_log.run_state(run)
    lost = [one for effect in state.open.values() for one in effect.calls]
    assert lost
    held = state.reserved_amount
    assert state.reserved_usd == held.usd > 0
    provider = FakeProvider()
    await fake_models.host_until(
        event_log,
        fake_models.create_role_factory(event_log, provider),
        until=lambda: event_log.run_state(run).has_ended,
    )
    gone = events(event_log, run, CallLost)
    assert sum(event.cost_usd for event in gone) == pytest.approx(held.usd)
    again = [event for event in events(event_log, run, CallStarted) if event.attempt == 2]
    assert {event.request for event in again} == {one.request for one in lost}
    assert (state_hash(event_log.run_state(run)), len(provider.asked)) == calm
    assert event_log.system_state().day.held == {}


async def test_an_edited_prompt_changes_nothing_in_flight(event_log, monkeypatch):
    run, key, _ = await in_flight(event_log)
    logged = event_log.run_state(run).open[key].calls[0].request
    provider = FakeProvider()
    roles = fake_models.create_role_factory(event_log, provider)
    monkeypatch.setattr("daemon.calls.request_rendering.render_request", None)  # whoever renders fails
    made = roles.create_roles(run, _key(key))
    request = _request(event_log, key, run)
    answer = await made.plan(request, event_log.get_blob)
    assert answer.plan.technique == "hoist"
    assert provider.asked == [load_request(event_log.get_blob(logged), event_log.get_blob)]


def _key(text: str):
    from state.model import EffectKey

    return EffectKey.parse(text)


def _request(event_log: EventLog, key: str, run: str):
    from agent_core.effects import REQUESTS

    return REQUESTS[_key(key).role].model_validate_json(
        event_log.get_blob(event_log.run_state(run).open[key].request)
    )


# --- failures -----------------------------------------------------------------------------------------


@parametrize_sweep(
    "kind",
    [FailureKind.RATE, FailureKind.OVERLOADED, FailureKind.TRANSPORT, FailureKind.SERVER],
)
async def test_what_may_pass_is_tried_again_and_leaves_no_trace_in_the_search(event_log, calm, kind):
    provider = FakeProvider(script=failing(kind, 2))
    run = await fake_models.finish_run(event_log, provider, breakers=BreakerPolicy(failures=1000))
    assert state_hash(event_log.run_state(run)) == calm[0]
    assert len(events(event_log, run, CallCompleted)) == calm[1]
    failed = events(event_log, run, CallFailed)
    assert len(failed) == len(provider.asked) - calm[1] > 0
    assert {(event.kind, event.cost_usd) for event in failed} == {(kind.value, 0.0)}


async def test_patience_ends_and_the_proposal_fails(event_log):
    provider = FakeProvider(script=failing(FailureKind.SERVER, 1000))
    run = await fake_models.finish_run(event_log, provider, breakers=BreakerPolicy(failures=1000))
    (code,) = {event.error.code for event in events(event_log, run, PlanFailed)}
    assert code == "llm_server"
    assert set(provider.counts.values()) == {fake_models.QUICK.tries}


@pytest.mark.parametrize("kind", [FailureKind.REFUSED, FailureKind.INVALID])
async def test_what_will_not_pass_is_a_failed_proposal(event_log, kind):
    provider = FakeProvider(script=failing(kind, 1000))
    run = await fake_models.finish_run(event_log, provider)
    assert {event.error.code for event in events(event_log, run, PlanFailed)} == {f"llm_{kind.value}"}
    assert set(provider.counts.values()) == {1}
    assert event_log.run_state(run).stop is StopReason.NO_PROPOSALS
    assert f": llm_{kind.value}: {MODEL} " in event_log.run_state(run).status_reason


async def test_a_prompt_that_is_too_large_is_shortened_once(event_log):
    """The second question may be the same where nothing had to go; then it is delivered twice."""
    provider = FakeProvider(script=failing(FailureKind.TOO_LARGE, 1000))
    run = await fake_models.finish_run(event_log, provider)
    assert {event.error.code for event in events(event_log, run, PlanFailed)} == {"llm_too_large"}
    attempts = Counter(event.key for event in events(event_log, run, CallStarted))
    assert set(attempts.values()) == {2}


async def test_an_answer_that_was_cut_off_gets_more_room_once(event_log, calm):
    counted = Tokens(input=100, output=1000)

    def script(request, delivery):
        cut = Failure(kind=FailureKind.TRUNCATED, message="max_tokens", tokens=counted)
        return cut if request.max_output_tokens == 1000 else answer_request(request, delivery)

    run = await fake_models.finish_run(event_log, FakeProvider(script=script))
    failed = events(event_log, run, CallFailed)
    assert len(failed) == calm[1]
    assert {event.cost_usd for event in failed} == {(100 * 3 + 1000 * 15) / 1e6}
    assert state_hash(event_log.run_state(run)) == calm[0]
    assert event_log.run_state(run).stop is StopReason.ROUNDS


async def test_what_may_have_cost_is_charged_at_what_was_held(event_log):
    script = failing(FailureKind.TRANSPORT, 1, may_cost=True)
    run = await fake_models.finish_run(
        event_log, FakeProvider(script=script), breakers=BreakerPolicy(failures=1000)
    )
    held = {(e.key, e.call): e.reserved for e in events(event_log, run, CallStarted) if e.attempt == 1}
    for event in events(event_log, run, CallFailed):
        assert event.cost_usd == held[event.key, event.call].usd
        assert event.charged_tokens == held[event.key, event.call].tokens


@parametrize_sweep("kind", [FailureKind.AUTH, FailureKind.SPEND_LIMIT])
async def test_what_only_a_person_can_mend_pauses_the_run(event_log, calm, kind):
    run = await fake_models.submit_run(event_log)
    provider = FakeProvider(script=failing(kind, 1))
    for _ in range(100):
        roles = fake_models.create_role_factory(event_log, provider)
        await fake_models.host_until(
            event_log, roles, until=lambda: event_log.run_state(run).status is not RunStatus.RUNNING
        )
        if event_log.run_state(run).has_ended:
            break
        paused = events(event_log, run, RunPaused)[-1]
        assert paused.cause is PauseCause.PROVIDER
        assert paused.reason.startswith(f"local: {kind.value}: as the script says")
        assert not events(event_log, run, PlanFailed, ExecutionFailed)
        await event_log.append([NewEvent(run, RunResumed(reason="mended"))])
    assert state_hash(event_log.run_state(run)) == calm[0]


async def test_a_broken_endpoint_is_left_alone_and_probed(event_log, calm):
    provider = FakeProvider(script=failing(FailureKind.SERVER, 2))
    policy = BreakerPolicy(failures=2, pause_seconds=0.002, longest_seconds=0.004, probe_seconds=0.002)
    run = await fake_models.finish_run(event_log, provider, breakers=policy)
    kinds = Counter(item.type for item in event_log.read(stream="system", limit=10_000))
    assert kinds["BreakerOpened"] == kinds["BreakerClosed"] > 0
    assert event_log.system_state().breakers == {}
    assert state_hash(event_log.run_state(run)) == calm[0]


async def test_a_question_that_waited_at_a_broken_endpoint_ends_with_a_reason_of_its_own(event_log):
    provider = FakeProvider(script=failing(FailureKind.SERVER, 10_000))
    policy = BreakerPolicy(failures=1, pause_seconds=100_000, longest_seconds=100_000)
    config = fake_models.daemon_config(local={"patience_seconds": 1000.0})
    run = await fake_models.submit_run(event_log)
    roles = fake_models.create_role_factory(event_log, provider, config, breakers=policy)
    await fake_models.host_until(
        event_log, roles, until=lambda: event_log.run_state(run).has_ended, config=config
    )
    failed = events(event_log, run, PlanFailed)
    assert failed
    assert {event.error.code for event in failed} == {"llm_unavailable"}
    assert event_log.run_state(run).stop is StopReason.NO_PROPOSALS


# --- budgets ------------------------------------------------------------------------------------------


def never_over(event_log: EventLog, run: str, cap_usd: float) -> None:
    last = event_log.run_seq(run)
    for seq in range(1, last + 1):
        state = event_log.run_state(run, seq)
        assert state.spent_usd + state.reserved_usd <= cap_usd


async def test_a_run_ends_when_no_call_has_room_and_never_exceeds_its_cap(event_log):
    config = CONFIG.model_copy(update={"cap_usd": 0.15})
    run = await fake_models.finish_run(event_log, FakeProvider(), config)
    state = event_log.run_state(run)
    assert state.stop is StopReason.BUDGET
    (short,) = events(event_log, run, BudgetShort)
    assert short.cap == 0.15
    assert {event.error.code for event in events(event_log, run, PlanFailed, ExecutionFailed)} == {"budget"}
    never_over(event_log, run, 0.15)
    warned = [event.percent for event in events(event_log, run, BudgetWarned)]
    assert warned in ([50, 80], [80])


@pytest.mark.parametrize("cap", ["cap_calls", "cap_tokens"])
async def test_calls_and_tokens_have_caps_too(event_log, cap):
    most = {"cap_calls": 5, "cap_tokens": 60_000}[cap]
    config = CONFIG.model_copy(update={cap: most})
    run = await fake_models.finish_run(event_log, FakeProvider(), config)
    state = event_log.run_state(run)
    assert state.stop is StopReason.BUDGET
    assert {"cap_calls": state.spent_calls, "cap_tokens": state.spent_tokens}[cap] <= most


async def test_without_a_price_a_run_goes_on_and_says_so(event_log, caplog):
    config = fake_models.daemon_config(prices=())
    run = await fake_models.submit_run(event_log, CONFIG.model_copy(update={"cap_usd": 0.0}))
    roles = fake_models.create_role_factory(event_log, FakeProvider(), config)
    await fake_models.host_until(event_log, roles, until=lambda: event_log.run_state(run).has_ended)
    state = event_log.run_state(run)
    assert (state.stop, state.unknown_cost, state.spent_usd) == (StopReason.ROUNDS, True, 0.0)
    assert state.prices == {MODEL: None}
    assert {event.cost_usd for event in events(event_log, run, CallCompleted)} == {None}


async def test_a_price_holds_for_a_run_whatever_lists_say_later(event_log):
    run, _, _ = await in_flight(event_log)
    dearer = fake_models.daemon_config(prices=(f"{MODEL}=300/30/1500",))
    roles = fake_models.create_role_factory(event_log, FakeProvider(), dearer)
    await fake_models.host_until(
        event_log, roles, until=lambda: event_log.run_state(run).has_ended, config=dearer
    )
    assert event_log.run_state(run).prices[MODEL].rates[0].input == 3.0
    assert event_log.run_state(run).spent_usd < 1


async def test_a_day_without_room_holds_a_run_until_another_day(event_log, calm):
    now = [1_772_409_600.0]  # 2 March 2026, 00:00 UTC
    config = fake_models.daemon_config(day_calls=7)
    run = await fake_models.submit_run(event_log)
    provider = FakeProvider()
    days = 0
    while not event_log.run_state(run).has_ended:
        roles = fake_models.create_role_factory(event_log, provider, config, clock=lambda: now[0])
        before, pauses = len(provider.asked), len(events(event_log, run, RunPaused))
        await fake_models.host_until(
            event_log,
            roles,
            until=lambda n=pauses: (
                event_log.run_state(run).has_ended or len(events(event_log, run, RunPaused)) > n
            ),
        )
        assert len(provider.asked) - before <= 7
        if event_log.run_state(run).status is RunStatus.PAUSED:
            assert event_log.run_state(run).pause_cause is PauseCause.DAY
            now[0] += 86_400
        days += 1
        assert days < 20
    assert days == -(-calm[1] // 7)
    assert state_hash(event_log.run_state(run)) == calm[0]


# --- who steers ---------------------------------------------------------------------------------------


async def test_a_run_that_is_cancelled_pays_for_what_was_under_way(event_log):
    from daemon.commands import CommandHandler
    from tests.support import fakes

    stop = StopSignal()

    def script(request, delivery):
        stop.requested.set()
        raise asyncio.CancelledError

    run = await fake_models.submit_run(event_log)
    roles = fake_models.create_role_factory(event_log, FakeProvider(script=script))
    await fake_models.host_until(event_log, roles, until=stop.requested.is_set, stop=stop)
    held = event_log.run_state(run).reserved_amount
    commands = CommandHandler(event_log, fakes.fake_workers(), touched=lambda *_: None)
    await commands.handle("stop", b'{"verb": "cancel", "run": "%s"}' % run.encode())
    state = event_log.run_state(run)
    assert (state.status, state.spent_amount, state.reserved_usd) == (RunStatus.CANCELLED, held, 0.0)
    assert event_log.system_state().day.held == {}
    assert events(event_log, run, RunCancelled)


async def test_a_paused_run_buys_nothing_more(event_log):
    run, key, _ = await in_flight(event_log)
    await event_log.append([NewEvent(run, RunPaused(reason="a person"))])
    provider = FakeProvider()
    roles = fake_models.create_role_factory(event_log, provider).create_roles(run, _key(key))
    with pytest.raises(EffectDeferred):
        await roles.plan(_request(event_log, key, run), event_log.get_blob)
    assert provider.asked == []


async def test_a_planner_without_a_model_fails_and_says_what_to_set(event_log):
    run, key, _ = await in_flight(event_log)
    state = event_log.run_state(run)
    bare = state.config.model_copy(update={"llm": state.config.llm.model_copy(update={"models": ()})})
    slots = tuple(slot.model_copy(update={"model": None}) for slot in state.slots)
    changes = {"config": bare, "slots": slots, "open": {}}
    event_log.run_state = lambda _: state.model_copy(update=changes)
    with pytest.raises(RoleError, match="no model is given for local"):
        fake_models.create_role_factory(event_log, FakeProvider()).create_roles(run, _key(key))


async def test_the_first_of_a_round_s_questions_goes_alone_where_that_is_cheaper(event_log):
    """All planners of a round share a long guide: the second is sent when the first has its answer."""
    under_way: list[int] = []
    provider = FakeProvider()

    def script(request, delivery):
        under_way.append(provider.under_way)
        return answer_request(request, delivery)

    provider.script = script
    run = await fake_models.submit_run(event_log)
    busy = fake_models.daemon_config(evaluations=8)
    await fake_models.host_until(
        event_log,
        fake_models.create_role_factory(event_log, provider, busy),
        until=lambda: event_log.run_state(run).has_ended,
        config=busy,
    )
    assert under_way[0] == 1
    assert all(isinstance(one, Record | Effect) for one in decide(event_log.run_state(run)))
    assert isinstance(events(event_log, run, RunCompleted)[0], RunCompleted)
    assert events(event_log, run, PlanStarted)


@pytest.mark.parametrize("planner", ["local", "scripted"])
async def test_a_run_that_had_its_time_ends_before_another_round(event_log, planner):
    config = CONFIG.model_copy(update={"cap_seconds": 0.001, "planner": (planner,)})
    run = await fake_models.finish_run(event_log, FakeProvider(), config)
    state = event_log.run_state(run)
    assert (state.stop, state.round) == (StopReason.BUDGET, 0)
    assert state.status_reason == "the run has had its 0 s"
