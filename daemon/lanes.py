"""Lanes: what the supervisor holds of one run under way, its effects that may start and those in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from agent_core.effects import REQUESTS, STARTED, Decision, Effect, LookAheadRequest
from agent_core.ensemble import planner_of
from agent_core.proposers import asks_models
from state.fold import RunState
from state.model import EffectKey, EvaluationRequest, digest_of
from state.records import NewEvent
from state.run import OpenEffect


class Kind(Enum):
    """What an effect takes up: a slot of an evaluator, one of a proposer, or nothing here: a model works."""

    EVALUATION = "evaluation"
    PROPOSAL = "proposal"
    CALL = "call"


_SIMULATES = frozenset({EvaluationRequest, LookAheadRequest})
"""Requests whose answer is the evaluator's work, nearly all of it."""


def kind_of(state: RunState, key: EffectKey) -> Kind:
    """Return what an effect of a run takes up."""
    if REQUESTS[key.role] in _SIMULATES:
        return Kind.EVALUATION
    return Kind.CALL if asks_models(planner_of(state, key)) else Kind.PROPOSAL


@dataclass(frozen=True, slots=True)
class Ready:
    """An effect that may be admitted: the request's digest, and the blobs to store with its start."""

    key: EffectKey
    request: str
    kind: Kind
    delivery: int = 1
    reserved_usd: float = 0.0
    blobs: tuple[bytes, ...] = ()

    def started(self, run: str) -> NewEvent:
        event = STARTED[self.key.role](
            key=str(self.key), request=self.request, delivery=self.delivery, reserved_usd=self.reserved_usd
        )
        return NewEvent(run, event)


@dataclass(frozen=True, slots=True)
class Flight:
    """An effect that is being performed since the loop's time `since`; its run was charged for it."""

    task: asyncio.Task[None]
    kind: Kind
    charge: float
    since: float


@dataclass(slots=True)
class Lane:
    """One run under way: the `run_seq` that its ready effects were derived at, and those effects.

    `unjudged` is how many evaluations are due in all.
    """

    seen: int = 0
    ready: dict[Kind, deque[Ready]] = field(default_factory=lambda: {kind: deque() for kind in Kind})
    flying: dict[EffectKey, Flight] = field(default_factory=dict)
    unjudged: int = 0

    @property
    def idle(self) -> bool:
        return not (self.flying or any(self.ready.values()))

    def clear(self) -> None:
        self.unjudged = 0
        for queue in self.ready.values():
            queue.clear()

    def fill(self, state: RunState, decisions: list[Decision], *, most: int) -> None:
        """Take what may start: effects that were lost, as logged, then those decided, in key order.

        Of each kind at most `most` are held; the rest is derived anew when these have ended.
        """
        for key, start in self._due(state, decisions):
            kind = kind_of(state, key)
            self.unjudged += kind is Kind.EVALUATION
            if len(self.ready[kind]) < most:
                self.ready[kind].append(_ready(key, start, kind))

    def _due(
        self, state: RunState, decisions: list[Decision]
    ) -> Iterator[tuple[EffectKey, OpenEffect | Effect]]:
        for text, effect in state.open.items():
            key = EffectKey.parse(text)
            if key not in self.flying:  # the log has it open and nobody performs it
                yield key, effect
        for item in decisions:
            if isinstance(item, Effect):
                yield item.key, item


def _ready(key: EffectKey, effect: OpenEffect | Effect, kind: Kind) -> Ready:
    if isinstance(effect, OpenEffect):
        return Ready(key, effect.request, kind, effect.delivery + 1, effect.reserved_usd)
    request = effect.request.model_dump_json().encode()
    return Ready(key, digest_of(request), kind, blobs=(request, *effect.blobs))
