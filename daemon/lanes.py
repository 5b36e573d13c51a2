"""Lanes: what the supervisor holds of one run under way, its effects that may start and those in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from agent_core.effects import REQUESTS, STARTED, Decision, Effect, LookAheadRequest
from state.fold import RunState
from state.model import EffectKey, EvaluationRequest, Role, digest_of
from state.records import NewEvent


class Kind(Enum):
    """What an effect takes up: a slot of an evaluator, or one of a proposer."""

    EVALUATION = "evaluation"
    PROPOSAL = "proposal"


_SIMULATES = frozenset({EvaluationRequest, LookAheadRequest})
"""Requests whose answer is the evaluator's work, nearly all of it."""


def kind_of(role: Role) -> Kind:
    return Kind.EVALUATION if REQUESTS[role] in _SIMULATES else Kind.PROPOSAL


@dataclass(frozen=True, slots=True)
class Ready:
    """An effect that may be admitted: the request's digest, and the blobs to store with its start."""

    key: EffectKey
    request: str
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
            kind = kind_of(key.role)
            self.unjudged += kind is Kind.EVALUATION
            if len(self.ready[kind]) < most:
                self.ready[kind].append(start if isinstance(start, Ready) else _fresh(start))

    def _due(self, state: RunState, decisions: list[Decision]) -> Iterator[tuple[EffectKey, Ready | Effect]]:
        for text, effect in state.open.items():
            key = EffectKey.parse(text)
            if key not in self.flying:  # the log has it open and nobody performs it
                yield key, Ready(key, effect.request, effect.delivery + 1, effect.reserved_usd)
        for item in decisions:
            if isinstance(item, Effect):
                yield item.key, item


def _fresh(effect: Effect) -> Ready:
    request = effect.request.model_dump_json().encode()
    return Ready(effect.key, digest_of(request), blobs=(request, *effect.blobs))
