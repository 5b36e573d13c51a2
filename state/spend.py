"""The read model of spending: a row for each event with a cost, and each attempt at an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from state.events import AgentEnded, CallCompleted, CallFailed, CallLost, EffectEnded
from state.model import EffectKey, Tokens
from state.records import RecordedEvent

NANO = 1_000_000_000
"""Costs are summed as integers of 1e-9 USD, so that the sum does not depend on how events are grouped."""

ReadModelChange = tuple[str, tuple[Any, ...]]
"""A named statement of the read models, and its parameters."""


def effect_spend(item: RecordedEvent, event: EffectEnded) -> Iterator[ReadModelChange]:
    """Yield the cost of an effect's own outcome, if there is any."""
    usage = event.usage
    if usage.cost_usd == 0.0 and usage.input_tokens == 0 == usage.output_tokens:
        return
    unknown = usage.cost_usd is None
    cost = round((usage.cost_usd or 0.0) * NANO)
    role = EffectKey.parse(event.key).role.value
    yield "spent", (
        item.stream, item.run_seq, role, int(unknown), cost, usage.input_tokens, usage.output_tokens,
        None, None, None, 0, None,
    )  # fmt: skip


def call_spend(
    item: RecordedEvent, event: CallCompleted | CallFailed | CallLost
) -> Iterator[ReadModelChange]:
    """Yield one attempt at an answer: its cost and its result (`answered`, a kind of failure, or `lost`).

    An answer that a fork took from its parent is not an attempt.
    """
    if isinstance(event, CallCompleted) and event.reused_from is not None:
        return
    tokens = event.tokens or Tokens()
    outcome, ms = "lost", None
    if isinstance(event, CallCompleted):
        outcome, ms = "answered", event.ms
    elif isinstance(event, CallFailed):
        outcome, ms = event.kind, event.ms
    endpoint = event.model.partition("/")[0]
    cost = round((event.cost_usd or 0.0) * NANO)
    yield "spent", (
        item.stream, item.run_seq, event.role, int(event.cost_usd is None), cost, tokens.input,
        tokens.output, endpoint, event.model, outcome, tokens.cached, ms,
    )  # fmt: skip


def agent_spend(item: RecordedEvent, event: AgentEnded) -> Iterator[ReadModelChange]:
    """Yield what is charged for a coding agent at its end; what it says that it cost is its outcome's."""
    if not event.charged_usd:
        return
    role, cost = EffectKey.parse(event.key).role.value, round(event.charged_usd * NANO)
    yield "spent", (item.stream, item.run_seq, role, 1, cost, 0, 0, None, None, None, 0, None)
