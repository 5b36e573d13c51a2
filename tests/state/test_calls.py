"""Calls to models in the log: one outcome per attempt, what is held and charged, and what twins share."""

from __future__ import annotations

import pytest

from state import fold, system
from state.day_budget import DayBudget
from state.errors import DuplicateOutcome, EventRefused
from state.events import (
    BreakerClosed,
    BreakerOpened,
    BudgetShort,
    BudgetWarned,
    CallCompleted,
    CallFailed,
    CallLost,
    CallStarted,
    DayReserved,
    DaySettled,
    EffectStarted,
    PlanFailed,
    PlanStarted,
    RoundCompleted,
    RoundStarted,
    idempotency_key,
)
from state.fold import IllegalEvent, RunState, apply_event, dump_semantic, state_hash
from state.log import EventLog
from state.model import (
    SYSTEM_STREAM,
    Amount,
    ErrorInfo,
    ModelQuestion,
    Price,
    Resource,
    TokenRates,
    Tokens,
    digest_of,
    round_usd,
)
from state.reader import LogReader
from state.records import NewEvent
from tests.support.scripted_runs import ScriptedRun

MODEL = "anthropic/some-model"
PRICE = Price(rates=(TokenRates(input=3.0, cached=0.3, written=3.75, output=15.0),), source="test")
HELD = Amount(usd=0.5, tokens=9_000, calls=1)
TOKENS = Tokens(input=1_000, cached=400, output=200)
ANSWER = digest_of(b"an answer")
REQUEST = digest_of(b"a request")
ERROR = ErrorInfo(code="rate", message="later")


def planning() -> tuple[RunState, str]:
    """Return a run's state with one plan in flight, and the effect's key."""
    state: RunState | None = None
    for step in ScriptedRun(seed=1).steps():
        if isinstance(step.event, PlanStarted):
            return apply_event(state, step.event.model_copy(update={"reserved_usd": 0.0})), step.event.key
        state = apply_event(state, step.event)
    raise AssertionError


def call_started(key: str, **changes) -> CallStarted:
    plain = CallStarted(
        key=key, call=0, attempt=1, role="planner", model=MODEL, request=REQUEST, price=PRICE, reserved=HELD
    )
    return plain.model_copy(update=changes)


def call_completed(key: str, **changes) -> CallCompleted:
    plain = CallCompleted(
        key=key,
        call=0,
        attempt=1,
        role="planner",
        model=MODEL,
        answer=ANSWER,
        answered_by="some-model-1",
        stop_reason="end_turn",
        tokens=TOKENS,
        charged_tokens=TOKENS.total,
        cost_usd=round_usd(PRICE.cost(TOKENS)),
        ms=12.0,
    )
    return plain.model_copy(update=changes)


def call_failed(key: str, **changes) -> CallFailed:
    plain = CallFailed(
        key=key,
        call=0,
        attempt=1,
        role="planner",
        model=MODEL,
        kind="rate",
        error=ERROR,
        cost_usd=0.0,
        ms=1.0,
    )
    return plain.model_copy(update=changes)


def call_lost(key: str, **changes) -> CallLost:
    plain = CallLost(
        key=key,
        call=0,
        attempt=1,
        role="planner",
        model=MODEL,
        cost_usd=HELD.usd,
        charged_tokens=HELD.tokens,
        reason="crash",
    )
    return plain.model_copy(update=changes)


def test_what_a_call_may_take_is_held_and_what_it_took_is_charged() -> None:
    before, key = planning()
    asked = apply_event(before, call_started(key))
    assert (asked.reserved_usd, asked.reserved_amount) == (0.5, HELD)
    assert asked.open[key].calls == (
        ModelQuestion(role="planner", model=MODEL, request=REQUEST, attempts=1, held=HELD),
    )
    after = apply_event(asked, call_completed(key))
    cost = round_usd((600 * 3.0 + 400 * 0.3 + 200 * 15.0) / 1e6)
    assert (after.spent_usd, after.reserved_usd) == (cost, 0.0)
    assert after.spent_amount == Amount(usd=cost, tokens=1_200, calls=1)
    assert after.open[key].calls[0].answer == ANSWER


def test_an_attempt_lost_in_a_crash_costs_what_was_held_and_the_next_one_follows() -> None:
    state, key = planning()
    for event in (call_started(key), call_lost(key), call_started(key, attempt=2)):
        state = apply_event(state, event)
    assert (state.spent_usd, state.reserved_usd, state.spent_calls) == (0.5, 0.5, 1)
    assert (state.open[key].calls[0].attempts, state.open[key].calls[0].failures) == (2, ())


