"""Sessions in a run's fold: which steps of a dialogue are done, and which kernels it had judged."""

from __future__ import annotations

from state.events import (
    KernelTried,
    SessionEnded,
    SessionStarted,
    ToolCallCompleted,
    ToolCallStarted,
)
from state.model import SessionProgress, ToolStep, TriedKernel, round_seconds
from state.run_state import IllegalEvent, OpenEffect, RunState, evolve, require_live

_SessionEvent = SessionStarted | ToolCallStarted | KernelTried | ToolCallCompleted | SessionEnded


def apply_session_started(state: RunState, event: SessionStarted) -> RunState:
    """Begin a session; an effect has at most one."""
    require_live(state, event)
    effect = _require_effect(state, event)
    if effect.session is not None:
        raise IllegalEvent(f"{event.key}: a second session")
    begun = SessionProgress(role=event.role, model=event.model, turns=event.turns, by_agent=event.by_agent)
    return _with_session(state, event.key, effect, session=begun)


def apply_tool_started(state: RunState, event: ToolCallStarted) -> RunState:
    """Begin a tool call: the next one of an answered turn, or one that a crash cut off."""
    require_live(state, event)
    effect, session = _require_session(state, event)
    if not _may_call_tool(effect, session, event.turn):
        raise IllegalEvent(f"{event.key}: a tool call of turn {event.turn}, which has no answer or is over")
    done, last = session.steps, session.steps[-1] if session.steps else None
    if last is not None and last.result is None:
        if (last.turn, last.number, last.delivery) != (event.turn, event.number, event.delivery - 1):
            raise IllegalEvent(f"{event.key}: a tool call while another runs")
        done = done[:-1]
    elif event.delivery != 1 or event.number != sum(step.turn == event.turn for step in done):
        raise IllegalEvent(f"{event.key}: tool call {event.turn}.{event.number} out of order")
    step = ToolStep(turn=event.turn, number=event.number, tool=event.tool, delivery=event.delivery)
    if last is not None and last.result is None:
        step = step.model_copy(update={"tried": last.tried})
    return _with_session(
        state, event.key, effect, session=session.model_copy(update={"steps": (*done, step)})
    )


def _may_call_tool(effect: OpenEffect, session: SessionProgress, turn: int) -> bool:
    """Return whether a tool call may belong to a turn: the last, answered one; an agent's calls are turns."""
    if session.by_agent:
        cut_off = bool(session.steps) and session.steps[-1].result is None
        return turn == len(session.steps) - cut_off < session.turns
    call = effect.calls[turn] if turn < len(effect.calls) else None
    return call is not None and call.answer is not None and turn == len(effect.calls) - 1


def apply_kernel_tried(state: RunState, event: KernelTried) -> RunState:
    """Keep the verdict beside the call that asked for it, and charge the device time."""
    effect, session, step = _require_running_step(state, event)
    if step.tried is not None:
        raise IllegalEvent(f"{event.key}: tool call {event.turn}.{event.number} has a verdict already")
    made = event.evaluation
    timed = made.benchmark if made.is_correct else None
    tried = TriedKernel(
        source=event.source,
        code=made.code,
        verdict=made.verdict,
        error=made.error,
        latency_ms=timed.latency_ms if timed is not None else None,
    )
    used = event.device_seconds or 0.0
    charged = evolve(state, device_seconds=round_seconds(state.device_seconds + used)) if used else state
    return _with_step(
        charged, event.key, effect, session=session, step=step.model_copy(update={"tried": tried})
    )


def apply_tool_completed(state: RunState, event: ToolCallCompleted) -> RunState:
    """End a tool call."""
    effect, session, step = _require_running_step(state, event)
    return _with_step(
        state, event.key, effect, session=session, step=step.model_copy(update={"result": event.result})
    )


def apply_session_ended(state: RunState, event: SessionEnded) -> RunState:
    """End a session; only the effect's outcome can follow."""
    effect, session = _require_session(state, event)
    return _with_session(state, event.key, effect, session=session.model_copy(update={"ended": event.reason}))


def require_turn(effect: OpenEffect, key: str) -> None:
    """Check that a session may buy another turn: no tool call is running, and it has not ended."""
    session = effect.session
    if session is None:
        return
    if session.ended is not None or (session.steps and session.steps[-1].result is None):
        raise IllegalEvent(f"{key}: a turn of a session that has ended or still runs a tool")


def _require_effect(state: RunState, event: _SessionEvent) -> OpenEffect:
    effect = state.open.get(event.key)
    if effect is None:
        raise IllegalEvent(f"{event.key}: {event.type} of an effect that is not in flight")
    return effect


def _require_session(state: RunState, event: _SessionEvent) -> tuple[OpenEffect, SessionProgress]:
    effect = _require_effect(state, event)
    if effect.session is None or effect.session.ended is not None:
        raise IllegalEvent(f"{event.key}: {event.type} without a session")
    return effect, effect.session


def _require_running_step(
    state: RunState, event: KernelTried | ToolCallCompleted
) -> tuple[OpenEffect, SessionProgress, ToolStep]:
    effect, session = _require_session(state, event)
    step = session.steps[-1] if session.steps else None
    if step is None or step.result is not None or (step.turn, step.number) != (event.turn, event.number):
        raise IllegalEvent(f"{event.key}: tool call {event.turn}.{event.number} is not under way")
    return effect, session, step


def _with_step(
    state: RunState, key: str, effect: OpenEffect, *, session: SessionProgress, step: ToolStep
) -> RunState:
    steps = (*session.steps[:-1], step)
    return _with_session(state, key, effect, session=session.model_copy(update={"steps": steps}))


def _with_session(state: RunState, key: str, effect: OpenEffect, *, session: SessionProgress) -> RunState:
    opened = effect.model_copy(update={"session": session})
    return evolve(state, open={**state.open, key: opened})
