"""Looking ahead in a run: one effect per slot before its plans, none of it judged, all of it repeatable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent_core import proposers
from agent_core.effects import LookAheadRequest, PlanRequest, Variants
from state.events import (
    EvaluationStarted,
    PlanProposed,
    PlanStarted,
    PredictionBatch,
    PredictionStarted,
    RoundCompleted,
    RoundStarted,
)
from state.model import ErrorInfo, Plan, Prediction, RewriteStep
from tests.support.world import Faults, World, small


@pytest.fixture(autouse=True)
def scripted_looks_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = replace(proposers._NEUTRAL["scripted"], looks_ahead=True)
    monkeypatch.setitem(proposers._NEUTRAL, "scripted", entry)


def requests(world: World, kind, request):
    return [request.model_validate_json(world.blobs[event.request]) for event in world.of(kind)]


def test_each_slot_looks_ahead_once_before_its_plans():
    world = World(small(rounds=2)).finish()
    asked = requests(world, PredictionStarted, LookAheadRequest)
    slots = {(1, 0), *((2, slot) for slot in range(len(asked) - 1))}
    assert {tuple(map(int, one.key[1:].replace("b", "").split(".")[:2])) for one in asked} == slots
    order = [event.key for event in world.events if isinstance(event, PredictionBatch | PlanStarted)]
    for key in {one.key for one in asked}:
        plans = [other for other in order if other.startswith(key.partition(".p")[0]) and "planner" in other]
        assert plans
        assert all(order.index(key) < order.index(other) for other in plans)


def test_the_plans_are_what_was_found_and_only_they_are_judged():
    world = World(small(rounds=1, implementations=1, repairs=0)).finish()
    (batch,) = world.of(PredictionBatch)
    seen = Variants.model_validate_json(world.blobs[batch.variants])
    assert batch.count == len(seen.found) == 2
    assert batch.predicted > batch.count
    plans = [event.plan for event in world.of(PlanProposed)]
    assert [plan.steps for plan in plans] == [variant.steps for variant in seen.found]
    assert {request.variants for request in requests(world, PlanStarted, PlanRequest)} == {batch.variants}
    judged = [event for event in world.of(EvaluationStarted) if event.key.endswith("evaluator")]
    assert len(judged) < batch.predicted
    assert world.state.tally.predicted == batch.predicted
    assert world.state.tally.evaluated == len(judged)


@pytest.mark.parametrize(("predictions", "implementations"), [(8, 1), (0, 2)])
def test_a_plan_that_was_found_has_one_implementation(predictions, implementations):
    world = World(small(rounds=2, implementations=2, repairs=0, lookahead_predictions=predictions)).finish()
    slots = [slot for event in world.of(RoundStarted) for slot in event.slots]
    assert slots
    assert {slot.implementations for slot in slots} == {implementations}


def test_what_was_judged_before_is_told_to_who_looks_ahead():
    world = World(small(rounds=2)).finish()
    first, *later = requests(world, PredictionStarted, LookAheadRequest)
    codes = {attempt.code for event in world.of(RoundCompleted)[:1] for attempt in event.attempts}
    assert first.known == (world.state.initial.code,)
    assert codes - {None} <= set(later[0].known)
    assert len({request.draw for request in (first, *later)}) == 1 + len(later)


def test_a_run_without_predictions_does_not_look_ahead():
    world = World(small(rounds=2, lookahead_predictions=0)).finish()
    assert world.of(PredictionStarted) == []
    assert {request.variants for request in requests(world, PlanStarted, PlanRequest)} == {None}


def test_who_looks_ahead_in_vain_plans_as_before():
    class Blind:
        def __getattr__(self, name):
            return getattr(world_proposer, name)

        async def look_ahead(self, request, read, predict):
            from agent_core.roles import RoleError

            raise RoleError(ErrorInfo(code="host_lost", message="gone"))

    world_proposer = World(small()).proposer
    world = World(small(rounds=1), proposer=Blind()).finish()
    (batch,) = world.of(PredictionBatch)
    assert batch.error.code == "host_lost"
    assert {request.variants for request in requests(world, PlanStarted, PlanRequest)} == {None}
    assert world.of(RoundCompleted)


@pytest.mark.parametrize("order", range(4))
def test_orders_crashes_and_repeats_change_nothing(order):
    config = small(rounds=2)
    plain = World(config).finish()
    troubled = World(config, order=order, faults=Faults(crash=0.2, repeat=0.2)).finish()
    assert troubled.fingerprint == plain.fingerprint


def test_a_fork_while_looking_ahead_looks_again():
    world = World(small(rounds=1)).finish()
    at = 1 + next(n for n, event in enumerate(world.events) if isinstance(event, PredictionStarted))
    child = world.fork(at).finish()
    assert child.fingerprint[1] == world.fingerprint[1]


def sequence(**speedups: float) -> Plan:
    steps = tuple(
        RewriteStep(technique=name.rstrip("_"), site="here", title=name, speedup=speedup)
        for name, speedup in speedups.items()
    )
    return Plan(technique="x", site="", title="", prediction=Prediction(speedup=1.0), steps=steps)


@pytest.mark.parametrize(
    ("plan", "shares"),
    [
        (sequence(a=2.0, b=4.0), {"a": 1 / 3, "b": 2 / 3}),
        (sequence(a=2.0, b=0.9, a_=2.0), {"a": 1.0, "b": 0.0}),
        (sequence(a=1.0, b=0.9), {"a": 0.5, "b": 0.5}),
        (sequence(), {"x": 1.0}),
    ],
)
def test_each_technique_of_a_sequence_has_its_share(plan, shares):
    assert plan.technique_shares == pytest.approx(shares, abs=1e-8)


def test_credit_goes_to_techniques_by_their_shares():
    world = World(small(rounds=1)).finish()
    (completed,) = world.of(RoundCompleted)
    assert all(sum(attempt.shares.values()) == pytest.approx(1) for attempt in completed.attempts)
    assert set(completed.credits) == {name for attempt in completed.attempts for name in attempt.shares}