def test_failures_are_known_by_kind_and_a_second_delivery_knows_all_of_it() -> None:
    state, key = planning()
    for event in (
        call_started(key),
        call_failed(key),
        call_started(key, attempt=2),
        call_failed(key, attempt=2, kind="server"),
    ):
        state = apply_event(state, event)
    again = PlanStarted(key=key, request=state.open[key].request, delivery=2)
    redelivered = apply_event(state, again)
    assert redelivered.open[key].calls == state.open[key].calls
    assert redelivered.open[key].calls[0].failures == ("rate", "server")


def test_the_price_of_the_first_call_holds_for_the_run() -> None:
    state, key = planning()
    dearer = PRICE.model_copy(update={"source": "a newer list"})
    for event in (call_started(key), call_failed(key), call_started(key, attempt=2, price=dearer)):
        state = apply_event(state, event)
    assert state.prices == {MODEL: PRICE}


def test_an_unknown_price_is_never_nothing() -> None:
    state, key = planning()
    state = apply_event(state, call_started(key, price=None, reserved=HELD.model_copy(update={"usd": 0.0})))
    state = apply_event(state, call_completed(key, cost_usd=None))
    assert (state.unknown_cost, state.spent_usd) == (True, 0.0)
    assert state.models[MODEL].usd is None


@pytest.mark.parametrize(
    "events",
    [
        [lambda key: call_started(key, attempt=2)],
        [lambda key: call_started(key, call=1)],
        [call_started, lambda key: call_started(key, attempt=2)],
        [call_started, call_completed, lambda key: call_started(key, attempt=2)],
        [call_started, call_failed, lambda key: call_started(key, call=1)],
        [call_completed],
        [call_started, call_completed, call_failed],
        [call_started, lambda key: call_completed(key, attempt=2)],
    ],
)
def test_what_cannot_follow_is_refused(events) -> None:
    state, key = planning()
    *legal, last = events
    for make in legal:
        state = apply_event(state, make(key))
    with pytest.raises(IllegalEvent):
        apply_event(state, last(key))


def test_calls_belong_to_an_effect_in_flight() -> None:
    state, key = planning()
    with pytest.raises(IllegalEvent, match="not in flight"):
        apply_event(state, call_started(key.replace("planner", "executor")))


def test_an_effect_that_ends_with_a_call_under_way_pays_for_it() -> None:
    state, key = planning()
    state = apply_event(apply_event(state, call_started(key)), PlanFailed(key=key, error=ERROR))
    assert (state.spent_amount, state.reserved_usd) == (HELD, 0.0)


def test_twins_share_answers_and_neither_attempts_nor_money() -> None:
    calm, key = planning()
    torn = calm
    for event in (call_started(key), call_completed(key)):
        calm = apply_event(calm, event)
    for event in (
        call_started(key),
        call_lost(key),
        call_started(key, attempt=2),
        call_completed(key, attempt=2),
    ):
        torn = apply_event(torn, event)
    assert torn.spent_usd > calm.spent_usd
    assert state_hash(torn) == state_hash(calm)
    assert dump_semantic(calm)["models"][MODEL]["answers"] == 1


def test_a_run_without_calls_hashes_as_before_there_were_any() -> None:
    state, _ = planning()
    data = dump_semantic(state)
    new = {"models", "prices", "spent_tokens", "spent_calls", "short", "warned", "device_seconds"}
    assert not new & data.keys()
    assert not {"llm", "cap_tokens", "cap_calls", "cap_seconds"} & data["config"].keys()


def test_settings_that_are_set_count_in_the_hash() -> None:
    state, _ = planning()
    other = fold.evolve(state, config=state.config.model_copy(update={"cap_calls": 5}))
    assert state_hash(other) != state_hash(state)
    assert dump_semantic(other)["config"]["cap_calls"] == 5


def test_models_are_known_by_what_came_of_their_slots() -> None:
    state: RunState | None = None
    for step in ScriptedRun(seed=4).steps():
        event = step.event
        if isinstance(event, RoundStarted):
            slots = tuple(slot.model_copy(update={"model": f"a/m{slot.slot}"}) for slot in event.slots)
            event = event.model_copy(update={"slots": slots})
        state = apply_event(state, event)
        if isinstance(event, RoundCompleted):
            attempts = event.attempts
            break
    assert state is not None
    assert sum(one.attempts for one in state.models.values()) == len(attempts)
    assert sum(one.gains for one in state.models.values()) == sum(one.gained for one in attempts)


def test_caps_that_were_too_low_and_warnings_are_remembered() -> None:
    state, _ = planning()
    state = apply_event(state, BudgetShort(resource=Resource.USD, cap=1.0, left=0.1, wanted=0.5))
    state = apply_event(state, BudgetWarned(resource=Resource.CALLS, percent=50, cap=10))
    assert (state.short, state.warned) == ({Resource.USD: 1.0}, {Resource.CALLS: 50})


# --- the log ---------------------------------------------------------------------------------------


