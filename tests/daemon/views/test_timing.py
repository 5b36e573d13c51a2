"""Where time goes, by events with known times: what overlaps is counted once, what waits is not work."""

from __future__ import annotations

import pytest

from daemon.views.timing import COMPILE, EXECUTE, IDLE, LLM, PROPOSE, timing, together
from state.events import (
    CallCompleted,
    CallStarted,
    EvaluationCompleted,
    EvaluationStarted,
    Event,
    PlanFailed,
    PlanStarted,
    RunCompleted,
)
from state.log import EventLog
from state.model import Amount, ErrorInfo, Evaluation, StopReason, Verdict
from state.reader import LogReader
from state.records import NewEvent
from tests.daemon import fakes

BLOB = b"a request"
SECOND_US = 1_000_000


@pytest.fixture
def told(home):
    """Tell of events at seconds after a run began; give where its time went."""
    run = fakes.submit(home)
    fakes.take_commands(home)

    def tell(*events: tuple[float, Event]):
        with EventLog.open(home) as log:
            with LogReader.open(home) as reader:
                began = reader.read(stream=run)[0].ts_us
            for at, event in events:
                log.append_now([NewEvent(run, event, at_us=began + round(at * SECOND_US))], blobs=[BLOB])
        with LogReader.open(home) as reader:
            return timing(reader, run)

    return tell


def shares(found) -> dict[str, tuple[float, float]]:
    return {part.kind: (part.seconds, part.percent) for part in found.parts}


def digest() -> str:
    from state.model import digest_of

    return digest_of(BLOB)


def judged(key: str) -> EvaluationCompleted:
    said = Evaluation(
        verdict=Verdict.INCORRECT, stage="numerics", code=digest(), target="trn2", toolchain="t",
        error=ErrorInfo(code="x", message="y"),
    )  # fmt: skip
    return EvaluationCompleted(
        key=key, evaluation=said, cache_key=digest(), stage_ms={"jail": 1000.0, "numerics": 2000.0}
    )


FIRST = "r0.b0.p0.k0.f0.evaluator"


def test_an_evaluation_waits_compiles_and_executes(told):
    found = told(
        (0.0, EvaluationStarted(key=FIRST, request=digest())),
        (10.0, judged(FIRST)),
        (20.0, RunCompleted(reason=StopReason.INITIAL_REJECTED)),
    )
    assert found.elapsed_seconds == 20
    spent = shares(found)
    assert spent[COMPILE] == (1.0, 5.0)
    assert spent[EXECUTE] == (2.0, 10.0)
    assert spent[IDLE] == (17.0, 85.0)
    assert spent[LLM] == spent[PROPOSE] == (0.0, 0.0)


def test_the_sum_of_runs_is_weighted_by_their_time(told):
    one = told((0.0, EvaluationStarted(key=FIRST, request=digest())), (4.0, judged(FIRST)))
    both = together([one, one])
    assert both.elapsed_seconds == 2 * one.elapsed_seconds
    assert shares(both)[EXECUTE] == (4.0, 50.0)
    assert together([]).parts[0].percent is None


def test_calls_are_waited_for_and_make_no_planning_of_ours():
    from daemon.views.timing import _Clock
    from state.records import Recorded

    plan = "r1.b0.p0.k0.f0.planner"
    other = "r1.b0.p1.k0.f0.planner"
    common = {"key": plan, "call": 0, "attempt": 1, "role": "planner", "model": "x/y"}
    error = ErrorInfo(code="none", message="nothing")
    events = [
        (0, PlanStarted(key=plan, request=digest())),
        (1, CallStarted(**common, request=digest(), reserved=Amount())),
        (1, PlanStarted(key=other, request=digest())),
        (4, PlanFailed(key=other, error=error)),
        (
            7,
            CallCompleted(
                **common, cost_usd=0.0, answer=digest(), answered_by="y", stop_reason="end", ms=6000.0
            ),
        ),
        (8, PlanFailed(key=plan, error=error)),
    ]
    clock = _Clock()
    for number, (at, event) in enumerate(events, start=1):
        clock.take(Recorded(number, "run", number, SECOND_US + at * SECOND_US, event, None, "", None))
    spent = shares(clock.timing())
    assert spent[LLM] == (6.0, 75.0)
    assert spent[PROPOSE] == (3.0, 37.5)  # beside the call, and none of it the plan that asked
    assert spent[IDLE] == (2.0, 25.0)
