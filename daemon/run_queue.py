"""The effects of one run under way: those that may start, and those in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from agent_core.effects import (
    STARTED,
    Decision,
    Effect,
    LookAheadRequest,
    SimplifyRequest,
    TranslateRequest,
    request_type,
)
from agent_core.ensemble import planner_of
from agent_core.proposers import is_built_per_effect
from state.fold import RunState
from state.model import EffectKey, EvaluationRequest, digest_of
from state.records import NewEvent
from state.run_state import OpenEffect


class EffectKind(Enum):
    """The resource that an effect uses: an evaluation slot, a proposal slot, or only an LLM call."""

    EVALUATION = "evaluation"
    PROPOSAL = "proposal"
    CALL = "call"


_SIMULATED_REQUESTS = frozenset({EvaluationRequest, LookAheadRequest, SimplifyRequest, TranslateRequest})
"""Requests that are almost entirely work of the evaluator."""


def effect_kind(state: RunState, key: EffectKey) -> EffectKind:
    """Return which resource an effect of a run uses."""
    if request_type(key) in _SIMULATED_REQUESTS:
        return EffectKind.EVALUATION
    return EffectKind.CALL if is_built_per_effect(planner_of(state, key)) else EffectKind.PROPOSAL


@dataclass(frozen=True, slots=True)
class ReadyEffect:
    """An effect that may be admitted: the digest of its request, and the blobs to store when it starts."""

    key: EffectKey
    request: str
    kind: EffectKind
    delivery: int = 1
    reserved_usd: float = 0.0
    blobs: tuple[bytes, ...] = ()

    def start_event(self, run: str) -> NewEvent:
        event = STARTED[self.key.role](
            key=str(self.key), request=self.request, delivery=self.delivery, reserved_usd=self.reserved_usd
        )
        return NewEvent(run, event)


@dataclass(frozen=True, slots=True)
class InFlightEffect:
    """An effect in flight since `since` (event loop time, seconds); `charge` is what its run was charged
    for it.
    """

    task: asyncio.Task[None]
    kind: EffectKind
    charge: float
    since: float


@dataclass(slots=True)
class RunQueue:
    """One run under way: its ready effects, and the `run_seq` (`seen`) at which they were derived.

    `unjudged` is how many evaluations are due in all.
    """

    seen: int = 0
    ready: dict[EffectKind, deque[ReadyEffect]] = field(
        default_factory=lambda: {kind: deque() for kind in EffectKind}
    )
    flying: dict[EffectKey, InFlightEffect] = field(default_factory=dict)
    unjudged: int = 0

    @property
    def is_idle(self) -> bool:
        return not (self.flying or any(self.ready.values()))

    def clear(self) -> None:
        self.unjudged = 0
        for queue in self.ready.values():
            queue.clear()

    def fill(self, state: RunState, decisions: list[Decision], *, most: int) -> None:
        """Take the effects that may start: first lost ones, as logged, then the decided ones, in key
        order.

        Hold at most `most` of each kind; the rest is derived again when these have ended.
        """
        for key, start in self._due_effects(state, decisions):
            kind = effect_kind(state, key)
            self.unjudged += kind is EffectKind.EVALUATION
            if len(self.ready[kind]) < most:
                self.ready[kind].append(_make_ready(key, start, kind))

    def _due_effects(
        self, state: RunState, decisions: list[Decision]
    ) -> Iterator[tuple[EffectKey, OpenEffect | Effect]]:
        for text, effect in state.open.items():
            key = EffectKey.parse(text)
            if key not in self.flying:  # open in the log, but nobody performs it
                yield key, effect
        for item in decisions:
            if isinstance(item, Effect):
                yield item.key, item


def _make_ready(key: EffectKey, effect: OpenEffect | Effect, kind: EffectKind) -> ReadyEffect:
    if isinstance(effect, OpenEffect):
        return ReadyEffect(key, effect.request, kind, effect.delivery + 1, effect.reserved_usd)
    request = effect.request.model_dump_json().encode()
    return ReadyEffect(key, digest_of(request), kind, blobs=(request, *effect.blobs))
