"""Events that keep runs going under faults: circuit breakers, and what came of effects that were cut off."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from state.events.base import Event
from state.model import Digest, ErrorInfo, Key, ModelTraits


class BreakerOpened(Event):
    family = "safety"
    type: Literal["BreakerOpened"] = "BreakerOpened"
    name: str
    error: ErrorInfo


class BreakerClosed(Event):
    family = "safety"
    type: Literal["BreakerClosed"] = "BreakerClosed"
    name: str


class ModelTraitsLearnt(Event):
    """In the system stream: what a model (ENDPOINT/MODEL) does not take, or how slow it is, was found out.

    It holds for the address `address`. `traits` is all that is known, and replaces what was; `day` is the UTC
    date, YYYY-MM-DD.
    """

    family = "safety"
    type: Literal["ModelTraitsLearnt"] = "ModelTraitsLearnt"
    model: str
    address: str
    day: str
    traits: ModelTraits


class EffectProgressed(Event):
    """A part of a long effect of `run` is done, so that another delivery goes on from there.

    It is in the system stream: how often an effect was cut off is of this machine, and must change neither
    the events of a run nor its state. `part` counts from 1 over all deliveries. `answers` is the blob of what
    is done, as JSON by what was asked; None if that is kept in the cache. `count` is their number; 0 says
    only that the work of a delivery has begun.
    """

    family = "safety"
    type: Literal["EffectProgressed"] = "EffectProgressed"
    run: str
    key: Key
    part: int = Field(ge=1)
    answers: Digest | None = None
    count: int = Field(default=0, ge=0)


class EffectPoisoned(Event):
    """An effect was delivered `deliveries` times without progress; it is not delivered again.

    Its outcome, in the same append, is a failure with the code `poisoned`.
    """

    family = "safety"
    type: Literal["EffectPoisoned"] = "EffectPoisoned"
    key: Key
    deliveries: int = Field(ge=1)
