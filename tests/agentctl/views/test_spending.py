"""What a run cost and where its time went: parts add up to the wall clock, whatever happened at once."""

from __future__ import annotations

import pytest

from agentctl.views.spending import (
    COMPILE,
    EXECUTE,
    IDLE,
    KINDS,
    MODELS,
    PAUSED,
    PROPOSING,
    _TimeSplit,
    load_spending,
)
from state.events import (
    CallCompleted,
    CallLost,
    CallStarted,
    EvaluationCompleted,
    EvaluationStarted,
    PlanProposed,
    PlanStarted,
    RunPaused,
    RunResumed,
)
from state.model import Amount, Evaluation, Plan, Prediction, Verdict
from state.reader import LogReader
from state.records import RecordedEvent

SECOND = 1_000_000
DIGEST = "0" * 64
PLAN_KEY, OTHER_KEY = "r1.b0.p0.k0.f0.planner", "r1.b0.p1.k0.f0.planner"
JUDGED = "r1.b0.p0.k0.f0.evaluator"
ANSWER = {"cost_usd": 0.1, "answer": DIGEST, "answered_by": "x", "stop_reason": "end", "ms": 4000}
ASKED = {"key": PLAN_KEY, "call": 0, "attempt": 1, "role": "planner", "model": "local/some"}


def at(second: float, event) -> RecordedEvent:
    return RecordedEvent(1, "run", 1, int(second * SECOND) + SECOND, event, None, "", None)


def split(*items: RecordedEvent) -> dict[str, float]:
    clock = _TimeSplit()
    for item in items:
        clock.add_event(item)
    found = clock.split_seconds()
    assert sum(found.values()) == pytest.approx(clock.total_seconds)
    return {name: seconds for name, seconds in found.items() if seconds}


def planned() -> PlanProposed:
    plan = Plan(technique="t", site="s", title="x", prediction=Prediction(speedup=1.1))
    return PlanProposed(key=PLAN_KEY, plan=plan)


def judged(**stage_ms: float) -> EvaluationCompleted:
    said = Evaluation(
        verdict=Verdict.INCORRECT, stage="numerics", code=DIGEST, target="trn2", toolchain="fake"
    )
    return EvaluationCompleted(key=JUDGED, evaluation=said, cache_key=DIGEST, stage_ms=stage_ms)


def test_an_evaluation_compiles_first_and_then_executes():
    began = at(0, EvaluationStarted(key=JUDGED, request=DIGEST))
    found = split(began, at(10, judged(jail=300.0, numerics=700.0)))
    assert found == pytest.approx({COMPILE: 3.0, EXECUTE: 7.0})


def test_what_goes_on_at_once_shares_the_time():
    found = split(
        at(0, PlanStarted(key=PLAN_KEY, request=DIGEST)),
        at(2, EvaluationStarted(key=JUDGED, request=DIGEST)),
        at(6, planned()),
        at(8, judged()),
    )
    assert found == pytest.approx({PROPOSING: 4.0, EXECUTE: 4.0})


def test_a_planner_that_asks_spends_the_time_of_its_questions_alone():
    found = split(
        at(0, PlanStarted(key=PLAN_KEY, request=DIGEST)),
        at(1, CallStarted(**ASKED, request=DIGEST, reserved=Amount())),
        at(
            5,
            CallCompleted(**ASKED, **ANSWER),
        ),
        at(7, planned()),
    )
    assert found == pytest.approx({MODELS: 4.0, IDLE: 3.0})


def test_a_question_lost_in_a_crash_took_nobody_knows_how_long():
    found = split(
        at(0, PlanStarted(key=PLAN_KEY, request=DIGEST)),
        at(1, CallStarted(**ASKED, request=DIGEST, reserved=Amount())),
        at(100, CallLost(**ASKED, cost_usd=0.1, reason="crash")),
    )
    assert MODELS not in found


def test_an_effect_started_again_was_lost_at_the_last_event_before():
    found = split(
        at(0, EvaluationStarted(key=JUDGED, request=DIGEST)),
        at(2, PlanStarted(key=OTHER_KEY, request=DIGEST)),
        at(100, EvaluationStarted(key=JUDGED, request=DIGEST, delivery=2)),
        at(103, judged()),
    )
    assert found[EXECUTE] == pytest.approx(2 + 3 / 2)


def test_a_pause_is_one_only_while_nothing_goes_on():
    found = split(
        at(0, RunPaused(reason="asked for")),
        at(1, EvaluationStarted(key=JUDGED, request=DIGEST)),
        at(3, judged()),
        at(9, RunResumed()),
        at(10, RunPaused(reason="asked for")),
        at(11, planned()),
    )
    assert found == pytest.approx({PAUSED: 8.0, EXECUTE: 2.0, IDLE: 1.0})


def test_a_clock_that_was_set_back_makes_no_time_negative():
    found = split(
        at(10, EvaluationStarted(key=JUDGED, request=DIGEST)), at(4, judged()), at(12, RunPaused(reason="x"))
    )
    assert found == pytest.approx({IDLE: 2.0})


def test_a_run_that_asked_nobody_cost_nothing(home, finished):
    with LogReader.open(home) as reader:
        found = load_spending(reader, finished)
    assert (found.usd, found.calls, found.tokens, found.curve) == (0.0, 0, 0, ())
    assert set(found.split) == set(KINDS)
    assert sum(found.split.values()) == pytest.approx(found.seconds)
    assert found.stage_seconds["numerics"] > 0