def begin(log: EventLog) -> str:
    for step in ScriptedRun(seed=1).steps():
        log.append_now([NewEvent("r", step.event)], blobs=step.blobs)
        if isinstance(step.event, PlanStarted):
            return step.event.key
    raise AssertionError


def test_an_attempt_has_one_outcome(log: EventLog) -> None:
    key = begin(log)
    log.append_now([NewEvent("r", call_started(key))], blobs=[b"a request"])
    first = log.append_now([NewEvent("r", call_completed(key))], blobs=[b"an answer"])
    assert log.append_now([NewEvent("r", call_completed(key))]) == first
    with pytest.raises(DuplicateOutcome):
        log.append_now([NewEvent("r", call_lost(key))])
    with pytest.raises(EventRefused):
        log.append_now([NewEvent("r", call_started(key, attempt=2))])
    assert log.run_state("r").spent_calls == 1


def test_keys_tell_attempts_and_their_outcomes_apart() -> None:
    key = "r1.b0.p0.k0.f0.planner"
    events = [call_started(key), call_started(key, attempt=2), call_started(key, call=1), call_completed(key)]
    assert len({idempotency_key(event) for event in events}) == len(events)
    assert (
        idempotency_key(call_completed(key))
        == idempotency_key(call_lost(key))
        == idempotency_key(call_failed(key))
    )
    assert isinstance(PlanStarted(key=key, request=REQUEST), EffectStarted)


def test_spend_is_by_role_and_model(log: EventLog) -> None:
    key = begin(log)
    steps = (
        call_started(key),
        call_failed(key),
        call_started(key, attempt=2),
        call_completed(key, attempt=2),
    )
    for event in steps:
        log.append_now([NewEvent("r", event)])
    with LogReader.open(log.home) as reader:
        (row,) = reader.spend_rows("r")
    assert (row["role"], row["endpoint"], row["model"]) == ("planner", "anthropic", MODEL)
    assert (row["calls"], row["answered"], row["unknown"]) == (2, 1, 0)
    assert (row["input_tokens"], row["cached_tokens"], row["output_tokens"]) == (1_000, 400, 200)
    assert row["cost_usd"] == pytest.approx(log.run_state("r").spent_usd)


# --- the day ---------------------------------------------------------------------------------------

MONDAY, TUESDAY = "2026-03-02", "2026-03-03"
SMALL = Amount(usd=0.1, tokens=100, calls=1)


def days(*events) -> system.SystemState:
    state = None
    for event in events:
        state = system.apply_system_event(state, event)
    assert state is not None
    return state


def test_a_day_holds_what_is_under_way_and_counts_what_was_taken() -> None:
    state = days(
        DayReserved(day=MONDAY, call="a", amount=HELD),
        DayReserved(day=MONDAY, call="b", amount=HELD),
        DaySettled(call="a", amount=SMALL),
    )
    assert state.day is not None
    assert (state.day.spent, state.day.reserved_amount) == (SMALL, HELD)


def test_a_call_counts_on_the_day_it_was_reserved_on() -> None:
    state = days(
        DayReserved(day=MONDAY, call="late", amount=HELD),
        DayReserved(day=TUESDAY, call="new", amount=HELD),
        DaySettled(call="late", amount=SMALL),
    )
    assert state.day is not None
    assert (state.day.date, state.day.spent, state.day.reserved_amount) == (TUESDAY, Amount(), HELD)


def test_a_clock_that_goes_back_brings_no_day_back() -> None:
    state = days(
        DayReserved(day=TUESDAY, call="a", amount=HELD),
        DaySettled(call="a", amount=SMALL),
        DayReserved(day=MONDAY, call="b", amount=HELD),
    )
    assert state.day is not None
    assert (state.day.date, state.day.spent, state.day.reserved_amount) == (TUESDAY, SMALL, HELD)


def test_a_settlement_that_nobody_reserved_changes_nothing() -> None:
    assert days(DaySettled(call="gone", amount=SMALL)).day is None
    held = DayReserved(day=MONDAY, call="a", amount=HELD)
    assert days(held, DaySettled(call="gone", amount=SMALL)) == days(held)
    assert DayBudget(date=MONDAY).for_date(MONDAY) == DayBudget(date=MONDAY)


def test_breakers_are_known_until_they_close() -> None:
    opened = BreakerOpened(name="openai", error=ERROR)
    assert days(opened).breakers == {"openai": "later"}
    assert days(opened, BreakerClosed(name="openai")).breakers == {}
    assert "breakers" not in system.dump_semantic(system.SystemState())


def test_the_day_is_kept_with_the_run_s_event(log: EventLog) -> None:
    key = begin(log)
    reserved = DayReserved(day=MONDAY, call=f"r {key} 0 1", amount=HELD)
    log.append_now([NewEvent("r", call_started(key)), NewEvent(SYSTEM_STREAM, reserved)])
    day = log.system_state().day
    assert day is not None
    assert day.reserved_amount == HELD
