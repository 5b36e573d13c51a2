"""The wall-clock limit of a run: checked between two rounds and at a round's deadline, and passed to `decide`
as an event.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from agent_core.effects import Record
from agent_core.stop import is_time_over
from daemon.deadlines import PassedLimit
from stability import budget
from state.events import BudgetShort, Event, RoundDeadlinePassed, RoundStarted
from state.fold import RunState
from state.log import EventLog
from state.model import Resource


def run_age_seconds(event_log: EventLog, run: str, now: float) -> float:
    """Return how many seconds ago a run began, by the log's clock and `now` (UNIX seconds)."""
    return max(0.0, now - event_log.run_began_us(run) / 1e6)


def check_time_cap(
    event_log: EventLog, run: str, state: RunState, decided: Iterable[Event]
) -> BudgetShort | None:
    """Return the event to store instead of a next round, if the run has used up its time."""
    config = state.pending_config or state.config
    if config.cap_seconds is None or not any(isinstance(event, RoundStarted) for event in decided):
        return None
    if is_time_over(state, config):  # the round is for kernels that were judged too late
        return None
    age = run_age_seconds(event_log, run, time.time())
    short = budget.find_short_account(budget.run_accounts(state, config, age_seconds=age))
    return short.make_shortage_event() if short is not None and short.resource is Resource.SECONDS else None


def close_round(state: RunState, passed: PassedLimit) -> Record:
    """Return the record that closes the state's round, whose limit `passed`.

    If it is the run's limit, its time is recorded as used up. What is left only secures what the run has.
    """
    closed = RoundDeadlinePassed(round=state.round)
    cap = (state.pending_config or state.config).cap_seconds
    if passed == "round" or cap is None:
        return Record((closed,))
    return Record((closed, budget.BudgetAccount(Resource.SECONDS, cap, spent=cap).make_shortage_event()))
