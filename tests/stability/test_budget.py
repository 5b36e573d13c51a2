"""Budgets: what fits, what may fit later, when to warn, and when a run ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stability import budget
from stability.budget import BudgetAccount, DayCaps
from state.day_budget import BudgetHold, DayBudget
from state.fold import RunState
from state.model import Amount, Resource, RunConfig, round_usd
from tests.support.world import World

WANTED = Amount(usd=0.5, tokens=1_000, calls=1)


def state(**changes) -> RunState:
    return World().state.model_copy(update=changes)


def lacking(run: RunState, config: RunConfig, wanted: Amount = WANTED, **more) -> Resource | None:
    found = budget.find_short_account(budget.run_accounts(run, config, wanted, **more))
    return None if found is None else found.resource


@pytest.mark.parametrize(
    ("spent", "caps", "resource"),
    [
        ({}, {"cap_usd": 0.5}, None),
        ({}, {"cap_usd": 0.49}, Resource.USD),
        ({"spent_usd": 0.1}, {"cap_usd": 0.5}, Resource.USD),
        ({}, {}, Resource.USD),
        ({"spent_tokens": 1}, {"cap_usd": 9, "cap_tokens": 1_000}, Resource.TOKENS),
        ({}, {"cap_usd": 9, "cap_tokens": 1_000}, None),
        ({"spent_calls": 3}, {"cap_usd": 9, "cap_calls": 3}, Resource.CALLS),
        ({"spent_calls": 2}, {"cap_usd": 9, "cap_calls": 3}, None),
        ({"device_seconds": 5.0}, {"cap_usd": 9, "cap_device_seconds": 5}, Resource.DEVICE_SECONDS),
        ({"device_seconds": 4.9}, {"cap_usd": 9, "cap_device_seconds": 5}, None),
    ],
)
def test_a_call_fits_into_every_cap_or_not_at_all(spent, caps, resource):
    assert lacking(state(**spent), RunConfig(**caps)) is resource


def test_a_run_has_its_time_by_the_clock():
    config = RunConfig(cap_usd=9, cap_seconds=60)
    assert lacking(state(), config, age_seconds=59.9) is None
    assert lacking(state(), config, age_seconds=60) is Resource.SECONDS


def test_without_a_price_a_cap_of_nothing_stops_nobody():
    assert lacking(state(), RunConfig(), Amount(tokens=5, calls=1)) is None


def test_what_is_held_may_be_freed_and_what_is_spent_may_not():
    held = BudgetAccount(Resource.USD, cap=1.0, spent=0.2, held=0.5, wanted=0.5)
    assert not held.has_room
    assert budget.may_free_room(held)
    spent = BudgetAccount(Resource.USD, cap=1.0, spent=0.7, held=0.2, wanted=0.5)
    assert not budget.may_free_room(spent)
    assert not budget.may_free_room(BudgetAccount(Resource.SECONDS, cap=1.0, spent=2.0))
    assert budget.find_short_account([held, spent]) is spent


def test_a_day_has_caps_of_its_own():
    day = DayBudget(
        date="2026-03-02",
        spent=Amount(usd=1.0),
        held={"a": BudgetHold(date="2026-03-02", amount=Amount(usd=0.75))},
    )
    assert budget.find_short_account(budget.day_accounts(day, DayCaps(usd=2.25), WANTED)) is None
    short = budget.find_short_account(budget.day_accounts(day, DayCaps(usd=2.0), WANTED))
    assert short is not None
    assert (short.resource, budget.may_free_room(short)) == (Resource.DAY_USD, True)
    assert budget.find_short_account(budget.day_accounts(None, DayCaps(calls=1), WANTED)) is None
    assert budget.day_accounts(day, DayCaps()) == ()
    assert {
        one.resource for one in budget.day_accounts(day, DayCaps(1, 1, 1, 1, 1))
    } == budget.DAILY_RESOURCES


@given(
    cap=st.integers(0, 2_000),
    steps=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), max_size=40),
)
def test_spent_and_held_never_exceed_the_cap(cap, steps):
    """Whatever is let through, settled at what it took (at most what was held) or not settled at all."""
    config = RunConfig(cap_usd=cap / 1000)
    spent, open_ = 0.0, []
    for wanted, took in steps:
        account = BudgetAccount(Resource.USD, config.cap_usd, spent, round_usd(sum(open_)), wanted / 1000)
        if account.has_room:
            open_.append(wanted / 1000)
        elif open_:
            spent = round_usd(spent + min(took / 1000, open_.pop(0)))
        assert round_usd(spent + round_usd(sum(open_))) <= config.cap_usd


def test_marks_are_warned_of_once_and_the_highest_counts():
    config = RunConfig(cap_usd=1.0, cap_calls=10)
    run = state(spent_usd=0.55, spent_calls=9)
    found = list(budget.run_warnings(run, budget.run_accounts(run, config)))
    assert {(one.resource, one.percent) for one in found} == {(Resource.USD, 50), (Resource.CALLS, 80)}
    told = run.model_copy(update={"warned": {one.resource: one.percent for one in found}})
    assert not list(budget.run_warnings(told, budget.run_accounts(told, config)))
    more = told.model_copy(update={"spent_usd": 0.8})
    assert [one.percent for one in budget.run_warnings(more, budget.run_accounts(more, config))] == [80]
    assert not list(budget.run_warnings(state(), budget.run_accounts(state(), RunConfig())))


@pytest.mark.parametrize(
    ("changes", "caps", "told"),
    [
        ({}, {}, None),
        ({"short": {Resource.USD: 1.0}, "spent_usd": 0.75}, {"cap_usd": 1.0}, "another call: spent $0.75"),
        ({"short": {Resource.USD: 1.0}, "spent_usd": 0.75}, {"cap_usd": 2.0}, None),
        ({"spent_usd": 2.0}, {"cap_usd": 2.0}, "spent $2.00 of"),
        ({"spent_calls": 5}, {"cap_calls": 5}, "5 of 5 calls"),
        ({"spent_tokens": 50}, {"cap_tokens": 40}, "50 of 40 tokens"),
        ({"device_seconds": 9.0}, {"cap_device_seconds": 9}, "devices were used for 9 of 9 s"),
        ({"short": {Resource.SECONDS: 60.0}}, {"cap_seconds": 60}, "the run has had its 60 s"),
        ({"short": {Resource.SECONDS: 60.0}}, {"cap_seconds": 90}, None),
        ({"short": {Resource.CALLS: 5.0}}, {}, None),
    ],
)  # fmt: skip
def test_a_run_ends_when_nothing_more_fits_and_goes_on_when_the_cap_is_raised(changes, caps, told):
    found = budget.find_end_reason(state(**changes), RunConfig(**caps))
    assert (found is None) == (told is None)
    assert told is None or told in found
