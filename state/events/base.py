"""Base classes of events: all have a version, and events of effects also have a key."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from state.model import Digest, FrozenModel, Key, Usage


class Event(FrozenModel):
    """Base of all events. `version` is the version of the payload's shape."""

    version: ClassVar[int] = 1


class EffectStarted(Event):
    """An effect was admitted. `delivery` counts starts of the same effect; it rises after a crash."""

    key: Key
    request: Digest
    delivery: int = Field(default=1, ge=1)
    reserved_usd: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class EffectEnded(Event):
    """Base of all terminal outcomes."""

    key: Key
    usage: Usage = Field(default_factory=Usage)
