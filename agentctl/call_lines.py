"""Describes model calls and budgets for `agentctl tail`: what was asked, what it cost, and what was short."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentctl.formatting import format_count, format_latency, format_work_time
from state.events import (
    AgentEnded,
    AgentStarted,
    BudgetShort,
    BudgetWarned,
    CallCompleted,
    CallFailed,
    CallLost,
    CallStarted,
    DayReserved,
    DaySettled,
    Event,
    KernelTried,
    SessionEnded,
    SessionStarted,
    ToolCallCompleted,
    ToolCallStarted,
)
from state.model import Amount, EffectKey


def format_amount(of: Amount) -> str:
    """Return an amount in words, without its zero parts."""
    parts = (
        (of.usd, f"${of.usd:.4f}"),
        (of.tokens, format_count(of.tokens, "token")),
        (of.calls, format_count(of.calls, "call")),
        (of.seconds, f"{of.seconds:.1f} s under way"),
        (of.device_seconds, f"{of.device_seconds:.1f} s on devices"),
    )
    return ", ".join(text for value, text in parts if value) or "nothing"


def _describe_call_started(event: CallStarted) -> str:
    attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
    what = f"question {event.call + 1} of {event.role} to {event.model}{attempt}"
    return f"{what}, holds {format_amount(event.reserved)}"


def _describe_call_completed(event: CallCompleted) -> str:
    what = f"answer {event.call + 1} to {event.role} of {event.model}"
    if event.reused_from is not None:
        return f"{what}, taken from {event.reused_from}"
    guessed = " (estimated)" if event.tokens is not None and event.tokens.estimated else ""
    cost = _format_cost(event.cost_usd, event.charged_tokens)
    return f"{what} in {format_work_time(event.ms)}, {cost}{guessed}"


def _describe_call_failed(event: CallFailed) -> str:
    cost = _format_cost(event.cost_usd, event.charged_tokens)
    return f"{event.model}: {event.error.message} [{event.kind}], {cost}"


def _describe_call_lost(event: CallLost) -> str:
    return f"{event.model}: {event.reason}, {_format_cost(event.cost_usd, event.charged_tokens)}"


def _format_cost(usd: float | None, tokens: int) -> str:
    cost = "cost unknown" if usd is None else f"${usd:.4f}"
    return f"{cost}, {format_count(tokens, 'token')}"


def _describe_tool_completed(event: ToolCallCompleted) -> str:
    what = f"refused: {event.code}" if event.code else "answered"
    return f"{event.tool} {what} in {format_work_time(event.ms)}, turn {event.turn + 1}"


def _describe_kernel_tried(event: KernelTried) -> str:
    timed = event.evaluation.benchmark
    latency = f", {format_latency(timed)}" if timed else ""
    reused = f", as {event.cached_from} had found" if event.cached_from else ""
    return f"in turn {event.turn + 1}: {event.evaluation.verdict.value}{latency}{reused}"


def _describe_session_ended(event: SessionEnded) -> str:
    detail = f": {event.detail}" if event.detail else ""
    role = EffectKey.parse(event.key).role
    return f"{role}'s session, {event.reason.value} after {format_count(event.turns, 'turn')}{detail}"


def _describe_agent_ended(event: AgentEnded) -> str:
    cost = _format_cost(event.usage.cost_usd, event.usage.input_tokens + event.usage.output_tokens)
    cut = ", the middle of its output left out" if event.cut else ""
    status = "" if event.status is None else f", status {event.status}"
    return (
        f"{event.reason}{status}, {format_count(event.tool_calls, 'tool call')} in "
        f"{event.seconds:g} s, {cost}{cut}"
    )


CALL_DESCRIBERS: Mapping[type[Event], Callable[[Any], str]] = {
    CallStarted: _describe_call_started,
    CallCompleted: _describe_call_completed,
    CallFailed: _describe_call_failed,
    CallLost: _describe_call_lost,
    SessionStarted: lambda event: (
        f"{event.role} of {event.model}: at most {format_count(event.turns, 'turn')}, "
        f"{format_count(len(event.tools), 'tool')}"
    ),
    ToolCallStarted: lambda event: f"{event.tool}, turn {event.turn + 1}",
    ToolCallCompleted: _describe_tool_completed,
    KernelTried: _describe_kernel_tried,
    SessionEnded: _describe_session_ended,
    AgentStarted: lambda event: f"a coding agent starts, holds ${event.reserved_usd:.4f}",
    AgentEnded: _describe_agent_ended,
    BudgetShort: lambda event: (
        f"{event.resource}: {event.left:g} left of {event.cap:g}, {event.wanted:g} wanted"
    ),
    BudgetWarned: lambda event: f"{event.resource}: {event.percent} % of {event.cap:g}",
    DayReserved: lambda event: f"{event.call}: {format_amount(event.amount)}",
    DaySettled: lambda event: f"{event.call}: {format_amount(event.amount)}",
}
"""The descriptions of these event types for `agentctl.event_lines`."""
