"""How much a round of models asks for: what its part of the caps pays, and each plan is carried out."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_core.decide import decide
from agent_core.effects import Effect, Record
from agent_core.spending import (
    PROBING_PLANS,
    Breadth,
    count_payable_attempts,
    fit_breadth,
    foresee_breadths,
)
from state.events import EvaluationCompleted, PlanStarted, RoundStarted
from state.fold import RunState
from state.model import EffectKey, ModelRecord, RunConfig, SlotAssignment
from state.run_state import FIRST_IMPLEMENTATIONS, FURTHER_IMPLEMENTATIONS
from tests.support.path_kernels import ROOT, Paths
from tests.support.world import World, correct_evaluation, small

MODEL = "local/m"


def model_config(**changes: Any) -> RunConfig:
    """Return the settings of a run whose models have a cap of US$ 20."""
    config = small(beam=3, plans=8, implementations=2, rounds=10, repairs=0, explorers=0)
    llm = config.llm.model_copy(update={"models": (MODEL,), "scale_to_cap": True})
    return config.model_copy(update={"planner": ("llm",), "llm": llm, "cap_usd": 20.0, **changes})


def start_world(config: RunConfig) -> World:
    """Return a world in which each kernel is faster than the one it was made from."""

    def judge(source: str):
        steps = [int(step) for step in source.split(".")[1:]]
        return correct_evaluation(source, 10.0 * 0.9 ** len(steps) + 0.01 * sum(steps))

    return World(config, kernel=ROOT, proposer=Paths(), judge=judge)


def next_slots(state: RunState) -> tuple[SlotAssignment, ...]:
    """Return the slots of the round that a run would start now."""
    (record,) = decide(state)
    assert isinstance(record, Record)
    (started,) = record.events
    assert isinstance(started, RoundStarted)
    return started.slots


def pay(state: RunState, usd: float, attempts: int) -> RunState:
    """Return the state of a run that has spent so much for so many attempts, and gained nothing."""
    models = {MODEL: ModelRecord(attempts=attempts, usd=usd)} if attempts else {}
    return state.model_copy(update={"spent_usd": usd, "models": models, "best": state.initial})


def between_rounds(config: RunConfig) -> RunState:
    """Return a state after the first round, with a full beam."""
    world = start_world(config)
    world.finish(until=lambda state: state.round == 1 and not state.in_round)
    assert len(world.state.beam) == 3
    return world.state


def plans_of(state: RunState) -> list[tuple[int, int]]:
    return [(slot.plans, slot.implementations) for slot in next_slots(state)]


def test_a_round_asks_for_what_its_part_of_the_cap_pays():
    state = between_rounds(model_config())
    assert plans_of(pay(state, 0.1, 10)) == [(8, 2)] * 3, "all is paid for"
    assert plans_of(pay(state, 2.0, 5)) == [(5, 1)] * 3, (
        "$18 are left, a third is for this round: 15 attempts"
    )
    assert plans_of(pay(state, 2.0, 2)) == [(3, 1), (3, 1), (0, 1)], "6 attempts"
    assert plans_of(pay(state, 19.9, 4)) == [(1, 1), (0, 1), (0, 1)], "one plan is always asked for"


def test_tokens_and_calls_are_caps_too():
    state = between_rounds(model_config(cap_usd=0.0, cap_tokens=100_000))
    spent = pay(state, 0.0, 4).model_copy(update={"spent_tokens": 40_000})
    assert sum(plans for plans, _ in plans_of(spent)) == 2, "20,000 tokens of 60,000, at 10,000 each"
    assert sum(plans for plans, _ in plans_of(spent.model_copy(update={"spent_tokens": 400}))) == 24


def test_less_is_spent_near_the_bound_and_all_of_it_in_the_last_round():
    state = pay(between_rounds(model_config()), 2.0, 5)
    assert state.best is not None
    near = state.model_copy(
        update={"best": state.best.model_copy(update={"benchmark": correct_evaluation("", 0.02).benchmark})}
    )
    assert count_payable_attempts(near, near.config) < count_payable_attempts(state, state.config)
    last = state.model_copy(update={"round": state.config.search.rounds - 1})
    assert count_payable_attempts(last, last.config) == pytest.approx(0.8 * 18.0 / 0.4)


@pytest.mark.parametrize(
    "changes",
    [
        {"cap_usd": 0.0},
        {"planner": ("scripted",)},
        {"llm": model_config().llm.model_copy(update={"scale_to_cap": False})},
    ],
)
def test_runs_without_caps_models_or_the_setting_ask_for_all(changes):
    world = start_world(model_config(**changes))
    world.finish(until=lambda state: state.initial is not None and state.round == 0 and not state.open)
    assert plans_of(world.state) == [(8, 2)]


def test_the_first_round_carries_out_each_plan_before_the_next_is_bought():
    world = start_world(model_config()).finish(until=lambda state: state.selected)
    done: set[str] = set()
    started = []
    for event in world.events:
        if isinstance(event, EvaluationCompleted):
            done.add(EffectKey.parse(event.key).candidate_id)
        elif isinstance(event, PlanStarted):
            key = EffectKey.parse(event.key)
            before = [key._replace(plan=number).candidate_id for number in range(key.plan)]
            assert set(before) <= done
            started.append(key.plan)
    assert started == [0, 1, 2]


def test_the_first_round_buys_no_plan_that_could_not_be_carried_out():
    def is_second_due(state: RunState) -> bool:
        first = EffectKey.parse("r1.b0.p0.k0.f0.evaluator")
        return str(first) in state.outcomes

    def asked(usd: float) -> list[str]:
        return [str(one.key) for one in decide(pay(state, usd, 0)) if isinstance(one, Effect)]

    state = start_world(model_config()).finish(until=is_second_due).state
    assert asked(9.0) == ["r1.b0.p1.k0.f0.planner"]
    assert asked(11.0) == ["r1.b0.p0.k0.f0.verifier"], "another plan would cost $11 of $9: the round closes"


breadths = st.builds(Breadth, st.integers(1, 8), st.integers(1, 16), st.integers(1, 4))


@given(breadths, st.floats(0, 700))
def test_a_round_never_asks_for_more_than_is_wanted_or_paid(wanted, payable):
    found = fit_breadth(wanted, payable)
    assert all(1 <= mine <= theirs for mine, theirs in zip(found, wanted, strict=True))
    assert found.attempts <= max(1.0, payable)
    assert wanted.attempts > payable or found == wanted


def roles(second_gain: float, seconds: int = 10) -> dict[str, ModelRecord]:
    """Return the records of a run whose plans cost US$ 0.3 and gained 5 % each, an implementation 0.1."""
    first = ModelRecord(attempts=20, log_gain=1.0)
    return {
        f"planner {MODEL}": ModelRecord(answers=20, attempts=20, usd=6.0),
        f"executor {MODEL}": ModelRecord(answers=30, attempts=20 + seconds, usd=0.1 * (20 + seconds)),
        FIRST_IMPLEMENTATIONS: first,
        FURTHER_IMPLEMENTATIONS: ModelRecord(attempts=seconds, log_gain=second_gain * seconds),
    }


def test_plans_go_first_where_second_implementations_bring_more_for_what_they_cost():
    """A plan with its implementation costs four times as much as a second implementation."""
    state = pay(between_rounds(model_config()), 2.0, 7)  # 21 attempts are paid
    assert plans_of(state.model_copy(update={"roles": roles(0.02)})) == [(3, 2)] * 3
    assert plans_of(state.model_copy(update={"roles": roles(0.005)})) == [(7, 1)] * 3
    assert plans_of(state.model_copy(update={"roles": roles(0.02, seconds=7)})) == [(7, 1)] * 3, (
        "too few second implementations to judge by"
    )


def test_without_a_price_roles_are_compared_by_tokens():
    known = roles(0.02)
    for name, tokens in ((f"planner {MODEL}", 1_000), (f"executor {MODEL}", 60_000)):
        known[name] = known[name].model_copy(update={"usd": None, "tokens": tokens})
    state = pay(between_rounds(model_config()), 2.0, 7)
    assert plans_of(state.model_copy(update={"roles": known})) == [(7, 1)] * 3


def test_a_run_records_what_implementations_brought():
    world = start_world(model_config())
    world.finish(until=lambda state: state.round == 2 and not state.in_round)
    found = world.state.roles
    first, further = found[FIRST_IMPLEMENTATIONS], found[FURTHER_IMPLEMENTATIONS]
    assert first.attempts > 0
    assert further.attempts > 0
    assert first.log_gain > 0
    total = sum(log(one.speedup) for one in world.state.attempts if one.gained and one.speedup)
    assert first.log_gain + further.log_gain <= total + 1e-6


@given(breadths, st.floats(0, 700), st.floats(0, 700))
def test_what_goes_first_are_second_implementations_then_plans_then_kernels(wanted, one, other):
    found = fit_breadth(wanted, one)
    if found.plans < wanted.plans:
        assert found.implementations == 1
    if found.kernels < wanted.kernels:
        assert found.plans <= 3


@given(cap=st.floats(0.01, 1000), plan=st.floats(0.01, 10), attempt=st.floats(0.01, 10))
def test_what_is_foreseen_stays_within_the_cap_and_within_the_settings(cap, plan, attempt):
    config = model_config(cap_usd=cap)
    search, found = config.search, foresee_breadths(config, plan_usd=plan, attempt_usd=attempt)
    assert bool(found) == (cap >= plan + attempt)
    assert len(found) <= search.rounds
    assert all(one.kernels <= search.beam and one.plans <= search.plans for one in found)
    spent = sum(one.kernels * one.plans * plan + one.attempts * attempt for one in found)
    assert spent <= cap * (1 + 1e-9)


def test_a_large_cap_pays_for_what_the_settings_want():
    first, *later = foresee_breadths(model_config(cap_usd=1e9), plan_usd=0.1, attempt_usd=0.1)
    assert first == Breadth(1, PROBING_PLANS, 1)
    assert set(later) == {Breadth(3, 8, 2)}


@pytest.mark.parametrize("attempt", [0.02, 0.1, 0.5])
def test_what_is_foreseen_is_what_a_run_asks_for_that_gains_nothing(attempt):
    config = model_config()
    state = between_rounds(config)
    foreseen = foresee_breadths(config, plan_usd=0.0, attempt_usd=attempt)
    spent = foreseen[0].attempts
    asked = [slot for slot in next_slots(pay(state, spent * attempt, spent)) if slot.plans]
    assert foreseen[1] == Breadth(len(asked), asked[0].plans, asked[0].implementations)
