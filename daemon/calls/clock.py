"""The wall-clock limit of a run: checked between two rounds, and passed to `decide` as an event."""

from __future__ import annotations

import time
from collections.abc import Iterable

from stability import budget
from state.events import BudgetShort, Event, RoundStarted
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
    age = run_age_seconds(event_log, run, time.time())
    short = budget.find_short_account(budget.run_accounts(state, config, age_seconds=age))
    return short.make_shortage_event() if short is not None and short.resource is Resource.SECONDS else None
