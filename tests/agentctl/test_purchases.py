"""Events of buying in words: nobody has to read fields to see what was asked, what it took and where from."""

from __future__ import annotations

import pytest

from agentctl.event_lines import describe_event
from state.events import (
    BudgetShort,
    BudgetWarned,
    CallCompleted,
    CallFailed,
    CallLost,
    CallStarted,
    DayReserved,
    DaySettled,
)
from state.model import Amount, ErrorInfo, Resource

NAMES = {"key": "r1.b0.p0.k0.f0.planner", "call": 0, "attempt": 1, "role": "planner", "model": "local/m"}
ANSWER = {"answer": "0" * 64, "answered_by": "m", "stop_reason": "stop", "ms": 1234.0}
ERROR = ErrorInfo(code="rate", message="slower")


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (
            CallStarted(**NAMES, request="0" * 64, reserved=Amount(usd=0.5, tokens=100, calls=1)),
            "question 1 of planner to local/m, holds $0.5000, 100 tokens, 1 call",
        ),
        (
            CallStarted(**NAMES | {"attempt": 2}, request="0" * 64, reserved=Amount()),
            "question 1 of planner to local/m, attempt 2, holds nothing",
        ),
        (
            CallCompleted(**NAMES, **ANSWER, cost_usd=0.01, charged_tokens=1),
            "answer 1 to planner of local/m in 1.2 s, $0.0100, 1 token",
        ),
        (
            CallCompleted(**NAMES, **ANSWER, cost_usd=None, charged_tokens=7),
            "answer 1 to planner of local/m in 1.2 s, cost unknown, 7 tokens",
        ),
        (
            CallCompleted(**NAMES, **ANSWER, cost_usd=0.0, reused_from="p@7"),
            "answer 1 to planner of local/m, taken from p@7",
        ),
        (
            CallFailed(**NAMES, kind="rate", error=ERROR, cost_usd=0.0, ms=3.0),
            "local/m: slower [rate], $0.0000, 0 tokens",
        ),
        (
            CallLost(**NAMES, cost_usd=0.5, charged_tokens=100, reason="cancelled"),
            "local/m: cancelled, $0.5000, 100 tokens",
        ),
        (
            BudgetShort(resource=Resource.USD, cap=2.0, left=0.25, wanted=0.5),
            "usd: 0.25 left of 2, 0.5 wanted",
        ),
        (BudgetWarned(resource=Resource.DAY_SECONDS, percent=80, cap=3600.0), "day_seconds: 80 % of 3600"),
        (
            DayReserved(day="2026-03-02", call="time 7", amount=Amount(seconds=60.0)),
            "time 7: 60.0 s under way",
        ),
        (
            DaySettled(call="device r k 9", amount=Amount(device_seconds=2.5)),
            "device r k 9: 2.5 s on devices",
        ),
    ],
)
def test_what_was_bought_is_told_in_words(event, told):
    assert describe_event(event) == told
