"""Approval points: where a run waits for a person, as its configuration says.

The next step is decided first. If it lies beyond a point that nobody has approved yet, the run pauses instead
and says what it waits for. An approval covers all points that the run waits at. Then the step is decided
anew, so settings that were changed meanwhile count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent_core.effects import Decision, Record
from state.events import Event, RoundStarted, RunCompleted, RunPaused
from state.fold import RunState
from state.model import StopReason

FAILURE_REASONS = frozenset({StopReason.INITIAL_REJECTED, StopReason.INFRASTRUCTURE, StopReason.NO_PROPOSALS})
"""Endings that a person could not have prevented."""


def pause_for_approval(state: RunState, decisions: Sequence[Decision]) -> list[Decision]:
    """Return `decisions`, or the pause that must come before them."""
    for decision in decisions:
        if isinstance(decision, Record):
            points = tuple(_pending_points(state, decision.events[-1]))
            if points:
                reason = f"needs approval: {', '.join(points)}"
                return [Record((RunPaused(reason=reason, needs_approval=points),))]
    return list(decisions)


def _pending_points(state: RunState, step: Event) -> Iterator[str]:
    """Yield the points before `step` that were not approved."""
    wanted = (state.pending_config or state.config).approval
    for kind, point in _approval_points(state, step):
        if kind in wanted and state.approved.get(kind) != point:
            yield point


def _approval_points(state: RunState, step: Event) -> Iterator[tuple[str, str]]:
    ends = isinstance(step, RunCompleted) and step.reason not in FAILURE_REASONS
    if not (ends or isinstance(step, RoundStarted)):
        return
    if state.best is not None and state.initial is not None and state.best.id != state.initial.id:
        yield "new_best", f"new_best {state.best.id}"
    if isinstance(step, RoundStarted):
        yield "before_round", f"before_round {step.round}"
    else:
        yield "completion", f"completion {state.round}"
